"""A run directory while its job runs: what the always-on probes have added since the last look.

The one reader of records that are still being written. It only opens files for reading, keeps no
file open, and remembers a few numbers per rank, so it may look as often as it likes at a job of any
length. Lines appear whole or not at all to it: the start of a line waits for its end.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from distprof.artefacts import MEMORY_FILE, NVML_FILE, RUN_FILE, STEPS_FILE
from distprof.artefacts.records import Header, MemoryRecord, NvmlRecord, StepRecord
from distprof.artefacts.run_file import RunFile
from distprof.bounds import open_plain, read_plain
from distprof.errors import InputError
from distprof.ingest.job.rank_folder import MAX_LINE_BYTES
from distprof.ingest.job.run_directory import MAX_RUN_BYTES, find_run_directory, rank_of_folder

__all__ = ["MAX_LIVE_RANKS", "LiveRank", "LiveRun", "Tail"]

MAX_LIVE_RANKS = 20_000
"""Folders of ranks that are looked at."""

MAX_LOOK_BYTES = 1 << 24
"""Of one file at one look; the rest is for the next one."""

RECENT = 64
"""Steps of a rank whose durations are kept."""

_MAX_STEP_NS = 10**16  # four months: no step, but a clock that was set

_MAX_NS = 1 << 62

_BROKEN = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError)

T = TypeVar("T", bound=msgspec.Struct)


class Tail(Generic[T]):
    """The end of one file of lines, read further at each look.

    Args:
        path: Of the file, which need not exist yet.
        schema: What its header must say, for example ``distprof.steps/1``.
        kind: Type of a record.
        restarted: Called where the file was replaced: another job began in the same place.
    """

    def __init__(
        self, path: Path, schema: str, kind: type[T], restarted: Callable[[], None]
    ) -> None:
        self._path, self._schema = path, schema
        self._decoder = msgspec.json.Decoder(kind)
        self._restarted = restarted
        self._inode, self._place, self._rest = -1, 0, b""
        self._is_ours = False
        self.num_bad = 0

    def look(self) -> list[T]:
        """Records whose lines were completed since the last look; none where there is no file."""
        try:
            with open_plain(self._path) as stream:
                found = os.fstat(stream.fileno())
                if found.st_ino != self._inode or found.st_size < self._place:
                    self._begin(found.st_ino)
                stream.seek(self._place)
                data = stream.read(MAX_LOOK_BYTES)
        except OSError:
            return []
        self._place += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:  # no record of ours: its end will be a bad line
            self._rest = b"?"
        return [record for line in lines if (record := self._record(line)) is not None]

    def _begin(self, inode: int) -> None:
        if self._inode != -1:
            self._restarted()
        self._inode, self._place, self._rest, self._is_ours = inode, 0, b"", False

    def _record(self, line: bytes) -> T | None:
        """The record of a line; None for the header, and for a line that is none."""
        try:
            if not self._is_ours:
                self._is_ours = msgspec.json.decode(line, type=Header).schema == self._schema
                return None
            return self._decoder.decode(line)
        except _BROKEN:
            self.num_bad += 1
            return None


class LiveRank(msgspec.Struct, kw_only=True):
    """What one rank has done so far.

    Args:
        rank: Global rank.
        num_steps: Steps that it completed.
        steps_ns: Their time.
        tokens: Tokens of these steps; None where a step did not say.
        samples: The same of samples.
        phases_ns: Phase to its time in all steps.
        last: The last step; None before the first.
        recent_ns: Durations of the last steps, the newest last.
        memory: The last record of memory; None without one.
        sensors: The last sample of the GPU's sensors; None without one.
        num_bad: Lines that are no records.
    """

    rank: int
    num_steps: int = 0
    steps_ns: int = 0
    tokens: int | None = None
    samples: int | None = None
    phases_ns: dict[str, int] = msgspec.field(default_factory=dict)
    last: StepRecord | None = None
    recent_ns: deque[int] = msgspec.field(default_factory=lambda: deque(maxlen=RECENT))
    memory: MemoryRecord | None = None
    sensors: NvmlRecord | None = None
    num_bad: int = 0

    def take(self, step: StepRecord) -> bool:
        """Count a step, and return whether it counts: its times may make no sense."""
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
        self.last = step
        self.recent_ns.append(took)
        return True

    def forget(self) -> None:
        """Begin anew: another job writes where this one did."""
        fresh = LiveRank(rank=self.rank)
        for name in self.__struct_fields__:
            setattr(self, name, getattr(fresh, name))


_PHASES = ("input", "forward", "backward", "optimizer")
_OTHER = "other"
"""For phases that a program names itself: there may be any number of them."""


def _added(total: int | None, more: int | None) -> int | None:
    return total if more is None else (total or 0) + more


class LiveRun:
    """A run directory, looked at again and again.

    Args:
        source: A run directory, or a folder that holds one.

    Raises:
        InputError: If it is none.

    Attributes:
        path: The run directory.
        ranks: Rank to what it has done, ascending.
        on_step: Called with each step that is read, and its rank; steps of one rank in order.
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
        self.ranks: dict[int, LiveRank] = {}
        self.on_step: Callable[[int, StepRecord], None] | None = None
        self._tails: dict[int, tuple[Tail[StepRecord], Tail[MemoryRecord], Tail[NvmlRecord]]] = {}

    def look(self) -> None:
        """Read what all ranks have added; what cannot be read now is read later."""
        self._find_ranks()
        for number, (steps, memory, sensors) in self._tails.items():
            rank = self.ranks[number]
            for step in steps.look():
                if rank.take(step) and self.on_step is not None:
                    self.on_step(number, step)
            rank.memory = next(reversed(memory.look()), rank.memory)
            rank.sensors = next(reversed(sensors.look()), rank.sensors)

    @property
    def job(self) -> RunFile | None:
        """run.json as it is now; None where it cannot be read."""
        try:
            data = read_plain(self.path / RUN_FILE, MAX_RUN_BYTES)
            return msgspec.json.decode(data, type=RunFile)
        except (OSError, *_BROKEN):
            return None

    def _find_ranks(self) -> None:
        try:
            names = sorted(os.listdir(self.path))  # noqa: PTH208 - thousands of names, no paths
        except OSError:
            return
        for name in names:
            number = rank_of_folder(f"{name}/file")
            if number is None or number in self.ranks or len(self.ranks) >= MAX_LIVE_RANKS:
                continue
            folder, rank = self.path / name, LiveRank(rank=number)
            self.ranks[number] = rank
            self._tails[number] = (
                Tail(folder / STEPS_FILE, "distprof.steps/1", StepRecord, rank.forget),
                Tail(folder / MEMORY_FILE, "distprof.memory/1", MemoryRecord, _nothing),
                Tail(folder / NVML_FILE, "distprof.nvml/1", NvmlRecord, _nothing),
            )


def _nothing() -> None:
    """The last record of a file that was replaced holds until there is a new one."""
