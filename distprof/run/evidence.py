"""Evidence from other tools about a job without traces; :meth:`Run.get` returns it by type.

It comprises logged operations (the table of a what-if study, or the timeline of a pipeline's own
timers), tokens per expert, collectives by rank, input readiness, and the topology of machines.
Times are int64 ns. Each log says whether its ranks share a clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.schema import Column, Int64Array, Table, TableSchema
from distprof.terms import CollectiveKind

OPERATIONS = TableSchema(
    name="operations",
    doc="Operations of workers as logged by another tool, by rank, step and start.",
    columns=(
        Column(name="rank", dtype="int32", doc="Worker: a rank, or several ranks that act as one."),
        Column(name="dp_rank", dtype="int32", nullable=True, doc="Data-parallel index."),
        Column(name="stage", dtype="int32", nullable=True, doc="Pipeline stage."),
        Column(name="step", dtype="int64", doc="Training step."),
        Column(
            name="kind",
            dtype="category",
            doc="forward-compute, backward-compute, or the name that the log uses.",
        ),
        Column(
            name="start_ns", dtype="int64", unit="ns", doc="Start, relative to that of the step."
        ),
        Column(name="end_ns", dtype="int64", unit="ns", doc="End, never before the start."),
        Column(
            name="seq",
            dtype="int64",
            nullable=True,
            doc="Number among the operations of its kind in the step.",
        ),
        Column(name="chunk", dtype="int32", nullable=True, doc="Model chunk of the rank."),
        Column(name="micro_batch", dtype="int32", nullable=True, doc="Micro-batch."),
    ),
)


class OperationLog(msgspec.Struct, frozen=True, kw_only=True):
    """Operations of a job, and other facts in its log.

    Args:
        operations: OPERATIONS table.
        origin: Kind of log, for display: ``operation table`` or ``pipeline timeline``.
        world_size: Number of ranks of the job, None if the log does not give it.
        mesh: Axis to size, for example ``{"dp": 2, "pp": 4}``.
        num_micro_batches: Micro-batches per step, None if the log does not give them.
        shares_clock: Whether times of different ranks can be compared.
        step_ns: Step number to the length of the step, if the log gives it.
        notes: Assumptions, one sentence each.
    """

    operations: Table
    origin: str
    world_size: int | None = None
    mesh: Mapping[str, int] = msgspec.field(default_factory=dict)
    num_micro_batches: int | None = None
    shares_clock: bool = True
    step_ns: Mapping[int, int] = msgspec.field(default_factory=dict)
    notes: tuple[str, ...] = ()


# Tokens per expert --------------------------------------------------------------------------------


class ExpertCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Token assignments per expert and layer, for each part of the data.

    Args:
        tokens: Part of the data (a domain, a step) to int64, shape ``(layers, experts)``.
        layers: Name of each layer.
        top_k: Experts per token, None if the file does not give it.
        model: Name of the model in the file, empty if none.
        notes: Assumptions, one sentence each.
    """

    tokens: Mapping[str, NDArray[np.int64]] = msgspec.field(default_factory=dict)
    layers: tuple[str, ...] = ()
    top_k: int | None = None
    model: str = ""
    notes: tuple[str, ...] = ()


# Tables without a timeline ------------------------------------------------------------------------


class SummaryClass(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives with the same group, kind, type and size.

    Args:
        group: Name of the process group, or of the kernel if the table does not name groups.
        ranks: Members of the group in the table; empty if not listed.
        kind: Kind of operation.
        dtype: Element type as spelled in the table.
        num_bytes: Size of the full buffer, None if unknown.
    """

    group: str
    ranks: tuple[int, ...]
    kind: CollectiveKind
    dtype: str
    num_bytes: int | None


class CollectiveSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Durations of collectives by rank and class; one entry per row of the table.

    Args:
        classes: Classes of collectives.
        class_index: int64, index into ``classes``.
        rank: int64, global rank.
        num_calls: int64, number of calls.
        mean_ns: int64, mean duration of a call on that rank.
        notes: Data left out, one sentence each.
    """

    classes: tuple[SummaryClass, ...]
    class_index: Int64Array
    rank: Int64Array
    num_calls: Int64Array
    mean_ns: Int64Array
    notes: tuple[str, ...] = ()


class TableOperator(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a table of operators: an operator, a kernel, an annotation or a call.

    Args:
        name: As printed, possibly cut.
        kind: Kind of its collective; UNKNOWN if it is none.
        num_calls: Calls.
        self_cpu_ns: CPU time without operators inside.
        cpu_ns: CPU time.
        self_device_ns: Time of its kernels; 0 if none is printed.
        device_ns: The same with operators inside.
    """

    name: str
    kind: CollectiveKind
    num_calls: int
    self_cpu_ns: int
    cpu_ns: int
    self_device_ns: int
    device_ns: int


class OperatorTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table of operators, as ``prof.key_averages().table()`` prints it.

    Args:
        operators: Its rows, in order.
        device: Name of the device in its columns, such as ``CUDA``; empty without one.
        self_cpu_ns: Its last lines: CPU time of all rows, also of those left out; None if missing.
        self_device_ns: The same for the device.
        notes: Data left out, one sentence each.
    """

    operators: tuple[TableOperator, ...]
    device: str
    self_cpu_ns: int | None
    self_device_ns: int | None
    notes: tuple[str, ...] = ()


INSPECTED = TableSchema(
    name="inspected",
    doc="Collectives as timed by each of their members, by class, number and member.",
    columns=(
        Column(name="class_index", dtype="int32", doc="Index into the classes."),
        Column(
            name="seq",
            dtype="int64",
            doc="Number among the operations of its kind in its communicator.",
        ),
        Column(name="member", dtype="int32", doc="Index into the members."),
        Column(name="t_ns", dtype="int64", unit="ns", doc="Time of the record, since the epoch."),
        Column(name="duration_ns", dtype="int64", unit="ns", doc="Duration on this member."),
    ),
)


class InspectedMember(msgspec.Struct, frozen=True, kw_only=True):
    """One member of one communicator.

    Args:
        communicator: Index of the communicator.
        number: Its rank in the communicator.
        host: Host name.
        pid: Process id.
        rank: Global rank, which is the process's rank in its largest communicator; ABSENT if
            unknown.
    """

    communicator: int
    number: int
    host: str
    pid: int
    rank: int


class InspectedClass(msgspec.Struct, frozen=True, kw_only=True):
    """Operations of one kind and size in one communicator.

    Args:
        communicator: Index of the communicator.
        group: Name of the communicator, or its hash if it has no name.
        kind: Kind of operation.
        num_bytes: Bytes that each member passes in, as NCCL counts them.
        num_ranks: Members of the communicator.
        num_nodes: Nodes of the communicator.
        num_records: Records of all members.
        total_ns: Sum of the recorded durations.
    """

    communicator: int
    group: str
    kind: CollectiveKind
    num_bytes: int
    num_ranks: int
    num_nodes: int
    num_records: int
    total_ns: int


class InspectorLog(msgspec.Struct, frozen=True, kw_only=True):
    """Output of NCCL Inspector from all ranks.

    Args:
        classes: Classes of operations.
        members: Members of communicators.
        table: INSPECTED: all records of a sample of the collectives, the same ones on each rank.
        sampled_one_in: The table holds one in this many collectives; 1 if it holds all.
        first_ns: First timestamp, ns since the epoch; None without one.
        last_ns: Last timestamp.
        num_records: Records of operations.
        num_dropped: Operations that the writer dropped, by its own count.
        num_bytes: Bytes read, uncompressed.
        formats: Versions of the format, each once.
        notes: Damaged or skipped data, one sentence each.
    """

    classes: tuple[InspectedClass, ...]
    members: tuple[InspectedMember, ...]
    table: Table
    sampled_one_in: int = 1
    first_ns: int | None = None
    last_ns: int | None = None
    num_records: int = 0
    num_dropped: int = 0
    num_bytes: int = 0
    formats: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

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
    """A rank of a communicator, or a process of the job.

    Args:
        rank: Rank in its communicator; None for a process with an unknown rank.
        host: Address of its node, empty if unknown.
        pid: Process id, None if unknown.
        gpu: CUDA index of its GPU, None if unknown.
    """

    rank: int | None
    host: str = ""
    pid: int | None = None
    gpu: int | None = None


class RasTrouble(msgspec.Struct, frozen=True, kw_only=True):
    """A problem with a rank.

    Args:
        kind: ``dead``, ``unresponsive``, ``error``, or ``status`` for a status that most other
            ranks of the communicator do not have.
        communicator: Hash of the communicator, empty for a process of the job.
        size: Ranks of the communicator, None if unknown.
        rank: The rank concerned.
        text: The error or the status.
    """

    kind: str
    communicator: str
    size: int | None
    rank: RasRank
    text: str = ""


class RasLaunches(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks of a communicator that have launched the same number of operations of a kind.

    Args:
        communicator: Hash of the communicator.
        size: Ranks of the communicator, None if unknown.
        operation: NCCL's name of the operation: ``AllReduce``.
        launched: Operations that each of the ranks has launched.
        num_ranks: Number of the ranks.
        ranks: Those of the ranks that the output names.
    """

    communicator: str
    size: int | None
    operation: str
    launched: int
    num_ranks: int = 0
    ranks: tuple[RasRank, ...] = ()


class RasGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Communicators with the same properties.

    Args:
        num_communicators: Number of communicators.
        num_nodes: Nodes of each.
        size: Ranks of each.
        status: For example ``RUNNING``.
        errors: Any of ``INCOMPLETE``, ``ERROR``, ``MISMATCH``.
    """

    num_communicators: int
    num_nodes: int
    size: int
    status: str
    errors: tuple[str, ...]


class RasStatus(msgspec.Struct, frozen=True, kw_only=True):
    """State of a job at one moment according to NCCL's RAS subsystem.

    Args:
        version: NCCL's version, empty if unknown.
        time: Time as printed, empty if unknown.
        num_nodes: Number of nodes, None if unknown.
        num_processes: Number of processes, None if unknown.
        num_gpus: Number of GPUs, None if unknown.
        num_timeouts: Timeouts while RAS collected the data.
        groups: Communicators, the largest first.
        troubles: Problems with ranks.
        launches: Launch counts in communicators whose ranks have launched different numbers.
        num_snapshots: Snapshots in the file; the last one counts.
        stands: Whether the unequal launch counts are the same as in the previous snapshot; None
            with a single snapshot.
        notes: Damaged or skipped data, one sentence each.
    """

    version: str = ""
    time: str = ""
    num_nodes: int | None = None
    num_processes: int | None = None
    num_gpus: int | None = None
    num_timeouts: int = 0
    groups: tuple[RasGroup, ...] = ()
    troubles: tuple[RasTrouble, ...] = ()
    launches: tuple[RasLaunches, ...] = ()
    num_snapshots: int = 1
    stands: bool | None = None
    notes: tuple[str, ...] = ()

    @property
    def world_size(self) -> int | None:
        """Ranks of the largest communicator; None without one."""
        return max((group.size for group in self.groups), default=None)


class InputReadiness(msgspec.Struct, frozen=True, kw_only=True):
    """Input readiness of each rank over time: 1 if the rank never waited for its data loader.

    Args:
        time_s: int64, shape ``(samples,)``, seconds since 1970, ascending.
        ranks: Global ranks, ascending.
        ratio: float64, shape ``(ranks, samples)``, 0 to 1, NaN if missing.
        notes: Data left out, one sentence each.
    """

    time_s: Int64Array
    ranks: tuple[int, ...]
    ratio: NDArray[np.float64]
    notes: tuple[str, ...] = ()


# Machines -----------------------------------------------------------------------------------------

PATHS = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Paths over PCIe, shortest first: one bridge, several bridges, the host bridge, between host
bridges of a NUMA node, between NUMA nodes."""

_NVLINK = re.compile(r"NV\d{1,3}")


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """One machine, or several identical ones.

    Args:
        host: Host name; empty if unknown.
        gpus: The driver's names of the GPUs, in its order: ``GPU0``, …
        cards: Device names of the network cards, for example ``mlx5_0``; the driver's names
            (``NIC0``) if unknown.
        links: Path from each device (GPUs, then cards) to each device, for example ``NV18``,
            ``PIX``, ``SYS``; ``X`` to itself, empty if unknown. Square.
        cpus: CPUs with affinity to each GPU, for example ``0-55``; empty if unknown.
        numa: NUMA nodes of each GPU; empty if unknown.
    """

    host: str
    gpus: tuple[str, ...]
    cards: tuple[str, ...]
    links: tuple[tuple[str, ...], ...]
    cpus: tuple[str, ...]
    numa: tuple[str, ...]

    def between(self, first: int, second: int) -> str:
        """Path between two devices, given by their positions in ``links``."""
        return self.links[first][second]

    def path_to_card(self, gpu: int, card: int) -> str:
        """Path between a GPU and a card, given by their positions in ``gpus`` and ``cards``."""
        return self.between(gpu, len(self.gpus) + card)

    def nearest_cards(self, gpu: int) -> tuple[str, tuple[int, ...]]:
        """The shortest path to any card, and the cards that it leads to; empty if unknown."""
        paths = [self.path_to_card(gpu, card) for card in range(len(self.cards))]
        best = next((path for path in PATHS if path in paths), "")
        return best, tuple(c for c, path in enumerate(paths) if best and path == best)

    @property
    def islands(self) -> tuple[tuple[int, ...], ...]:
        """Sets of GPUs connected by NVLink, directly or through others; each GPU is in one."""
        left, found = set(range(len(self.gpus))), []
        while left:
            island = self._reached(min(left))
            left -= island
            found.append(tuple(sorted(island)))
        return tuple(found)

    def _reached(self, start: int) -> set[int]:
        """GPUs connected to ``start`` by NVLink, directly or through others."""
        reached, front = {start}, [start]
        while front:
            gpu = front.pop()
            near = self._linked(gpu) - reached
            reached |= near
            front += near
        return reached

    def _linked(self, gpu: int) -> set[int]:
        others: Iterable[int] = range(len(self.gpus))
        return {other for other in others if _NVLINK.fullmatch(self.between(gpu, other))}


class Machines(msgspec.Struct, frozen=True, kw_only=True):
    """The machines that a file describes.

    Args:
        machines: In order of appearance.
        notes: Damaged or assumed data, one sentence each.
    """

    machines: tuple[Machine, ...]
    notes: tuple[str, ...] = ()
