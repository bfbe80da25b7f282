"""Progress on stderr: only for a terminal, and only when the work is long."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from distprof.cli.output import in_encoding

__all__ = ["progress_bar"]

PATIENCE_S = 1.0
_CELLS = 30


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
