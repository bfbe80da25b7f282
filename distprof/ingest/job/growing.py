"""Follow a run directory while ranks write to it: what each look added, and running totals.

No call blocks, and no file stays open. A look reads only the new bytes of a file, in whole lines
and up to a limit. Files may be truncated, replaced, deleted or damaged. A rank may appear late.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec

from distprof.artefacts import (
    ATTACH_FILE,
    COLLECTIVES_FILE,
    ERROR_FILE,
    EXIT_FILE,
    MEMORY_FILE,
    NVML_FILE,
    PAUSES_FILE,
    RANK_FILE,
    RUN_FILE,
    STEPS_FILE,
)
from distprof.artefacts.records import (
    CollectivesRecord,
    Header,
    MemoryRecord,
    NvmlRecord,
    Pause,
    StepRecord,
)
from distprof.artefacts.run_file import AttachFile, ErrorFile, ExitFile, RankFile, RunFile
from distprof.bounds import Bound, open_plain, read_plain
from distprof.errors import InputError
from distprof.ingest.job import MAX_RUN_BYTES, find_run_directory
from distprof.ingest.job.rank_folder import BROKEN, MAX_LINE_BYTES

MAX_RANKS: Final = 20_000
MAX_FILE_BYTES: Final = 16 << 20  # for a file that is replaced as a whole
BYTES_PER_LOOK: Final = 1 << 20  # of one line-based file; the rest is left for the next look
WHOLE_BYTES_PER_LOOK: Final = 16 << 20  # of a file that is read from its first record
HISTORY_BYTES: Final = 1 << 16  # read of a file that is longer when first seen: about 150 steps

BOUND: Final = Bound(
    reads="a run directory that is being written, per file and look",
    num_bytes=BYTES_PER_LOOK,
    names=MAX_RANKS,
    depth=1_000,
    beyond="skipped",
)

_RANK_FOLDER = re.compile(r"rank(\d{1,9})")
_QUIET_LOOKS = 5
"""The other files of a rank are checked if it has no new step, and otherwise on every fifth look:
on a shared file system, each check costs a round trip."""

_Kind = TypeVar("_Kind", bound=msgspec.Struct)


class GrowingFile(Generic[_Kind]):
    """A line-based file to which lines are appended; it may not exist yet.

    ``schema``, for example ``distprof.steps/1``, must be that of its header, ``rank`` the header's
    rank. With ``whole``, the file is read from its first record, however long it already is.
    """

    def __init__(
        self, path: Path, schema: str, kind: type[_Kind], rank: int, *, whole: bool = False
    ) -> None:
        self.num_bad = 0  # lines that are not records
        self.num_starts = 0  # how often the file was started: another job may replace it
        self.problem = ""  # why its records are not used, for example another rank's header
        self._history_bytes = None if whole else HISTORY_BYTES
        self._bytes_per_look = WHOLE_BYTES_PER_LOOK if whole else BYTES_PER_LOOK
        self._path = path
        self._schema = schema
        self._decoder = msgspec.json.Decoder(kind)
        self._rank = rank
        self._reset()

    def _reset(self) -> None:
        self._offset = 0
        self._inode = 0
        self._rest = b""
        self._is_too_long = False
        self._has_header = False
        self.problem = ""

    def added(self) -> list[_Kind]:
        """Records added since the last call; none if the file is gone or cannot be read."""
        try:
            info = self._path.stat()
            if info.st_ino != self._inode or info.st_size < self._offset:
                self._reset()
                self._inode = info.st_ino
                self.num_starts += 1
            if info.st_size == self._offset:
                return []
            data = self._new_bytes(info.st_size)
        except FileNotFoundError:
            self._reset()  # a new file may get the inode of the old one
            return []
        except OSError:
            return []
        return self._records(data)

    def _new_bytes(self, size: int) -> bytes:
        with open_plain(self._path) as stream:
            head = b""
            history = self._history_bytes
            if history is not None and not self._offset and size > history:
                head = stream.read(history >> 4).partition(b"\n")[0] + b"\n"
                self._offset = size - history
            stream.seek(self._offset)
            data = stream.read(self._bytes_per_look)
        self._offset += len(data)
        return head + data.partition(b"\n")[2] if head else data

    def _records(self, data: bytes) -> list[_Kind]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            self._rest, self._is_too_long = b"", True
        records = []
        for line in lines:
            if self._is_too_long:
                self._is_too_long = False
                self.num_bad += 1
            elif not self._has_header:
                self._has_header = True
                self._check_header(line)
            elif line and not self.problem:
                try:
                    records.append(self._decoder.decode(line))
                except BROKEN:
                    self.num_bad += 1
        return records

    def _check_header(self, line: bytes) -> None:
        try:
            header = msgspec.json.decode(line, type=Header)
        except BROKEN:
            self.num_bad += 1
            return
        if header.schema != self._schema:
            self.problem = f"its schema is {header.schema[:60]!r}, not {self._schema!r}"
        elif header.rank != self._rank:
            self.problem = f"it was written by rank {header.rank}"


class _WholeFile(Generic[_Kind]):
    """A small JSON file that is replaced as a whole; it may not exist."""

    def __init__(self, path: Path, kind: type[_Kind]) -> None:
        self._path = path
        self._kind = kind
        self._seen: tuple[int, int, int] | None = None

    def new(self) -> _Kind | None:
        """Its content, if it was replaced since the last call and can be read."""
        try:
            info = self._path.stat()
            seen = (info.st_ino, info.st_mtime_ns, info.st_size)
            if seen == self._seen:
                return None
            self._seen = seen
            return msgspec.json.decode(read_plain(self._path, MAX_FILE_BYTES), type=self._kind)
        except (OSError, *BROKEN):
            return None


class RankAdded(msgspec.Struct, frozen=True, kw_only=True):
    """Additions of one rank since the last look."""

    rank: int  # Global rank.
    steps: tuple[StepRecord, ...] = ()  # Steps, in the order of the file.
    memory: tuple[MemoryRecord, ...] = ()  # Memory records at the end of steps.
    samples: tuple[NvmlRecord, ...] = ()  # Samples of its GPU's sensors.
    pauses: tuple[Pause, ...] = ()  # Garbage collections and waits for input.
    collectives: tuple[CollectivesRecord, ...] = ()  # GPU time of its collectives, by step.
    said: RankFile | None = None  # rank.json, if it was written since then.
    error: ErrorFile | None = None  # error.json, if it was written since then.
    exit: ExitFile | None = None  # exit.json, if it was written since then.
    process: AttachFile | None = None  # attach.json, if it was written since then.


class Added(msgspec.Struct, frozen=True, kw_only=True):
    """Additions to a run directory since the last look."""

    run: RunFile | None = None  # run.json, if it was written since then.
    # Whether another run began in the same directory, so earlier data belong to the previous run.
    is_another_run: bool = False
    ranks: tuple[RankAdded, ...] = ()  # Ranks that added something.
    num_bad_lines: int = 0  # Lines so far that are not records.
    problems: tuple[str, ...] = ()  # Files that are not read, and why, one sentence each.
    is_there: bool = True  # Whether the directory exists.


class GrowingRun:
    """A run directory that grows; it may not exist yet."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._ranks: dict[int, _GrowingRank] = {}
        self._run = _WholeFile(self._path / RUN_FILE, RunFile)
        self._started_ns: int | None = None

    def look(self) -> Added:
        """What was added since the last call. Never raises because of what the directory holds."""
        run = self._run.new()
        is_another = run is not None and self._started_ns not in (None, run.started_ns)
        if run is not None:
            self._started_ns = run.started_ns
        if is_another:
            self._ranks.clear()
        folders = rank_folders(self._path)
        for rank, folder in folders or ():
            if rank not in self._ranks and len(self._ranks) < MAX_RANKS:
                self._ranks[rank] = _GrowingRank(folder, rank)
        additions = [each.look() for _, each in sorted(self._ranks.items())]
        return Added(
            run=run,
            is_another_run=is_another,
            ranks=tuple(added for added in additions if added is not None),
            num_bad_lines=sum(rank.num_bad for rank in self._ranks.values()),
            problems=tuple(text for rank in self._ranks.values() for text in rank.problems),
            is_there=folders is not None,
        )


def rank_folders(path: Path) -> list[tuple[int, Path]] | None:
    """Ranks and their folders, ascending; None if the directory cannot be read."""
    try:
        with os.scandir(path) as entries:
            named = [(_RANK_FOLDER.fullmatch(entry.name), entry.path) for entry in entries]
    except OSError:
        return None
    return sorted((int(match[1]), Path(place)) for match, place in named if match)


_LINES: Final[Mapping[str, tuple[str, str, type[Any]]]] = {
    "steps": (STEPS_FILE, "distprof.steps/1", StepRecord),
    "samples": (NVML_FILE, "distprof.nvml/1", NvmlRecord),
    "memory": (MEMORY_FILE, "distprof.memory/1", MemoryRecord),
    "pauses": (PAUSES_FILE, "distprof.pauses/1", Pause),
    "collectives": (COLLECTIVES_FILE, "distprof.collectives/1", CollectivesRecord),
}
"""Line-based files with their schemas and records, by fields of :class:`RankAdded`."""


def _line_files(
    folder: Path, rank: int, names: Iterable[str], *, whole: bool = False
) -> dict[str, GrowingFile[Any]]:
    files = ((name, *_LINES[name]) for name in names)
    return {
        name: GrowingFile(folder / file, schema, kind, rank, whole=whole)
        for name, file, schema, kind in files
    }


def _bad_lines(files: Mapping[str, GrowingFile[Any]]) -> int:
    return sum(file.num_bad for file in files.values())


class _GrowingRank:
    """The growing files of one rank."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._rank = rank
        self._lines = _line_files(folder, rank, _LINES)
        self._whole: dict[str, _WholeFile[Any]] = {
            "said": _WholeFile(folder / RANK_FILE, RankFile),
            "error": _WholeFile(folder / ERROR_FILE, ErrorFile),
            "exit": _WholeFile(folder / EXIT_FILE, ExitFile),
            "process": _WholeFile(folder / ATTACH_FILE, AttachFile),
        }
        self._num_looks = 0

    @property
    def num_bad(self) -> int:
        return _bad_lines(self._lines)

    @property
    def problems(self) -> list[str]:
        return [
            f"{file._path.name} of rank {self._rank} is not read: {file.problem}"
            for file in self._lines.values()
            if file.problem
        ]

    def look(self) -> RankAdded | None:
        added: dict[str, Any] = {"steps": tuple(self._lines["steps"].added())}
        check_all = not added["steps"] or self._num_looks % _QUIET_LOOKS == 0
        self._num_looks += 1
        for name, file in self._lines.items():
            if name != "steps" and (check_all or name != "memory"):
                added[name] = tuple(file.added())
        for name, whole in self._whole.items() if check_all else ():
            new = whole.new()
            added[name] = new if getattr(new, "rank", self._rank) == self._rank else None
        return RankAdded(rank=self._rank, **added) if any(added.values()) else None


RECENT = 64  # steps of a rank whose durations are kept
_MAX_STEP_NS = 10**16  # four months: not a step, but a clock that was set
_MAX_NS = 1 << 62


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


_PHASES = ("input", "forward", "backward", "optimizer")
# Stands for phases with names of the program's own, of which there may be any number.
_OTHER = "other"
_THREAD = {
    "running": "cpu_ns",
    "waiting_for_cpu": "run_queue_ns",
    "waiting_for_input": "input_asleep_ns",
}


def _added(total: int | None, more: int | None) -> int | None:
    return total if more is None else (total or 0) + more


_FOLLOWED = ("steps", "memory", "samples", "collectives")


class LiveRun:
    """A run directory that is polled."""

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
        self._files: dict[int, dict[str, GrowingFile[Any]]] = {}

    def look(self) -> None:
        """Read what all ranks have added; files that cannot be read now are read later."""
        for rank_number, folder in rank_folders(self.path) or ():
            if rank_number not in self.ranks and len(self.ranks) < MAX_RANKS:
                self.ranks[rank_number] = LiveRank(rank=rank_number)
                self._files[rank_number] = _line_files(folder, rank_number, _FOLLOWED, whole=True)
        for number, files in self._files.items():
            rank = self.ranks[number]
            num_starts, num_bad = files["steps"].num_starts, _bad_lines(files)
            added = {name: file.added() for name, file in files.items()}
            if num_starts and files["steps"].num_starts > num_starts:  # by another job
                rank = self.ranks[number] = LiveRank(rank=number)
            for step in added["steps"]:
                if rank.take(step) and self.on_step is not None:
                    self.on_step(number, step)
            for record in added["collectives"]:
                rank.take_collectives(record)
            rank.memory = next(reversed(added["memory"]), rank.memory)
            rank.sensors = next(reversed(added["samples"]), rank.sensors)
            rank.num_bad += _bad_lines(files) - num_bad

    @property
    def job(self) -> RunFile | None:
        """run.json as it is now; None if it cannot be read."""
        try:
            data = read_plain(self.path / RUN_FILE, MAX_RUN_BYTES)
            return msgspec.json.decode(data, type=RunFile)
        except (OSError, *BROKEN):
            return None
