"""Records memory at the end of each step: the GPU's caching allocator and the process."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from distprof.artefacts import MEMORY_FILE
from distprof.artefacts.records import MemoryRecord
from distprof_probes.probe import Probe

__all__ = ["MemoryProbe", "resident_bytes"]

_STATM = Path("/proc/self/statm")


def resident_bytes() -> int | None:
    """Resident memory of this process; None if the system does not report it (not Linux)."""
    try:
        return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


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

    def start(self, session: Any) -> None:
        """Open the file."""
        self._resets = session.options.reset_peak_memory
        self.open_writer(session, MEMORY_FILE, "distprof.memory/1")

    def step_ended(self, step: int) -> None:
        """Write one record."""
        record = MemoryRecord(
            step=step, t_ns=time.time_ns(), **self._device(), rss_bytes=resident_bytes()
        )
        if self.writer is not None:
            self.writer.put(record)

    def _device(self) -> dict[str, int | None]:
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
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
