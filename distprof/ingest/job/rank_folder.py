"""The records of one rank, from the files in its folder."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.artefacts import (
    CLOCK_FILE,
    COLLECTIVES_FILE,
    MEMORY_FILE,
    MOE_FILE,
    NCCL_LOG_FILE,
    NVML_FILE,
    PAUSES_FILE,
    SETTINGS_FILE,
    SETTINGS_SCHEMA,
    STEPS_FILE,
)
from distprof.artefacts.records import (
    ClockStamp,
    CollectivesRecord,
    Header,
    MemoryRecord,
    MoeRecord,
    NvmlRecord,
    Pause,
    StepRecord,
)
from distprof.artefacts.run_file import SettingsFile
from distprof.bounds import Bound, decode_json
from distprof.ingest.files import Folder
from distprof.run.records import (
    CLOCK_STAMPS,
    MEMORY_LOG,
    NO_THROTTLING,
    PAUSES,
    PHASES,
    ROUTING,
    STEP_LOG,
    TELEMETRY,
    RankRecords,
)
from distprof.schema import ABSENT, Coded, Column, Table, TableSchema

MAX_LINE_BYTES = 1 << 20  # longer lines are not records: they are skipped and counted
MAX_RECORDS = 2_000_000  # further ones of a file are skipped and reported: memory stays bounded

BOUND = Bound(
    reads="records of a probe, a line each",
    num_bytes=MAX_LINE_BYTES * MAX_RECORDS,
    rows=MAX_RECORDS,
    depth=1_000,
    beyond="skipped",
    seconds_per_mb=2,
)

_BLOCK_BYTES = 1 << 20
BROKEN = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, OverflowError)


class LineFile(msgspec.Struct, kw_only=True):
    """How reading one file went."""

    name: str  # Name of the file.
    # What its header says about all lines.
    about: dict[str, Any] = msgspec.field(default_factory=dict)
    num_records: int = 0  # Lines that were used.
    num_bad: int = 0  # Lines that were not used: not JSON, other fields or types, or nonsense.
    is_cut: bool = False  # Whether the last line has no end, because its writer was stopped.
    is_capped: bool = False  # Whether there were more lines than are read.
    problem: str = ""  # Why the file was not read at all; usually empty.

    def notes(self) -> tuple[str, ...]:
        """What a reader of the report should know, one sentence each, without the rank."""
        if self.problem:
            return (f"{self.name} was not read: {self.problem}.",)
        notes = []
        if self.num_bad:
            lines = "line in" if self.num_bad == 1 else "lines in"
            notes.append(f"Skipped {self.num_bad:,} damaged {lines} {self.name}.")
        if self.is_cut:
            notes.append(f"The last line of {self.name} is cut off: its writer was stopped.")
        if self.is_capped:
            notes.append(
                f"{self.name} has more than {MAX_RECORDS:,} records: the rest was skipped."
            )
        return tuple(notes)


def read_lines(
    folder: Folder, name: str, schema: str, kind: type[Any], take: Callable[[Any], None]
) -> LineFile:
    """Read the records of one file in order; a file that does not exist has none.

    ``schema``, for example ``distprof.steps/1``, must be that of its header. ``take`` refuses
    nonsense with ValueError or OverflowError, which counts as a bad line.
    """
    file = LineFile(name=name)
    if folder.size(name) is None:
        return file
    try:
        with folder.open(name) as stream:
            decode = msgspec.json.Decoder(kind).decode
            lines = _lines(stream, file)
            first = next(lines, None)
            if first is None or not _accept_header(first, schema, file):
                return file
            for line in lines:
                if file.num_records >= MAX_RECORDS:
                    file.is_capped = True
                    break
                try:
                    take(decode(line))
                except BROKEN:
                    file.num_bad += not file.is_cut
                else:
                    file.num_records += 1
                    file.is_cut = False
    except OSError as error:
        file.problem = error.strerror or type(error).__name__
    return file


def _accept_header(line: bytes, schema: str, file: LineFile) -> bool:
    """Whether kind and version of the file are supported; a lost header does not rule it out."""
    try:
        header = msgspec.json.decode(line, type=Header)
    except BROKEN:
        file.num_bad += 1
        return True
    if header.schema == schema:
        file.about = header.about
        return True
    expected_kind, _, major = schema.partition("/")
    kind, _, version = header.schema.partition("/")
    if kind != expected_kind:
        file.problem = f"its schema is {header.schema[:60]!r}, not {schema!r}"
    else:
        file.problem = (
            f"it has version {version[:20]}, and this distprof reads version {major}: upgrade "
            "distprof"
        )
    return False


def _lines(stream: BinaryIO, file: LineFile) -> Iterator[bytes]:
    """Lines without their ends; over-long ones are counted."""
    rest = b""
    too_long = False
    while block := stream.read(_BLOCK_BYTES):
        parts = (rest + block).split(b"\n")
        rest = parts.pop()
        for part in parts:
            if too_long or len(part) > MAX_LINE_BYTES:
                file.num_bad += 1
                too_long = False
            elif part.strip():
                yield part
        if len(rest) > MAX_LINE_BYTES:
            rest, too_long = b"", True
    if too_long:
        file.num_bad += 1
    elif rest.strip():
        file.is_cut = True  # unless it turns out to be whole
        yield rest


# Columns that records are collected in, one table's worth ----------------------------------------

MAX_NAME = 200  # longer ones are cut: a table of them could fill the memory
_MAX_NAMES = 100_000
_LARGEST = 1 << 62  # sums of two still fit int64


class Columns:
    """Collects rows of a table as compact arrays."""

    def __init__(self, schema: TableSchema) -> None:
        self._schema = schema
        self._values: list[Any] = [array("d" if c.dtype == "float64" else "q") for c in schema]
        self._names: list[dict[str, int]] = [{} for _ in schema]
        self._of_record = attrgetter(*schema.names)

    def __len__(self) -> int:
        return len(self._values[0])

    def add(self, *values: Any) -> None:
        """Add a row, all of it or nothing; None stands for an unknown value."""
        row = [
            self._stored(i, column, value)
            for i, (column, value) in enumerate(zip(self._schema, values, strict=True))
        ]
        for column_values, value in zip(self._values, row, strict=True):
            column_values.append(value)

    def add_record(self, record: Any) -> None:
        """Add a row whose columns are fields of a record."""
        self.add(*self._of_record(record))

    def table(self) -> Table:
        """The rows so far."""
        columns: dict[str, NDArray[Any] | Coded] = {}
        for column, stored, names in zip(self._schema, self._values, self._names, strict=True):
            values = np.array(stored)
            if column.dtype == "category":
                columns[column.name] = Coded(values.astype(np.int32), tuple(names))
            else:
                columns[column.name] = values.astype(np.dtype(column.dtype))
        return Table(self._schema, columns)

    def _stored(self, index: int, column: Column, value: Any) -> float | int:
        if column.dtype == "category":
            names, name = self._names[index], value or ""
            if len(names) >= _MAX_NAMES and name not in names:
                raise ValueError(f"more than {_MAX_NAMES} names")
            return names.setdefault(name[:MAX_NAME], len(names))
        if column.dtype == "float64":
            return float("nan") if value is None else float(value)
        if value is None and column.nullable:
            return ABSENT
        if value is None or not 0 <= value < _LARGEST:
            raise ValueError(f"{column.name} is {value}")
        return int(value)


# The records of one rank, from the files in its folder -------------------------------------------

MAX_EXPERT_COUNTS = 20_000_000  # of tokens per expert, kept for one rank: 160 MB
MAX_EXPERTS = 1 << 16
MAX_PHASES = 10_000  # of one step
MAX_SETTINGS_BYTES = 1 << 22
MAX_GPU_STEPS = 128  # last steps whose collectives are kept: enough to tell lateness from chance
_MOST_NS = 1 << 53


class RankFolder(msgspec.Struct, frozen=True):
    """A rank's folder in a run directory, the source of its records."""

    rank: int  # Global rank.
    path: str  # Local path or fsspec URL.

    def load(self) -> RankRecords:
        """Read all line-based files except clock stamps, which are read when ranks are joined."""
        folder = Folder(self.path)
        steps, moe = _Steps(), _Routing()
        memory, telemetry, pauses = Columns(MEMORY_LOG), Columns(TELEMETRY), Columns(PAUSES)
        collectives: deque[CollectivesRecord] = deque(maxlen=MAX_GPU_STEPS)

        def take_pause(record: Pause) -> None:
            _check_span(record.start_ns, record.end_ns)
            pauses.add_record(record)

        def take(record: NvmlRecord) -> None:
            reasons = record.throttle_reasons
            reasons_text = None if reasons is None else ",".join(reasons) or NO_THROTTLING
            values = {name: getattr(record, name) for name in TELEMETRY.names}
            values |= {"throttle_reasons": reasons_text, "xid": ",".join(map(str, record.xid))}
            telemetry.add(*values.values())

        kinds: dict[str, tuple[str, str, type[Any], Callable[[Any], None]]] = {
            "step_log": (STEPS_FILE, "distprof.steps/1", StepRecord, steps.take),
            "memory_log": (MEMORY_FILE, "distprof.memory/1", MemoryRecord, memory.add_record),
            "telemetry": (NVML_FILE, "distprof.nvml/1", NvmlRecord, take),
            "routing": (MOE_FILE, "distprof.moe/1", MoeRecord, moe.take),
            "pauses": (PAUSES_FILE, "distprof.pauses/1", Pause, take_pause),
            "collectives": (
                *(COLLECTIVES_FILE, "distprof.collectives/1", CollectivesRecord),
                _plausible_into(collectives),
            ),
        }
        files = {name: read_lines(folder, *how) for name, how in kinds.items()}
        step_log, phases = steps.tables()
        settings, notes = _settings(folder, self.rank)
        return RankRecords(
            rank=self.rank,
            step_log=step_log,
            phases=phases,
            memory=memory.table(),
            telemetry=telemetry.table(),
            routing=moe.columns.table(),
            expert_tokens=np.array(moe.tokens, dtype=np.int64),
            pauses=pauses.table(),
            gpu_collectives=tuple(sorted(collectives, key=attrgetter("step"))),
            about={name: file.about for name, file in files.items() if file.about},
            nccl_log_bytes=folder.size(NCCL_LOG_FILE),
            settings=settings,
            notes=tuple(n for file in files.values() for n in file.notes()) + notes,
        )


def _settings(folder: Folder, rank: int) -> tuple[SettingsFile | None, tuple[str, ...]]:
    """settings.json and a note if it is damaged; None if there is no usable file."""
    if folder.size(SETTINGS_FILE) is None:
        return None, ()
    try:
        data = folder.read(SETTINGS_FILE, MAX_SETTINGS_BYTES)
        settings = decode_json(data, SettingsFile)
    except (OSError, *BROKEN):
        return None, (f"{SETTINGS_FILE} is damaged and was ignored.",)
    if settings.schema != SETTINGS_SCHEMA or settings.rank != rank:
        return None, (f"{SETTINGS_FILE} has another version or rank and was ignored.",)
    return settings, ()


def read_clock_stamps(rank: int, path: str) -> tuple[Table, tuple[str, ...]]:
    """CLOCK_STAMPS table of a rank, and notes on damage."""
    columns = Columns(CLOCK_STAMPS)

    def take(record: ClockStamp) -> None:
        if record.t_received_ns < record.t_sent_ns:
            raise ValueError("the answer precedes the question")
        columns.add(record.t_sent_ns, record.t_server_ns, record.t_received_ns)

    file = read_lines(Folder(path), CLOCK_FILE, "distprof.clock/1", ClockStamp, take)
    return columns.table(), tuple(f"Rank {rank}: {note}" for note in file.notes())


class _Steps:
    """Steps and their phases."""

    def __init__(self) -> None:
        self.steps = Columns(STEP_LOG)
        self.phases = Columns(PHASES)

    def take(self, record: StepRecord) -> None:
        """Add a step; a step that is written twice (by a restarted session) counts twice."""
        _check_span(record.start_ns, record.end_ns)
        if len(record.phases) > MAX_PHASES:
            raise ValueError("too many phases")
        self.steps.add_record(record)
        for phase in record.phases:
            if phase.end_ns >= phase.start_ns:
                self.phases.add(record.step, phase.name, phase.start_ns, phase.end_ns)

    def tables(self) -> tuple[Table, Table]:
        steps = self.steps.table()
        return steps.take(np.argsort(steps["start_ns"], kind="stable")), self.phases.table()


class _Routing:
    """Routing records; all counts are in one array."""

    def __init__(self) -> None:
        self.columns = Columns(ROUTING)
        self._of_record = attrgetter(*ROUTING.names[:-2])  # the last two say where its counts are
        self.tokens = array("q")

    def take(self, record: MoeRecord) -> None:
        counts = record.tokens_per_expert
        if not 0 < len(counts) <= MAX_EXPERTS or min(counts) < 0 or max(counts) >= 1 << 40:
            raise ValueError("no token counts")
        if len(self.tokens) + len(counts) > MAX_EXPERT_COUNTS:
            raise ValueError("more counts than distprof keeps")
        self.columns.add(*self._of_record(record), len(self.tokens), len(counts))
        self.tokens.extend(counts)


def _plausible_into(collectives: deque[CollectivesRecord]) -> Callable[[CollectivesRecord], None]:
    def take(record: CollectivesRecord) -> None:
        numbers = [record.step]
        for each in record.groups:
            numbers += each.num_ranks, each.first, each.num, *each.total_ns, *each.last_ns
        if not all(0 <= number < _MOST_NS for number in numbers):
            raise ValueError("a count or duration is negative or absurd")
        collectives.append(record)

    return take


def _check_span(start_ns: int, end_ns: int) -> None:
    if end_ns < start_ns:
        raise ValueError("ends before it starts")
