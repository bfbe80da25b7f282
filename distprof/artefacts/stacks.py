"""Python stacks as faulthandler writes them: one file, one dump after another."""

from __future__ import annotations

import re
from collections.abc import Iterable

_THREAD = re.compile(r"^(?:Current thread|Thread) (0x[0-9a-fA-F]+)")
FRAME = re.compile(r'^\s+File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<name>.*)$')
"""One call; Python may not know its line number."""

LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python\d|^<frozen")
"""Paths of code that the user did not write."""

_ENDING = re.compile(r'distprof_probes[/\\]session\.py", line \d+ in _end$')
"""A rank that was asked to end and is saving its records: no longer running the program."""


def main_stack(lines: Iterable[str]) -> list[str]:
    """The main thread's frames in the last dump that shows the program, innermost call first.

    The main thread is the oldest thread, which :mod:`faulthandler` prints last. A later dump may
    show it saving distprof's records, because the job was being ended.

    Args:
        lines: Lines of a file of dumps, without line ends.
    """
    threads: list[tuple[str, list[str]]] = []
    for line in lines:
        if thread := _THREAD.match(line):
            threads.append((thread[1], []))
        elif threads and FRAME.match(line):
            threads[-1][1].append(line)
    threads = [(thread, frames) for thread, frames in threads if frames]
    main = threads[-1][0] if threads else ""
    dumps = [frames for thread, frames in threads if thread == main]
    running = [frames for frames in dumps if not any(map(_ENDING.search, frames))]
    return next(reversed(running or dumps), [])
