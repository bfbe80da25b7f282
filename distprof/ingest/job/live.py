"""Running totals of a job in its run directory: steps, their time, latest memory and sensors.

Only a few numbers per rank are kept, so a job of any length can be polled as often as needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from distprof.artefacts import COLLECTIVES_FILE, MEMORY_FILE, NVML_FILE, RUN_FILE, STEPS_FILE
from distprof.artefacts.records import CollectivesRecord, MemoryRecord, NvmlRecord, StepRecord
from distprof.artefacts.run_file import RunFile
from distprof.bounds import read_plain
from distprof.errors import InputError
from distprof.ingest.job.growing import MAX_RANKS, GrowingFile, rank_folders
from distprof.ingest.job.rank_folder import BROKEN
from distprof.ingest.job.run_directory import MAX_RUN_BYTES, find_run_directory

RECENT = 64  # steps of a rank whose durations are kept

_MAX_STEP_NS = 10**16  # four months: not a step, but a clock that was set
_MAX_NS = 1 << 62
_Kind = TypeVar("_Kind", bound=msgspec.Struct)


class LiveRank(msgspec.Struct, kw_only=True):
    """Totals of one rank so far."""

    rank: int  # Global rank.
    num_steps: int = 0  # Steps that it completed.
    steps_ns: int = 0  # Total time of these steps.
    tokens: int | None = None  # Tokens of these steps; None if no step reported any.
    samples: int | None = None  # Samples of these steps; None if no step reported any.
    # Phase to its time in all steps.
    phases_ns: dict[str, int] = msgspec.field(default_factory=dict)
    # State of the training thread to its time in all steps: ``running`` on a CPU,
    # ``waiting_for_cpu`` ready without one, ``waiting_for_input`` asleep in the phases ``input``.
    # States that the system does not report are missing.
    thread_ns: dict[str, int] = msgspec.field(default_factory=dict)
    # GPU time of its collectives and messages in all steps; None if not recorded.
    collectives_ns: int | None = None
    last: StepRecord | None = None  # The last step; None before the first.
    # Durations of the last steps, the newest last.
    recent_ns: deque[int] = msgspec.field(default_factory=lambda: deque(maxlen=RECENT))
    memory: MemoryRecord | None = None  # The latest record of memory; None if there is none.
    # The latest sample of the GPU's sensors; None if there is none.
    sensors: NvmlRecord | None = None
    num_bad: int = 0  # Lines that are not records, and steps with impossible times.

    def take(self, step: StepRecord) -> bool:
        """Count a step; return False if its times make no sense and it was left out."""
        took = step.end_ns - step.start_ns
        if not (0 <= took <= _MAX_STEP_NS and 0 <= step.start_ns < _MAX_NS):
            self.num_bad += 1
            return False
        self.num_steps += 1
        self.steps_ns += took
        self.tokens = _added(self.tokens, step.tokens)
        self.samples = _added(self.samples, step.samples)
        for phase in step.phases:
            ns = min(max(phase.end_ns - phase.start_ns, 0), took)
            name = phase.name if phase.name in _PHASES else _OTHER
            self.phases_ns[name] = self.phases_ns.get(name, 0) + ns
        for name, field in _THREAD.items():
            known_ns = getattr(step, field)
            if known_ns is not None:
                ns = min(max(known_ns, 0), took)
                self.thread_ns[name] = self.thread_ns.get(name, 0) + ns
        self.last = step
        self.recent_ns.append(took)
        return True

    def take_collectives(self, step: CollectivesRecord) -> None:
        """Add the collectives of a step."""
        took = sum(min(max(ns, 0), _MAX_STEP_NS) for each in step.groups for ns in each.total_ns)
        self.collectives_ns = _added(self.collectives_ns, took)

    def forget(self) -> None:
        """Start again, because another job writes to the same files."""
        fresh = LiveRank(rank=self.rank)
        for name in self.__struct_fields__:
            setattr(self, name, getattr(fresh, name))


_PHASES = ("input", "forward", "backward", "optimizer")
_OTHER = "other"
"""Stands for phases with names of the program's own, of which there may be any number."""

_THREAD = {
    "running": "cpu_ns",
    "waiting_for_cpu": "run_queue_ns",
    "waiting_for_input": "input_asleep_ns",
}


def _added(total: int | None, more: int | None) -> int | None:
    return total if more is None else (total or 0) + more


class LiveRun:
    """A run directory that is polled.

    Raises:
        InputError: If there is no run directory.
    """

    def __init__(self, source: str) -> None:
        found = None if "://" in source else find_run_directory(source)
        if found is None:
            raise InputError(
                source,
                expected="a run directory on this machine, as distprof run or capture makes it",
                found="none",
                fix="name the folder that holds run.json",
            )
        self.path = Path(found)
        self.ranks: dict[int, LiveRank] = {}  # rank to its totals, ascending
        # called with the rank and each step that is read, those of one rank in order
        self.on_step: Callable[[int, StepRecord], None] | None = None
        self._files: dict[int, _Files] = {}

    def look(self) -> None:
        """Read what all ranks have added; files that cannot be read now are read later."""
        for rank_number, folder in rank_folders(self.path) or ():
            if rank_number not in self.ranks and len(self.ranks) < MAX_RANKS:
                self.ranks[rank_number] = LiveRank(rank=rank_number)
                self._files[rank_number] = _Files(folder, rank_number)
        for number, files in self._files.items():
            rank = self.ranks[number]
            num_starts, num_bad = files.steps.num_starts, files.num_bad
            steps = files.steps.added()
            if num_starts and files.steps.num_starts > num_starts:
                rank.forget()
            for step in steps:
                if rank.take(step) and self.on_step is not None:
                    self.on_step(number, step)
            for record in files.collectives.added():
                rank.take_collectives(record)
            rank.memory = next(reversed(files.memory.added()), rank.memory)
            rank.sensors = next(reversed(files.sensors.added()), rank.sensors)
            rank.num_bad += files.num_bad - num_bad

    @property
    def job(self) -> RunFile | None:
        """run.json as it is now; None if it cannot be read."""
        try:
            data = read_plain(self.path / RUN_FILE, MAX_RUN_BYTES)
            return msgspec.json.decode(data, type=RunFile)
        except (OSError, *BROKEN):
            return None


class _Files:
    """The files of one rank that are followed."""

    def __init__(self, folder: Path, rank: int) -> None:
        def whole(name: str, schema: str, kind: type[_Kind]) -> GrowingFile[_Kind]:
            return GrowingFile(folder / name, schema, kind, rank, whole=True)

        self.steps = whole(STEPS_FILE, "distprof.steps/1", StepRecord)
        self.memory = whole(MEMORY_FILE, "distprof.memory/1", MemoryRecord)
        self.sensors = whole(NVML_FILE, "distprof.nvml/1", NvmlRecord)
        self.collectives = whole(COLLECTIVES_FILE, "distprof.collectives/1", CollectivesRecord)

    @property
    def num_bad(self) -> int:
        files = (self.steps, self.memory, self.sensors, self.collectives)
        return sum(file.num_bad for file in files)
