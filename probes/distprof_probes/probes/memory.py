"""Records memory at the end of each step: the GPU's caching allocator and the process."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from distprof.artefacts import MEMORY_FILE
from distprof.artefacts.records import MemoryRecord
from distprof_probes.own_files import OwnFile
from distprof_probes.probe import Probe

_STATM = "/proc/self/statm"


class ResidentMemory:
    """Resident memory of this process. The file stays open: that takes a third of the time."""

    def __init__(self) -> None:
        self._open: OwnFile | None = None
        try:
            self._open = OwnFile(_STATM, os.O_RDONLY)
        except OSError:
            return

    def num_bytes(self) -> int | None:
        """Its present size; None if the system does not report it (not Linux)."""
        words = [] if self._open is None else self._open.words()
        return None if len(words) < 2 else int(words[1]) * os.sysconf("SC_PAGE_SIZE")

    def close(self) -> None:
        """Close the file."""
        if self._open is not None:
            self._open.close()
        self._open = None


def resident_bytes() -> int | None:
    """The same, for occasional calls."""
    memory = ResidentMemory()
    try:
        return memory.num_bytes()
    finally:
        memory.close()


class MemoryProbe(Probe):
    """Writes ``memory.jsonl``.

    torch keeps one peak since its last reset. So the peak of a step is known only if the step
    raised it, and None otherwise, unless ``reset_peak_memory`` lets this probe reset it every step.
    """

    name = "memory"

    def __init__(self) -> None:
        super().__init__()
        self._resets = False
        self._highest = 0
        self._resident: ResidentMemory | None = None

    def start(self, session: Any) -> None:
        """Open the files."""
        self._resets = session.options.reset_peak_memory
        self.open_writer(session, MEMORY_FILE, "distprof.memory/1")
        self._resident = ResidentMemory()

    def stop(self) -> None:
        """Close the file of resident memory."""
        if self._resident is not None:
            self._resident.close()

    def step_ended(self, step: int) -> None:
        """Write one record."""
        resident = self._resident.num_bytes() if self._resident is not None else None
        record = MemoryRecord(step=step, t_ns=time.time_ns(), **self._device(), rss_bytes=resident)
        if self.writer is not None:
            self.writer.put(record)

    def _device(self) -> dict[str, int | None]:
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():  # never, without a GPU
            return {}
        stats = torch.cuda.memory_stats_as_nested_dict()
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        return {
            "allocated_bytes": allocated["current"],
            "peak_allocated_bytes": self._peak(torch, allocated["peak"]),
            "reserved_bytes": reserved["current"],
            "num_retries": stats["num_alloc_retries"],
        }

    def _peak(self, torch: Any, peak: int) -> int | None:
        if self._resets:
            torch.cuda.reset_peak_memory_stats()
            return peak
        raised = peak != self._highest  # lower: other code reset it, and this step reached it
        self._highest = peak
        return peak if raised else None
