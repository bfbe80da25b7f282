"""Evidence from other tools about a job without traces; :meth:`Run.get` returns it by type.

It comprises logged operations (the table of a what-if study, or the timeline of a pipeline's own
timers), tokens per expert, collectives by rank, input readiness, and the topology of machines.
Times are int64 ns. Each log says whether its ranks share a clock.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from distprof.artefacts.fabric_file import GpuCopies
from distprof.schema import Column, Floats, Int64Array, Table, TableSchema, whole
from distprof.terms import CollectiveKind

OPERATIONS = TableSchema(
    name="operations",
    doc="Operations of workers as logged by another tool, by rank, step and start.",
    columns=(
        Column("rank", "int32", "Worker: a rank, or several ranks that act as one."),
        Column("dp_rank", "int32", "Data-parallel index.", nullable=True),
        Column("stage", "int32", "Pipeline stage.", nullable=True),
        Column("step", "int64", "Training step."),
        Column(
            "kind", "category", "forward-compute, backward-compute, or the name that the log uses."
        ),
        Column("start_ns", "int64", "Start, relative to that of the step.", unit="ns"),
        Column("end_ns", "int64", "End, never before the start.", unit="ns"),
        whole("seq", "Number among the operations of its kind in the step."),
        Column("chunk", "int32", "Model chunk of the rank.", nullable=True),
        Column("micro_batch", "int32", "Micro-batch.", nullable=True),
    ),
)


class OperationLog(msgspec.Struct, frozen=True, kw_only=True):
    """Operations of a job, and other facts in its log."""

    operations: Table  # OPERATIONS table.
    origin: str  # Kind of log, for display: ``operation table`` or ``pipeline timeline``.
    world_size: int | None = None  # Number of ranks of the job, None if the log does not give it.
    mesh: Mapping[str, int] = {}  # Axis to size, for example ``{"dp": 2, "pp": 4}``.
    # Micro-batches per step, None if the log does not give them.
    num_micro_batches: int | None = None
    shares_clock: bool = True  # Whether times of different ranks can be compared.
    step_ns: Mapping[int, int] = {}  # Step number to the length of the step, if the log gives it.
    notes: tuple[str, ...] = ()  # Assumptions, one sentence each.


# Tokens per expert --------------------------------------------------------------------------------


class ExpertCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Token assignments per expert and layer, for each part of the data."""

    # Part of the data (a domain, a step) to int64, shape ``(layers, experts)``.
    tokens: Mapping[str, Int64Array] = {}
    layers: tuple[str, ...] = ()  # Name of each layer.
    top_k: int | None = None  # Experts per token, None if the file does not give it.
    model: str = ""  # Name of the model in the file, empty if none.
    notes: tuple[str, ...] = ()  # Assumptions, one sentence each.


# Tables without a timeline ------------------------------------------------------------------------


class SummaryClass(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives with the same group, kind, type and size."""

    group: str  # Name of the process group, or of the kernel if the table does not name groups.
    ranks: tuple[int, ...]  # Members of the group in the table; empty if not listed.
    kind: CollectiveKind  # Kind of operation.
    dtype: str  # Element type as spelled in the table.
    num_bytes: int | None  # Size of the full buffer, None if unknown.


class CollectiveSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Durations of collectives by rank and class; one entry per row of the table."""

    classes: tuple[SummaryClass, ...]  # Classes of collectives.
    class_index: Int64Array  # int64, index into ``classes``.
    rank: Int64Array  # int64, global rank.
    num_calls: Int64Array  # int64, number of calls.
    mean_ns: Int64Array  # int64, mean duration of a call on that rank.
    wait_ratio: float | None = None  # Share that is waiting for other ranks, if the table says so.
    notes: tuple[str, ...] = ()  # Data left out, one sentence each.


class TableOperator(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a table of operators: an operator, a kernel, an annotation or a call."""

    name: str  # As printed, possibly cut.
    kind: CollectiveKind  # Kind of its collective; UNKNOWN if it is none.
    num_calls: int  # Calls.
    self_cpu_ns: int  # CPU time without operators inside.
    cpu_ns: int  # CPU time.
    self_device_ns: int  # Time of its kernels; 0 if none is printed.
    device_ns: int  # The same with operators inside.


class OperatorTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table of operators, as ``prof.key_averages().table()`` prints it."""

    operators: tuple[TableOperator, ...]  # Its rows, in order.
    device: str  # Name of the device in its columns, such as ``CUDA``; empty without one.
    # Its last lines: CPU time of all rows, also of those left out; None if missing.
    self_cpu_ns: int | None
    self_device_ns: int | None  # The same for the device.
    notes: tuple[str, ...] = ()  # Data left out, one sentence each.
    is_from_top: bool = False  # Whether its first rows follow its header.
    # Actions that are profiled each alone, and their time in ns; the rows are of the first.
    actions: tuple[tuple[str, int], ...] = ()
    second: OperatorTable | None = None  # The table after it, of another run or rank.
    rank: int | None = None  # Of which rank it is, of several; None otherwise.
    most_memory: tuple[str, ...] = ()  # What allocates most, if the text asks about memory.


INSPECTED = TableSchema(
    name="inspected",
    doc="Collectives as timed by each of their members, by class, number and member.",
    columns=(
        Column("class_index", "int32", "Index into the classes."),
        Column("seq", "int64", "Number among the operations of its kind in its communicator."),
        Column("member", "int32", "Index into the members."),
        Column("t_ns", "int64", "Time of the record, since the epoch.", unit="ns"),
        Column("duration_ns", "int64", "Duration on this member.", unit="ns"),
    ),
)


class InspectedMember(msgspec.Struct, frozen=True, kw_only=True):
    """One member of one communicator."""

    communicator: int  # Index of the communicator.
    number: int  # Its rank in the communicator.
    host: str  # Host name.
    pid: int  # Process id.
    # Global rank, which is the process's rank in its largest communicator; ABSENT if unknown.
    rank: int


class InspectedClass(msgspec.Struct, frozen=True, kw_only=True):
    """Operations of one kind and size in one communicator."""

    communicator: int  # Index of the communicator.
    group: str  # Name of the communicator, or its hash if it has no name.
    kind: CollectiveKind  # Kind of operation.
    num_bytes: int  # Bytes that each member passes in, as NCCL counts them.
    num_ranks: int  # Members of the communicator.
    num_nodes: int  # Nodes of the communicator.
    num_records: int  # Records of all members.
    total_ns: int  # Sum of the recorded durations.


class InspectorLog(msgspec.Struct, frozen=True, kw_only=True):
    """Output of NCCL Inspector from all ranks."""

    classes: tuple[InspectedClass, ...]  # Classes of operations.
    members: tuple[InspectedMember, ...]  # Members of communicators.
    # INSPECTED: all records of a sample of the collectives, the same ones on each rank.
    table: Table
    sampled_one_in: int = 1  # The table holds one in this many collectives; 1 if it holds all.
    first_ns: int | None = None  # First timestamp, ns since the epoch; None without one.
    last_ns: int | None = None  # Last timestamp.
    num_records: int = 0  # Records of operations.
    num_dropped: int = 0  # Operations that the writer dropped, by its own count.
    num_bytes: int = 0  # Bytes read, uncompressed.
    formats: tuple[str, ...] = ()  # Versions of the format, each once.
    notes: tuple[str, ...] = ()  # Damaged or skipped data, one sentence each.

    @property
    def world_size(self) -> int | None:
        """Ranks of the largest communicator; None without one."""
        return max((one.num_ranks for one in self.classes), default=None)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts of the members, each once."""
        return tuple(dict.fromkeys(member.host for member in self.members if member.host))


# NCCL's RAS ---------------------------------------------------------------------------------------


class RasRank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank of a communicator, or a process of the job."""

    rank: int | None  # Rank in its communicator; None for a process with an unknown rank.
    host: str = ""  # Address of its node, empty if unknown.
    pid: int | None = None  # Process id, None if unknown.
    gpu: int | None = None  # CUDA index of its GPU, None if unknown.


class RasTrouble(msgspec.Struct, frozen=True, kw_only=True):
    """A problem with a rank."""

    # ``dead``, ``unresponsive``, ``error``, or ``status`` for a status that most other ranks of the
    # communicator do not have.
    kind: str
    communicator: str  # Hash of the communicator, empty for a process of the job.
    size: int | None  # Ranks of the communicator, None if unknown.
    rank: RasRank  # The rank concerned.
    text: str = ""  # The error or the status.


class RasLaunches(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks of a communicator that have launched the same number of operations of a kind."""

    communicator: str  # Hash of the communicator.
    size: int | None  # Ranks of the communicator, None if unknown.
    operation: str  # NCCL's name of the operation: ``AllReduce``.
    launched: int  # Operations that each of the ranks has launched.
    num_ranks: int = 0  # Number of the ranks.
    ranks: tuple[RasRank, ...] = ()  # Those of the ranks that the output names.


class RasGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Communicators with the same properties."""

    num_communicators: int  # Number of communicators.
    num_nodes: int  # Nodes of each.
    size: int  # Ranks of each.
    status: str  # For example ``RUNNING``.
    errors: tuple[str, ...]  # Any of ``INCOMPLETE``, ``ERROR``, ``MISMATCH``.


class RasStatus(msgspec.Struct, frozen=True, kw_only=True):
    """State of a job at one moment according to NCCL's RAS subsystem."""

    version: str = ""  # NCCL's version, empty if unknown.
    time: str = ""  # Time as printed, empty if unknown.
    num_nodes: int | None = None  # Number of nodes, None if unknown.
    num_processes: int | None = None  # Number of processes, None if unknown.
    num_gpus: int | None = None  # Number of GPUs, None if unknown.
    num_timeouts: int = 0  # Timeouts while RAS collected the data.
    groups: tuple[RasGroup, ...] = ()  # Communicators, the largest first.
    troubles: tuple[RasTrouble, ...] = ()  # Problems with ranks.
    # Launch counts in communicators whose ranks have launched different numbers.
    launches: tuple[RasLaunches, ...] = ()
    num_snapshots: int = 1  # Snapshots in the file; the last one counts.
    # Whether the unequal launch counts are the same as in the previous snapshot; None with a single
    # snapshot.
    stands: bool | None = None
    notes: tuple[str, ...] = ()  # Damaged or skipped data, one sentence each.

    @property
    def world_size(self) -> int | None:
        """Ranks of the largest communicator; None without one."""
        return max((group.size for group in self.groups), default=None)


class InputReadiness(msgspec.Struct, frozen=True, kw_only=True):
    """Input readiness of each rank over time: 1 if the rank never waited for its data loader."""

    time_s: Int64Array  # int64, shape ``(samples,)``, seconds since 1970, ascending.
    ranks: tuple[int, ...]  # Global ranks, ascending.
    ratio: Floats  # float64, shape ``(ranks, samples)``, 0 to 1, NaN if missing.
    notes: tuple[str, ...] = ()  # Data left out, one sentence each.


class ScalingTable(msgspec.Struct, frozen=True, kw_only=True):
    """Throughput by the number of GPUs, as people type it."""

    counts: tuple[int, ...]  # GPUs or nodes, ascending.
    rates: tuple[float, ...]  # Throughput of all together, in the unit of the table.
    of: str = "GPUs"  # What the counts count: "GPUs" (or workers), "nodes", "ways" or "ranks".
    names: tuple[str, ...] = ()  # Of ways or ranks, the slowest first.
    notes: tuple[str, ...] = ()  # What is assumed, one sentence each.


# Machines -----------------------------------------------------------------------------------------

PATHS = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Paths over PCIe, shortest first: one bridge, several bridges, the host bridge, between host
bridges of a NUMA node, between NUMA nodes."""

_NVLINK = re.compile(r"NV\d{1,3}")


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """One machine, or several identical ones."""

    host: str  # Host name; empty if unknown.
    gpus: tuple[str, ...]  # The driver's names of the GPUs, in its order: ``GPU0``, …
    # Device names of the network cards, for example ``mlx5_0``; the driver's names (``NIC0``) if
    # unknown.
    cards: tuple[str, ...]
    # Path from each device (GPUs, then cards) to each device, for example ``NV18``, ``PIX``,
    # ``SYS``; ``X`` to itself, empty if unknown. Square.
    links: tuple[tuple[str, ...], ...]
    cpus: tuple[str, ...]  # CPUs with affinity to each GPU, for example ``0-55``; empty if unknown.
    numa: tuple[str, ...]  # NUMA nodes of each GPU; empty if unknown.
    num_cut: int = 0  # GPUs whose rows are cut off; they are left out everywhere else.

    def path_to_card(self, gpu: int, card: int) -> str:
        """Path between a GPU and a card, given by their positions in ``gpus`` and ``cards``."""
        return self.links[gpu][len(self.gpus) + card]

    def nearest_cards(self, gpu: int) -> tuple[str, tuple[int, ...]]:
        """The shortest path to any card, and the cards that it leads to; empty if unknown."""
        paths = [self.path_to_card(gpu, card) for card in range(len(self.cards))]
        best = next((path for path in PATHS if path in paths), "")
        return best, tuple(c for c, path in enumerate(paths) if best and path == best)

    @property
    def farthest_path(self) -> str:
        """The longest path over PCIe between two GPUs; empty without any."""
        paths = {path for row in self.links[: len(self.gpus)] for path in row[: len(self.gpus)]}
        return next((path for path in reversed(PATHS) if path in paths), "")

    @property
    def islands(self) -> tuple[tuple[int, ...], ...]:
        """Sets of GPUs connected by NVLink, directly or through others; each GPU is in one."""
        left, found = set(range(len(self.gpus))), []
        while left:
            reached, front = set[int](), {min(left)}
            while front:
                reached |= front
                front = {
                    other
                    for other in left - reached
                    if any(_NVLINK.fullmatch(self.links[gpu][other]) for gpu in front)
                }
            left -= reached
            found.append(tuple(sorted(reached)))
        return tuple(found)


class Machines(msgspec.Struct, frozen=True, kw_only=True):
    """The machines that a file describes."""

    machines: tuple[Machine, ...]  # In order of appearance.
    copies: tuple[GpuCopies, ...] = ()  # With access to each other's memory, without it, or both.
    notes: tuple[str, ...] = ()  # Damaged or assumed data, one sentence each.
