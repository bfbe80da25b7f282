"""How long the calling thread ran on a CPU, and was ready to run but had none."""

from __future__ import annotations

import os
import threading
from typing import NamedTuple

from distprof_probes.own_files import OwnFile

__all__ = ["CpuTime", "RunQueue"]

_SCHEDSTAT = "/proc/thread-self/schedstat"
"""Linux: time on a CPU and time waiting for one in ns, and the number of time slices."""
_MOST_BYTES = 100


class CpuTime(NamedTuple):
    """Of one thread, ns; None where unknown."""

    ran_ns: int | None = None
    waited_ns: int | None = None


class RunQueue:
    """Observes the thread that asks. Costs one read of a few bytes from memory each time.

    Args:
        file: File to read instead of Linux's.
    """

    def __init__(self, file: str = _SCHEDSTAT) -> None:
        self._file = file
        self._thread = 0
        self._open: OwnFile | None = None
        self._before: tuple[int, int] | None = None

    def since_last(self) -> CpuTime:
        """Time on a CPU and in the run queue since the last call of this thread."""
        if self._thread != threading.get_native_id():
            self._begin()
        now = self._times()
        before, self._before = self._before, now
        if now is None or before is None:
            return CpuTime()
        return CpuTime(max(now[0] - before[0], 0), max(now[1] - before[1], 0))

    def close(self) -> None:
        """Close the file."""
        if self._open is not None:
            self._open.close()
        self._open, self._thread = None, 0

    def _begin(self) -> None:
        """Observe this thread from now on: the name leads to the thread that opens it."""
        self.close()
        self._thread, self._before = threading.get_native_id(), None
        try:
            self._open = OwnFile(self._file, os.O_RDONLY)
        except OSError:
            self._open = None

    def _times(self) -> tuple[int, int] | None:
        if self._open is None or not self._open.is_usable():
            return None
        try:
            ran, waited, *_ = os.pread(self._open.number, _MOST_BYTES, 0).split()
            return int(ran), int(waited)
        except (OSError, ValueError, IndexError):
            return None
