"""Progress on stderr: only for a terminal, and only when the work is long."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from distprof.cli.output import in_encoding
from distprof.escape import plain

__all__ = ["progress_bar", "status_line"]

PATIENCE_S = 1.0
_CELLS = 30
_FEW_CELLS = 16


@contextmanager
def progress_bar(
    label: str, *, quiet: bool, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[int, int], None] | None]:
    """A bar that appears after a second of work and leaves no trace.

    Args:
        label: What is being done.
        quiet: Show nothing.
        clock: Seconds.

    Yields:
        A function that takes the number of items done and of all; None where nothing is shown.
    """
    stream = sys.stderr
    if quiet or not stream.isatty():
        yield None
        return
    started = clock()
    shown = False

    def progress(done: int, total: int) -> None:
        nonlocal shown
        if clock() - started < PATIENCE_S or total < 2:
            return
        filled = "█" * (_CELLS * done // total)
        bar = f"\r{label} {filled:░<{_CELLS}} {done}/{total}"
        stream.write(in_encoding(bar, getattr(stream, "encoding", None) or "utf-8"))
        stream.flush()
        shown = True

    try:
        yield progress
    finally:
        if shown:
            stream.write("\r\x1b[2K")
            stream.flush()


@contextmanager
def status_line() -> Iterator[Callable[[int, int, str], None]]:
    """A line on a terminal with a bar and what goes on, for work in a few long pieces.

    It is there from the start, never wider than the terminal, and leaves no trace.

    Yields:
        A function that takes the number of pieces done, of all, and a text.
    """
    stream = sys.stderr

    def show(done: int, total: int, text: str) -> None:
        filled = "█" * (_FEW_CELLS * done // max(total, 1))
        line = f"{filled:░<{_FEW_CELLS}} {done}/{total} done · {plain(text)}"
        room = shutil.get_terminal_size().columns - 1
        encoding = getattr(stream, "encoding", None) or "utf-8"
        stream.write(f"\r\x1b[2K{in_encoding(line[:room], encoding)}")
        stream.flush()

    try:
        yield show
    finally:
        stream.write("\r\x1b[2K")
        stream.flush()
