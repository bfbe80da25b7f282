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
from distprof.schema import Bools, Column, Int64Array, Table, TableSchema, number, text, whole

NO_THROTTLING = "none"
"""Value of ``throttle_reasons`` if the GPU reports that it is not throttled."""

_STEP = Column("step", "int64", "Step number, from 0 at the start of the session.")
_TIME = Column("t_ns", "int64", "Time of the record.", unit="ns")
_START = Column("start_ns", "int64", "Start.", unit="ns")
_END = Column("end_ns", "int64", "End, never before the start.", unit="ns")


STEP_LOG = TableSchema(
    name="step_log",
    doc="Every training step as the training thread saw it, traced or not.",
    columns=(
        _STEP,
        _START,
        _END,
        whole("tokens", "Tokens this rank trained on."),
        whole("samples", "Samples this rank trained on."),
        number("loss", "Loss that the training code reported."),
        whole("num_micro_batches", "Forward passes in the step."),
        whole("run_queue_ns", "Time in which the thread was ready to run but had no CPU.", "ns"),
        whole("cpu_ns", "Time in which the thread ran on a CPU.", "ns"),
        Column("is_traced", "bool", "Whether torch.profiler was recording."),
        Column("is_light", "bool", "Whether it recorded the GPU alone."),
        whole(
            "gpu_behind",
            "1 if the GPU had not finished the step before when the CPU ended this one, else 0.",
        ),
        Column("is_probed", "bool", "False while the probes paused to measure their own cost."),
    ),
)

PHASES = TableSchema(
    name="phases",
    doc="Parts of steps, in order of time.",
    columns=(
        _STEP,
        Column("name", "category", "input, forward, backward, optimizer, or other."),
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
        whole("allocated_bytes", "Held by tensors on the GPU.", "B"),
        whole("peak_allocated_bytes", "Peak since the previous step.", "B"),
        whole("reserved_bytes", "Held by the caching allocator.", "B"),
        whole("num_retries", "Allocations retried after freeing the cache, since the start."),
        whole("rss_bytes", "Resident memory of the process.", "B"),
    ),
)

TELEMETRY = TableSchema(
    name="telemetry",
    doc="Samples of the GPU's sensors.",
    columns=(
        _TIME,
        whole("sm_clock_mhz", "Clock frequency of the streaming multiprocessors.", "MHz"),
        whole("memory_clock_mhz", "Clock frequency of the memory.", "MHz"),
        text(
            "throttle_reasons",
            f"Reasons why the GPU is throttled, joined by commas; {NO_THROTTLING} if it is not.",
        ),
        number("power_w", "Power.", "W"),
        number("energy_j", "Energy used since the driver was loaded.", "J"),
        whole("temperature_c", "Temperature.", "°C"),
        number("gpu_utilization_ratio", "Share of the last period with a kernel running."),
        number("memory_utilization_ratio", "Share of the last period with memory busy."),
        whole("memory_used_bytes", "Used on the whole GPU, by all processes.", "B"),
        whole("pcie_tx_bytes_per_s", "From the GPU.", "B/s"),
        whole("pcie_rx_bytes_per_s", "To the GPU.", "B/s"),
        whole("nvlink_tx_bytes", "Sent since the counters started, all links.", "B"),
        whole("nvlink_rx_bytes", "Received since the counters started, all links.", "B"),
        whole("ecc_uncorrected", "Uncorrected errors since the driver was loaded."),
        whole("num_processes", "Processes that compute on the GPU."),
        text("xid", "XID error numbers since the last sample, joined by commas."),
    ),
)

ROUTING = TableSchema(
    name="routing",
    doc="Routing of one micro-batch by one mixture-of-experts layer.",
    columns=(
        _STEP,
        Column("layer", "category", "Index or name of the layer."),
        Column("micro_batch", "int64", "Index within the step."),
        Column("num_tokens", "int64", "Tokens routed."),
        Column("top_k", "int64", "Experts per token."),
        whole("capacity", "Maximum number of assignments that an expert takes from this rank."),
        Column("dropped", "int64", "Assignments over capacity."),
        number("aux_loss", "Load-balancing loss."),
        Column("first", "int64", "Index of the first count in ``expert_tokens``."),
        Column("num_experts", "int64", "Number of counts."),
    ),
)

PAUSES = TableSchema(
    name="pauses",
    doc="Time that the training thread spent on something other than the model.",
    columns=(
        Column("kind", "category", "gc: garbage collection; input: data loader."),
        _START,
        _END,
        whole("step", "Step in which it happened."),
        whole("generation", "Generation of the garbage collection."),
        whole("num_collected", "Objects freed."),
        whole("cpu_ns", "Time that the loaders of the batch ran on a CPU."),
        whole("run_queue_ns", "Time that they were ready to run but had no CPU."),
        Column("in_phase", "bool", "Whether a phase ``input`` already counts this time."),
    ),
)

CLOCK_STAMPS = TableSchema(
    name="clock_stamps",
    doc="Time exchanges with rank 0, as in NTP.",
    columns=(
        Column("t_sent_ns", "int64", "Own clock when the request left.", unit="ns"),
        Column("t_server_ns", "int64", "Rank 0's clock when it answered.", unit="ns"),
        Column("t_received_ns", "int64", "Own clock when the answer arrived.", unit="ns"),
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
    step_log: Table = Table.empty(STEP_LOG)  # STEP_LOG table, ascending by step.
    phases: Table = Table.empty(PHASES)  # PHASES table.
    memory: Table = Table.empty(MEMORY_LOG)  # MEMORY_LOG table.
    telemetry: Table = Table.empty(TELEMETRY)  # TELEMETRY table.
    routing: Table = Table.empty(ROUTING)  # ROUTING table.
    # int64, counts of tokens per expert, one row of ``routing`` after another.
    expert_tokens: Int64Array = np.empty(0, np.int64)
    pauses: Table = Table.empty(PAUSES)  # PAUSES table.
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


FLIGHT = TableSchema(
    name="flight",
    doc="Operations of process groups that one rank launched, in order of launch.",
    columns=(
        whole("record", "Number of the entry since the start of the job."),
        whole("pg", "Number of the group within the process."),
        Column("group", "category", "Name of the process group."),
        text("description", "Description that the program gave the group."),
        whole("seq", "Sequence number of the collective in its group."),
        whole("p2p_seq", "Sequence number among messages of the group."),
        Column("name", "category", "Name in PyTorch, for example nccl:all_reduce."),
        Column("kind", "int8", "A CollectiveKind."),
        Column("is_p2p", "bool", "Whether it is a message between two ranks."),
        Column("shape", "category", "Sizes of inputs and outputs, for display."),
        text("in_dtype", "Data types of the inputs."),
        whole("in_elements", "Elements of the inputs."),
        whole("out_elements", "Elements of the outputs."),
        Column("state", "int8", "A FlightState."),
        Column("retired", "bool", "Whether the recorder stopped tracking it."),
        whole("created_ns", "When the CPU launched it, since the epoch on its own clock.", "ns"),
        whole("started_ns", "When the recorder saw that it had started.", "ns"),
        whole("completed_ns", "When the recorder saw that it had completed.", "ns"),
        whole("timeout_ms", "Timeout of its group.", "ms"),
        text("frame", "The call that launched it."),
    ),
)


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
