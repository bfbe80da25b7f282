"""Run directories made by hand: what probes and launcher write, a few lines at a time.

::

    folder = JobFolder(tmp_path / "run", mesh={"dp_replicate": 2})
    folder.steps(0, [10, 10, 12], traced=(2,))
    folder.write()
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path
from typing import Any

import msgspec

from distprof.artefacts import (
    CLOCK_FILE,
    COLLECTIVES_FILE,
    ERROR_FILE,
    FLIGHT_FILE,
    MEMORY_FILE,
    MOE_FILE,
    NVML_FILE,
    PAUSES_FILE,
    RANK_DIR_FORMAT,
    RANK_FILE,
    RUN_FILE,
    SETTINGS_FILE,
    STEPS_FILE,
    TRACE_FILE,
)
from distprof.artefacts.records import (
    ClockStamp,
    CollectivesRecord,
    Header,
    MemoryRecord,
    MoeRecord,
    NvmlRecord,
    Pause,
    Phase,
    StepRecord,
)
from distprof.artefacts.run_file import (
    ErrorFile,
    ProbeStatus,
    RankEntry,
    RankFile,
    RunFile,
    SettingsFile,
)

MS = 1_000_000
START_NS = 1_750_000_000_000_000_000

_SCHEMAS = {
    STEPS_FILE: "distprof.steps/1",
    NVML_FILE: "distprof.nvml/1",
    MEMORY_FILE: "distprof.memory/1",
    MOE_FILE: "distprof.moe/1",
    PAUSES_FILE: "distprof.pauses/1",
    CLOCK_FILE: "distprof.clock/1",
    COLLECTIVES_FILE: "distprof.collectives/1",
}


class JobFolder:
    """Collects what a run directory holds; :meth:`write` makes run.json."""

    def __init__(self, path: Path, *, mesh: dict[str, int], **fields: Any) -> None:
        self.path = path
        self.mesh = mesh
        self.size = prod(mesh.values())
        self.fields = fields
        self.entries = {
            rank: RankEntry(rank=rank, node=0, host="vm", local_rank=rank, device="cpu", pid=9)
            for rank in range(self.size)
        }
        path.mkdir(parents=True, exist_ok=True)

    def rank_dir(self, rank: int) -> Path:
        folder = self.path / RANK_DIR_FORMAT.format(rank=rank)
        folder.mkdir(exist_ok=True)
        return folder

    def lines(
        self, rank: int, name: str, records: Iterable[msgspec.Struct], **about: Any
    ) -> JobFolder:
        header = Header(schema=_SCHEMAS[name], rank=rank, about=about)
        data = b"".join(msgspec.json.encode(line) + b"\n" for line in (header, *records))
        (self.rank_dir(rank) / name).write_bytes(data)
        return self

    def steps(
        self,
        rank: int,
        lengths_ms: Sequence[float],
        *,
        traced: Sequence[int] = (),
        phases: dict[str, float] | None = None,
        tokens: int | None = None,
        losses: Sequence[float] = (),
    ) -> JobFolder:
        """Steps of these lengths one after another; phases take their share of each."""
        records, now = [], START_NS
        for step, length in enumerate(lengths_ms):
            end = now + round(length * MS)
            parts, at = [], now
            for name, share in (phases or {}).items():
                until = at + round(length * MS * share)
                parts.append(Phase(name, at, until))
                at = until
            records.append(
                StepRecord(
                    step=step,
                    start_ns=now,
                    end_ns=end,
                    phases=tuple(parts),
                    tokens=tokens,
                    loss=losses[step] if step < len(losses) else None,
                    is_traced=step in traced,
                )
            )
            now = end
        return self.lines(rank, STEPS_FILE, records)

    def memory(self, rank: int, *records: MemoryRecord) -> JobFolder:
        return self.lines(rank, MEMORY_FILE, records)

    def nvml(self, rank: int, *records: NvmlRecord) -> JobFolder:
        return self.lines(rank, NVML_FILE, records)

    def moe(self, rank: int, *records: MoeRecord) -> JobFolder:
        return self.lines(rank, MOE_FILE, records)

    def settings(self, rank: int, **fields: Any) -> JobFolder:
        data = msgspec.json.encode(SettingsFile(rank=rank, **fields))
        (self.rank_dir(rank) / SETTINGS_FILE).write_bytes(data)
        return self

    def pauses(self, rank: int, *records: Pause) -> JobFolder:
        return self.lines(rank, PAUSES_FILE, records)

    def clock(self, rank: int, *records: ClockStamp) -> JobFolder:
        return self.lines(rank, CLOCK_FILE, records)

    def collectives(self, rank: int, *records: CollectivesRecord) -> JobFolder:
        return self.lines(rank, COLLECTIVES_FILE, records)

    def trace(self, rank: int, trace: Path, flight: Path | None = None) -> JobFolder:
        """A copy of a trace, and of the Flight Recorder's dump that belongs to it."""
        shutil.copy(trace, self.rank_dir(rank) / TRACE_FILE)
        if flight is not None:
            shutil.copy(flight, self.rank_dir(rank) / FLIGHT_FILE)
        return self

    def rank(self, rank: int, **fields: Any) -> JobFolder:
        """What run.json says of a rank."""
        self.entries[rank] = msgspec.structs.replace(self.entries[rank], **fields)
        return self

    def probe(self, name: str, state: str, reason: str = "") -> JobFolder:
        """The same state of a probe on every rank."""
        status = ProbeStatus(name=name, state=state, reason=reason)  # type: ignore[arg-type]
        for rank, entry in self.entries.items():
            self.rank(rank, probes=(*entry.probes, status))
        return self

    def rank_file(self, rank: int, **fields: Any) -> JobFolder:
        known: dict[str, Any] = {"rank": rank, "pid": 9, "started_ns": START_NS, "host": "vm"}
        self._json(rank, RANK_FILE, RankFile(**{**known, **fields}))
        return self

    def error(self, rank: int, message: str, **fields: Any) -> JobFolder:
        known: dict[str, Any] = {
            "rank": rank,
            "time_ns": START_NS,
            "kind": "RuntimeError",
            "message": message,
            "traceback": "",
            "is_peer_loss": False,
        }
        self._json(rank, ERROR_FILE, ErrorFile(**{**known, **fields}))
        return self

    def run_file(self) -> RunFile:
        known: dict[str, Any] = {
            "distprof_version": "0.1.0",
            "kind": "run",
            "command": ("distprof", "run", "ddp"),
            "workload": "ddp",
            "strategy": "DDP",
            "mesh": self.mesh,
            "world_size": self.size,
            "ranks": tuple(self.entries.values()),
            "started_ns": START_NS,
            "ended_ns": START_NS + 1_000 * MS,
            "outcome": "completed",
        }
        return RunFile(**{**known, **self.fields})

    def write(self) -> Path:
        """run.json; returns the run directory."""
        (self.path / RUN_FILE).write_bytes(msgspec.json.encode(self.run_file()))
        return self.path

    def _json(self, rank: int, name: str, content: msgspec.Struct) -> None:
        (self.rank_dir(rank) / name).write_bytes(msgspec.json.encode(content))
