"""How long a thread or process ran on a CPU, and how long it was ready to run but had none."""

from __future__ import annotations

import os
import threading
from typing import NamedTuple

from distprof_probes.own_files import OwnFile

_PROC = "/proc"
_SCHEDSTAT = f"{_PROC}/thread-self/schedstat"
"""Linux: time on a CPU and time waiting for one in ns, and the number of time slices."""

_MOST_FILES = 64
_LOOK_AGAIN = 32  # look for new threads after this many reads


class CpuTime(NamedTuple):
    """Times of one thread in ns, None if unknown."""

    ran_ns: int | None = None
    waited_ns: int | None = None


class RunQueue:
    """Observes the calling thread. Each call costs one read of a few bytes from memory."""

    def __init__(self, file: str = _SCHEDSTAT) -> None:
        self._file = file
        self._thread = 0
        self._open: OwnFile | None = None
        self._before = CpuTime()

    def since_last(self) -> CpuTime:
        """Time on a CPU and in the run queue since the last call of this thread."""
        now = self.total()
        before, self._before = self._before, now
        return spent(before, now)

    def total(self) -> CpuTime:
        """The same since this thread began. The call does not affect :meth:`since_last`."""
        if self._thread != threading.get_native_id():
            self._begin()
        return self._times()

    def asleep_ns(self, since: CpuTime, duration_ns: int) -> int | None:
        """Time for which this thread neither ran nor was ready to run; None if unknown.

        ``since`` is the result of :meth:`total` at the start of the interval.
        """
        passed = spent(since, self.total())
        if passed.ran_ns is None or passed.waited_ns is None:
            return None
        return max(duration_ns - passed.ran_ns - passed.waited_ns, 0)

    def close(self) -> None:
        """Close the file."""
        if self._open is not None:
            self._open.close()
        self._open, self._thread = None, 0

    def _begin(self) -> None:
        """Observe this thread from now on: the file belongs to the thread that opens it."""
        self.close()
        self._thread, self._before = threading.get_native_id(), CpuTime()
        try:
            self._open = OwnFile(self._file, os.O_RDONLY)
        except OSError:
            self._open = None

    def _times(self) -> CpuTime:
        return CpuTime() if self._open is None else _parsed(self._open.words())


class ProcessTimes:
    """Observes other processes, as a sum over the threads of each, through files that stay open."""

    def __init__(self, proc: str = _PROC) -> None:
        self._proc = proc
        self._files: dict[int, dict[str, OwnFile]] = {}
        self._num_reads = 0

    def total(self, number: int) -> CpuTime:
        """Times of the process with this ID, since each of its threads began."""
        self._num_reads += 1
        if number not in self._files or self._num_reads % _LOOK_AGAIN == 0:
            self._look_for_threads(number)
        times = [_parsed(file.words()) for file in self._files[number].values()]
        ran = [time.ran_ns for time in times if time.ran_ns is not None]
        waited = [time.waited_ns for time in times if time.waited_ns is not None]
        if 0 < len(times) == len(ran) == len(waited):
            return CpuTime(sum(ran), sum(waited))
        self._forget(number)  # a thread or the process ended
        return CpuTime()

    def close(self) -> None:
        """Close the files."""
        for number in list(self._files):
            self._forget(number)

    def _forget(self, number: int) -> None:
        for file in self._files.pop(number).values():
            file.close()

    def _look_for_threads(self, number: int) -> None:
        if sum(map(len, self._files.values())) > _MOST_FILES:
            self.close()
        files = self._files.setdefault(number, {})
        try:
            with os.scandir(f"{self._proc}/{number}/task") as threads:
                for thread in threads:
                    if thread.name not in files:
                        files[thread.name] = OwnFile(f"{thread.path}/schedstat", os.O_RDONLY)
        except OSError:
            return


def _parsed(words: list[bytes]) -> CpuTime:
    try:
        ran, waited, *_ = words
        return CpuTime(int(ran), int(waited))
    except ValueError:  # too few, or no numbers
        return CpuTime()


def spent(before: CpuTime, now: CpuTime) -> CpuTime:
    """Times between two totals of one thread, or of one process."""
    if before.ran_ns is None or before.waited_ns is None:
        return CpuTime()
    if now.ran_ns is None or now.waited_ns is None:
        return CpuTime()
    return CpuTime(max(now.ran_ns - before.ran_ns, 0), max(now.waited_ns - before.waited_ns, 0))
