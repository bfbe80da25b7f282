"""The threads of the process, its allowed CPUs, and how busy they were."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from distprof.artefacts.run_file import ThreadSettings
from distprof.units import fold_ranks

_STAT = Path("/proc/stat")
_CPUINFO = Path("/proc/cpuinfo")
_MODEL_FIELDS = ("model name", "cpu", "cpu model")  # on x86, POWER, MIPS
_ARM_FIELDS = ("CPU implementer", "CPU part")
_MAX_MODEL = 80
_IDLE = slice(3, 5)  # idle and iowait, of user, nice, system, idle, iowait, irq, softirq, steal
_FIELDS = 8  # guest time is in user time already
_FEWEST_TICKS = 10  # of 10 ms each: fewer give no reliable ratio


class Processors:
    """Observes the CPUs from its construction on.

    Args:
        num_local_ranks: Number of ranks on the host, None if the launcher does not set it.
        stat: File to read instead of Linux's ``/proc/stat``.
        cpuinfo: File to read instead of Linux's ``/proc/cpuinfo``.
    """

    def __init__(
        self, num_local_ranks: int | None, stat: Path = _STAT, cpuinfo: Path = _CPUINFO
    ) -> None:
        self._num_local_ranks = num_local_ranks
        self._model = _model(cpuinfo)
        self._stat = stat
        self._cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
        self._before = _ticks(stat, self._cpus)

    def settings(self) -> ThreadSettings:
        """Thread and CPU settings at this moment."""
        torch: Any = sys.modules.get("torch")
        return ThreadSettings(
            num_threads=int(torch.get_num_threads()) if torch is not None else None,
            num_interop_threads=int(torch.get_num_interop_threads()) if torch is not None else None,
            omp_num_threads=os.environ.get("OMP_NUM_THREADS", "")[:40],
            cpus=fold_ranks(self._cpus),
            processor=self._model,
            num_local_ranks=self._num_local_ranks,
            cpu_busy_ratio=self._busy_ratio(),
        )

    def _busy_ratio(self) -> float | None:
        after = _ticks(self._stat, self._cpus)
        if self._before is None or after is None:
            return None
        busy, total = (now - then for now, then in zip(after, self._before, strict=True))
        if total < _FEWEST_TICKS * max(len(self._cpus), 1):
            return None
        return round(min(max(busy / total, 0.0), 1.0), 4)


def _model(cpuinfo: Path) -> str:
    """Model name of the first CPU; hexadecimal numbers on ARM. Empty if unknown."""
    fields: dict[str, str] = {}
    try:
        with cpuinfo.open(encoding="utf-8", errors="replace") as stream:
            for line in stream:
                name, colon, value = line.partition(":")
                if colon:
                    fields.setdefault(name.strip(), " ".join(value.split()))
                elif fields:
                    break  # the next CPU
    except OSError:
        return ""
    found = next((fields[name] for name in _MODEL_FIELDS if fields.get(name)), "")
    if not found and all(name in fields for name in _ARM_FIELDS):
        found = "ARM " + " ".join(fields[name] for name in _ARM_FIELDS)
    return "".join(c for c in found if c.isprintable())[:_MAX_MODEL]


def _ticks(stat: Path, cpus: Collection[int]) -> tuple[int, int] | None:
    """Busy and total time of these CPUs since the machine started, in units of 10 ms."""
    names = {f"cpu{number}" for number in cpus}
    try:
        lines = stat.read_text(encoding="ascii").splitlines()
        rows = [
            [int(field) for field in line.split()[1 : _FIELDS + 1]]
            for line in lines
            if line.partition(" ")[0] in names
        ]
    except (OSError, ValueError):
        return None
    total = sum(sum(row) for row in rows)
    return (total - sum(sum(row[_IDLE]) for row in rows), total) if rows else None
