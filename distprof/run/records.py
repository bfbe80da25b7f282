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
from numpy.typing import NDArray

from distprof.artefacts.records import CollectivesRecord
from distprof.artefacts.settings_file import SettingsFile
from distprof.schema import Column, Int64Array, Table, TableSchema

NO_THROTTLING = "none"
"""Value of ``throttle_reasons`` if the GPU reports that it is not throttled."""

_STEP = Column(name="step", dtype="int64", doc="Step number, from 0 at the start of the session.")

_TIME = Column(name="t_ns", dtype="int64", unit="ns", doc="Time of the record.")

_START = Column(name="start_ns", dtype="int64", unit="ns", doc="Start.")

_END = Column(name="end_ns", dtype="int64", unit="ns", doc="End, never before the start.")


def _count(name: str, doc: str, unit: str = "") -> Column:
    return Column(name=name, dtype="int64", unit=unit, nullable=True, doc=doc)


def _number(name: str, doc: str, unit: str = "") -> Column:
    return Column(name=name, dtype="float64", unit=unit, nullable=True, doc=doc)


STEP_LOG = TableSchema(
    name="step_log",
    doc="Every training step as the training thread saw it, traced or not.",
    columns=(
        _STEP,
        _START,
        _END,
        _count("tokens", "Tokens this rank trained on."),
        _count("samples", "Samples this rank trained on."),
        _number("loss", "Loss that the training code reported."),
        _count("num_micro_batches", "Forward passes in the step."),
        _count("run_queue_ns", "Time in which the thread was ready to run but had no CPU.", "ns"),
        _count("cpu_ns", "Time in which the thread ran on a CPU.", "ns"),
        Column(name="is_traced", dtype="bool", doc="Whether torch.profiler was recording."),
        Column(name="is_light", dtype="bool", doc="Whether it recorded the GPU alone."),
        _count(
            "gpu_behind",
            "1 if the GPU had not finished the step before when the CPU ended this one, else 0.",
        ),
        Column(
            name="is_probed",
            dtype="bool",
            doc="False while the probes paused to measure their own cost.",
        ),
    ),
)

PHASES = TableSchema(
    name="phases",
    doc="Parts of steps, in order of time.",
    columns=(
        _STEP,
        Column(name="name", dtype="category", doc="input, forward, backward, optimizer, or other."),
        _START,
        _END,
    ),
)

MEMORY_LOG = TableSchema(
    name="memory_log",
    doc="Memory at the end of steps.",
    columns=(
        _STEP,
        _TIME,
        _count("allocated_bytes", "Held by tensors on the GPU.", "B"),
        _count("peak_allocated_bytes", "Peak since the previous step.", "B"),
        _count("reserved_bytes", "Held by the caching allocator.", "B"),
        _count("num_retries", "Allocations retried after freeing the cache, since the start."),
        _count("rss_bytes", "Resident memory of the process.", "B"),
    ),
)

TELEMETRY = TableSchema(
    name="telemetry",
    doc="Samples of the GPU's sensors.",
    columns=(
        _TIME,
        _count("sm_clock_mhz", "Clock frequency of the streaming multiprocessors.", "MHz"),
        _count("memory_clock_mhz", "Clock frequency of the memory.", "MHz"),
        Column(
            name="throttle_reasons",
            dtype="category",
            nullable=True,
            doc=(
                f"Reasons why the GPU is throttled, joined by commas; {NO_THROTTLING} if it is not."
            ),
        ),
        _number("power_w", "Power.", "W"),
        _number("energy_j", "Energy used since the driver was loaded.", "J"),
        _count("temperature_c", "Temperature.", "°C"),
        _number("gpu_utilization_ratio", "Share of the last period with a kernel running."),
        _number("memory_utilization_ratio", "Share of the last period with memory busy."),
        _count("memory_used_bytes", "Used on the whole GPU, by all processes.", "B"),
        _count("pcie_tx_bytes_per_s", "From the GPU.", "B/s"),
        _count("pcie_rx_bytes_per_s", "To the GPU.", "B/s"),
        _count("nvlink_tx_bytes", "Sent since the counters started, all links.", "B"),
        _count("nvlink_rx_bytes", "Received since the counters started, all links.", "B"),
        _count("ecc_uncorrected", "Uncorrected errors since the driver was loaded."),
        _count("num_processes", "Processes that compute on the GPU."),
        Column(
            name="xid",
            dtype="category",
            nullable=True,
            doc="XID error numbers since the last sample, joined by commas.",
        ),
    ),
)

ROUTING = TableSchema(
    name="routing",
    doc="Routing of one micro-batch by one mixture-of-experts layer.",
    columns=(
        _STEP,
        Column(name="layer", dtype="category", doc="Index or name of the layer."),
        Column(name="micro_batch", dtype="int64", doc="Index within the step."),
        Column(name="num_tokens", dtype="int64", doc="Tokens routed."),
        Column(name="top_k", dtype="int64", doc="Experts per token."),
        _count("capacity", "Maximum number of assignments that an expert takes from this rank."),
        Column(name="dropped", dtype="int64", doc="Assignments over capacity."),
        _number("aux_loss", "Load-balancing loss."),
        Column(name="first", dtype="int64", doc="Index of the first count in ``expert_tokens``."),
        Column(name="num_experts", dtype="int64", doc="Number of counts."),
    ),
)

PAUSES = TableSchema(
    name="pauses",
    doc="Time that the training thread spent on something other than the model.",
    columns=(
        Column(name="kind", dtype="category", doc="gc: garbage collection; input: data loader."),
        _START,
        _END,
        _count("step", "Step in which it happened."),
        _count("generation", "Generation of the garbage collection."),
        _count("num_collected", "Objects freed."),
        _count("cpu_ns", "Time that the loaders of the batch ran on a CPU."),
        _count("run_queue_ns", "Time that they were ready to run but had no CPU."),
        Column(
            name="in_phase", dtype="bool", doc="Whether a phase ``input`` already counts this time."
        ),
    ),
)

CLOCK_STAMPS = TableSchema(
    name="clock_stamps",
    doc="Time exchanges with rank 0, as in NTP.",
    columns=(
        Column(name="t_sent_ns", dtype="int64", unit="ns", doc="Own clock when the request left."),
        Column(
            name="t_server_ns", dtype="int64", unit="ns", doc="Rank 0's clock when it answered."
        ),
        Column(
            name="t_received_ns",
            dtype="int64",
            unit="ns",
            doc="Own clock when the answer arrived.",
        ),
    ),
)

RECORD_TABLES = (STEP_LOG, PHASES, MEMORY_LOG, TELEMETRY, ROUTING, PAUSES, CLOCK_STAMPS)


SETTLE = 3
"""First steps of a log, which include initialisation."""

FEW_STEPS = 4
"""With fewer untraced steps before the profiler, those after it count, too. With fewer than this in
all, the first steps count as well, except the very first."""

AS_BEFORE = 1.02
"""Steps after the profiler count if their median is at most this many times that of steps before:
while CUPTI is attached, each launch takes longer."""


def untraced_steps(log: Table) -> NDArray[np.bool_]:
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
    about: Mapping[str, Mapping[str, Any]] = msgspec.field(default_factory=dict)
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


FLIGHT = TableSchema(
    name="flight",
    doc="Operations of process groups that one rank launched, in order of launch.",
    columns=(
        Column(name="record", dtype="int64", doc="Number of the entry since the start of the job.",
               nullable=True),
        Column(name="pg", dtype="int64", doc="Number of the group within the process.",
               nullable=True),
        Column(name="group", dtype="category", doc="Name of the process group."),
        Column(name="description", dtype="category", doc=(
            "Description that the program gave the group."
        ),
               nullable=True),
        Column(name="seq", dtype="int64", doc="Sequence number of the collective in its group.",
               nullable=True),
        Column(name="p2p_seq", dtype="int64", doc="Sequence number among messages of the group.",
               nullable=True),
        Column(name="name", dtype="category", doc="Name in PyTorch, for example nccl:all_reduce."),
        Column(name="kind", dtype="int8", doc="A CollectiveKind."),
        Column(name="is_p2p", dtype="bool", doc="Whether it is a message between two ranks."),
        Column(name="shape", dtype="category", doc="Sizes of inputs and outputs, for display."),
        Column(name="in_dtype", dtype="category", doc="Data types of the inputs.", nullable=True),
        Column(name="in_elements", dtype="int64", doc="Elements of the inputs.", nullable=True),
        Column(name="out_elements", dtype="int64", doc="Elements of the outputs.", nullable=True),
        Column(name="state", dtype="int8", doc="A FlightState."),
        Column(name="retired", dtype="bool", doc="Whether the recorder stopped tracking it."),
        Column(name="created_ns", dtype="int64", unit="ns",
               doc="When the CPU launched it, since the epoch on its own clock.", nullable=True),
        Column(name="started_ns", dtype="int64", unit="ns",
               doc="When the recorder saw that it had started.", nullable=True),
        Column(name="completed_ns", dtype="int64", unit="ns",
               doc="When the recorder saw that it had completed.", nullable=True),
        Column(name="timeout_ms", dtype="int64", unit="ms", doc="Timeout of its group.",
               nullable=True),
        Column(name="frame", dtype="category", doc="The call that launched it.",
               nullable=True),
    ),
)  # fmt: skip


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
    # Number of a group within the process to its progress.
    status: dict[int, GroupStatus] = msgspec.field(default_factory=dict)
    host: str = ""  # Host name, empty if unknown.
    # When the file was last written, ns since the epoch; None if unknown.
    written_ns: int | None = None
    digest: str = ""  # Digest of the file.
    notes: tuple[str, ...] = ()  # Damaged or skipped data, one sentence each.
