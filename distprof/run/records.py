"""Probe records of one rank: step log, counters, routing, pauses.

All times are int64 ns since the epoch on that rank's own clock. In float columns NaN means
unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Protocol

import msgspec
import numpy as np

from distprof.artefacts.records import CollectivesRecord
from distprof.artefacts.run_file import SettingsFile
from distprof.schema import Bools, Int64Array, Table, schemas_beside

NO_THROTTLING = "none"
"""Value of ``throttle_reasons`` if the GPU reports that it is not throttled."""


_SCHEMAS = schemas_beside(__package__, "records.toml")

STEP_LOG = _SCHEMAS["step_log"]
PHASES = _SCHEMAS["phases"]
MEMORY_LOG = _SCHEMAS["memory_log"]
TELEMETRY = _SCHEMAS["telemetry"]
ROUTING = _SCHEMAS["routing"]
PAUSES = _SCHEMAS["pauses"]
CLOCK_STAMPS = _SCHEMAS["clock_stamps"]

RECORD_TABLES = (STEP_LOG, PHASES, MEMORY_LOG, TELEMETRY, ROUTING, PAUSES, CLOCK_STAMPS)
SETTLE = 3
"""First steps of a log, which include initialisation."""

FEW_STEPS = 4
"""With fewer untraced steps before the profiler, those after it count, too. With fewer than this in
all, the first steps count as well, except the very first."""

AS_BEFORE = 1.02
"""Steps after the profiler count if their median is at most this many times that of steps before:
while CUPTI is attached, each launch takes longer."""


def untraced_steps(log: Table) -> Bools:
    """Mask of the steps that are as long as without a profiler.

    Steps next to traced ones do not count, and those after them only if they are as fast as those
    before, or if there are hardly any before.
    """
    row = np.arange(len(log))
    traced = np.flatnonzero(log["is_traced"])
    first, last = (traced[0], traced[-1]) if len(traced) else (len(log) + 1, len(log))
    before, after = row < first - 1, row > last + 1
    settled = before & (row >= SETTLE)
    if settled.sum() >= FEW_STEPS:
        duration = log["end_ns"] - log["start_ns"]
        usual = np.median(duration[settled])
        is_as_before = after.any() and np.median(duration[after]) <= AS_BEFORE * usual
        return settled | after if is_as_before else settled
    known = settled | after
    if known.sum() < FEW_STEPS:
        known |= before & (row > 0)
    return known if known.any() else before


class RankRecords(msgspec.Struct, frozen=True, kw_only=True):
    """The records of one rank; a table is empty if its file does not exist."""

    rank: int  # Global rank.
    # STEP_LOG table, ascending by step.
    step_log: Table = msgspec.field(default_factory=lambda: Table.empty(STEP_LOG))
    phases: Table = msgspec.field(default_factory=lambda: Table.empty(PHASES))  # PHASES table.
    # MEMORY_LOG table.
    memory: Table = msgspec.field(default_factory=lambda: Table.empty(MEMORY_LOG))
    # TELEMETRY table.
    telemetry: Table = msgspec.field(default_factory=lambda: Table.empty(TELEMETRY))
    routing: Table = msgspec.field(default_factory=lambda: Table.empty(ROUTING))  # ROUTING table.
    # int64, counts of tokens per expert, one row of ``routing`` after another.
    expert_tokens: Int64Array = msgspec.field(default_factory=lambda: np.empty(0, np.int64))
    pauses: Table = msgspec.field(default_factory=lambda: Table.empty(PAUSES))  # PAUSES table.
    # Durations of collectives on the GPU in the last steps, ascending by step.
    gpu_collectives: tuple[CollectivesRecord, ...] = ()
    # Table name to the properties that its file gives for all rows.
    about: Mapping[str, Mapping[str, Any]] = {}
    nccl_log_bytes: int | None = None  # Size of the NCCL log, None without one.
    # Configuration read from the job's objects, None if not recorded.
    settings: SettingsFile | None = None
    notes: tuple[str, ...] = ()  # Damaged or skipped data, one sentence each.


class RecordSource(Protocol):
    """Source of the records of a rank. Picklable."""

    @property
    def rank(self) -> int:
        """Global rank."""
        ...

    def load(self) -> RankRecords:
        """Read the records. Damage is counted and reported in ``notes``, never raised."""
        ...


# Flight Recorder: launched operations, groups and their progress ----------------------------------


class FlightState(IntEnum):
    """Progress of an operation, as the recorder saw it. Stored as int8."""

    UNKNOWN = 0
    SCHEDULED = 1  # launched by the CPU
    STARTED = 2  # on the GPU; known only if timing is recorded
    COMPLETED = 3


FLIGHT = _SCHEMAS["flight"]


class FlightGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A process group as a rank's dump describes it."""

    name: str  # Its name; several groups may share one.
    description: str = ""  # Description that the program gave it, empty if none.
    # Global ranks of its members, ascending; empty if the dump does not list them.
    ranks: tuple[int, ...] = ()


class GroupStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of one group on one rank as sequence numbers, None if unknown."""

    enqueued: int | None = None  # Last operation that the CPU launched.
    started: int | None = None  # Last operation that started on the GPU; None if timing is off.
    completed: int | None = None  # Last operation that completed.


class FlightDump(msgspec.Struct, frozen=True, kw_only=True):
    """The dump of one rank."""

    rank: int  # Global rank.
    source: str  # File it was read from.
    entries: Table  # FLIGHT table.
    version: str = ""  # Version of the format, for example ``2.9``.
    library: str = ""  # Version of NCCL or of the library used instead, empty if unknown.
    # Groups that the rank is a member of, by the recorder's name.
    groups: tuple[FlightGroup, ...] = ()
    status: dict[int, GroupStatus] = {}  # Number of a group within the process to its progress.
    host: str = ""  # Host name, empty if unknown.
    # When the file was last written, ns since the epoch; None if unknown.
    written_ns: int | None = None
    digest: str = ""  # Digest of the file.
    notes: tuple[str, ...] = ()  # Damaged or skipped data, one sentence each.
