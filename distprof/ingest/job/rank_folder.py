"""The records of one rank, from the files in its folder."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from distprof.artefacts import (
    CLOCK_FILE,
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
    MemoryRecord,
    MoeRecord,
    NvmlRecord,
    Pause,
    StepRecord,
)
from distprof.artefacts.settings_file import SettingsFile
from distprof.ingest.job.columns import Columns
from distprof.ingest.job.files import Folder
from distprof.ingest.job.lines import LineFile, read_lines
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
from distprof.schema import Table, TableSchema

__all__ = ["RankFolder", "read_clock_stamps"]

MAX_EXPERT_COUNTS = 20_000_000
"""Counts of tokens per expert that are kept of one rank: 160 MB."""

MAX_EXPERTS = 1 << 16
MAX_PHASES = 10_000  # of one step
MAX_SETTINGS_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class RankFolder:
    """A rank's folder in a run directory: where its records come from.

    Args:
        rank: Global rank.
        path: Local path or fsspec URL.
    """

    rank: int
    path: str

    def load(self) -> RankRecords:
        """Read all line-wise files but the clock stamps, which are used when ranks are joined."""
        folder = Folder(self.path)
        steps, moe = _Steps(), _Routing()
        memory, telemetry, pauses = Columns(MEMORY_LOG), Columns(TELEMETRY), Columns(PAUSES)
        kinds: dict[str, tuple[str, str, type[Any], Callable[[Any], None]]] = {
            "step_log": (STEPS_FILE, "distprof.steps/1", StepRecord, steps.take),
            "memory_log": (
                MEMORY_FILE, "distprof.memory/1", MemoryRecord, _by_name(memory, MEMORY_LOG)
            ),
            "telemetry": (NVML_FILE, "distprof.nvml/1", NvmlRecord, _sample_into(telemetry)),
            "routing": (MOE_FILE, "distprof.moe/1", MoeRecord, moe.take),
            "pauses": (PAUSES_FILE, "distprof.pauses/1", Pause, _pause_into(pauses)),
        }  # fmt: skip
        files = {name: read_lines(folder, *how) for name, how in kinds.items()}
        step_log, phases = steps.tables()
        settings, note = _settings(folder, self.rank)
        return RankRecords(
            rank=self.rank,
            step_log=step_log,
            phases=phases,
            memory=memory.table(),
            telemetry=telemetry.table(),
            routing=moe.columns.table(),
            expert_tokens=np.array(moe.tokens, dtype=np.int64),
            pauses=pauses.table(),
            about={name: file.about for name, file in files.items() if file.about},
            nccl_log_bytes=folder.size(NCCL_LOG_FILE),
            settings=settings,
            notes=_notes(list(files.values())) + ((note,) if note else ()),
        )


def _settings(folder: Folder, rank: int) -> tuple[SettingsFile | None, str]:
    """settings.json, None where there is none; and what is wrong with it."""
    if folder.size(SETTINGS_FILE) is None:
        return None, ""
    try:
        data = folder.read(SETTINGS_FILE, MAX_SETTINGS_BYTES)
        settings = msgspec.json.decode(data, type=SettingsFile)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        return None, f"{SETTINGS_FILE} is damaged and not used"
    if settings.schema != SETTINGS_SCHEMA or settings.rank != rank:
        return None, f"{SETTINGS_FILE} is of another version or rank and not used"
    return settings, ""


def read_clock_stamps(rank: int, path: str) -> tuple[Table, tuple[str, ...]]:
    """CLOCK_STAMPS table of a rank, and what was damaged.

    Args:
        rank: Global rank.
        path: Its folder.
    """
    columns = Columns(CLOCK_STAMPS)

    def take(record: ClockStamp) -> None:
        if record.t_received_ns < record.t_sent_ns:
            raise ValueError("the answer came before the question")
        columns.add(record.t_sent_ns, record.t_server_ns, record.t_received_ns)

    file = read_lines(Folder(path), CLOCK_FILE, "distprof.clock/1", ClockStamp, take)
    return columns.table(), tuple(f"Rank {rank}: {note}" for note in file.notes())


class _Steps:
    """Steps and their phases."""

    def __init__(self) -> None:
        self.steps = Columns(STEP_LOG)
        self.phases = Columns(PHASES)

    def take(self, record: StepRecord) -> None:
        """Add a step; of a step that is written twice (a restarted session) both count."""
        _check_span(record.start_ns, record.end_ns)
        if len(record.phases) > MAX_PHASES:
            raise ValueError("too many phases")
        self.steps.add(
            record.step,
            record.start_ns,
            record.end_ns,
            record.tokens,
            record.samples,
            record.loss,
            record.num_micro_batches,
            record.is_traced,
            record.is_probed,
        )
        for phase in record.phases:
            if phase.end_ns >= phase.start_ns:
                self.phases.add(record.step, phase.name, phase.start_ns, phase.end_ns)

    def tables(self) -> tuple[Table, Table]:
        """Steps in order of time, and phases."""
        steps = self.steps.table()
        return steps.take(np.argsort(steps["start_ns"], kind="stable")), self.phases.table()


class _Routing:
    """Routing records; counts lie in one array."""

    def __init__(self) -> None:
        self.columns = Columns(ROUTING)
        self.tokens = array("q")

    def take(self, record: MoeRecord) -> None:
        """Add the routing of one micro-batch."""
        counts = record.tokens_per_expert
        if not 0 < len(counts) <= MAX_EXPERTS or min(counts) < 0 or max(counts) >= 1 << 40:
            raise ValueError("no counts of tokens")
        if len(self.tokens) + len(counts) > MAX_EXPERT_COUNTS:
            raise ValueError("more counts than are kept")
        self.columns.add(
            record.step,
            record.layer,
            record.micro_batch,
            record.num_tokens,
            record.top_k,
            record.capacity,
            record.dropped,
            record.aux_loss,
            len(self.tokens),
            len(counts),
        )
        self.tokens.extend(counts)


def _by_name(columns: Columns, schema: TableSchema) -> Callable[[Any], None]:
    """Adds records whose fields are called as the table's columns."""
    return lambda record: columns.add(*(getattr(record, name) for name in schema.names))


def _sample_into(columns: Columns) -> Callable[[NvmlRecord], None]:
    """Adds sensor samples; a list becomes one text."""

    def take(record: NvmlRecord) -> None:
        reasons = record.throttle_reasons
        told = None if reasons is None else ",".join(reasons) or NO_THROTTLING
        values = {name: getattr(record, name) for name in TELEMETRY.names}
        values |= {"throttle_reasons": told, "xid": ",".join(map(str, record.xid))}
        columns.add(*values.values())

    return take


def _pause_into(columns: Columns) -> Callable[[Pause], None]:
    def take(record: Pause) -> None:
        _check_span(record.start_ns, record.end_ns)
        columns.add(*(getattr(record, name) for name in PAUSES.names))

    return take


def _check_span(start_ns: int, end_ns: int) -> None:
    if end_ns < start_ns:
        raise ValueError("ends before it starts")


def _notes(files: Sequence[LineFile]) -> tuple[str, ...]:
    return tuple(note for file in files for note in file.notes())
