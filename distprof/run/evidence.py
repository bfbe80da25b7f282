"""Evidence from other tools on a job without traces; each type is requested from a run.

Operations as a tool logged them (a table of a what-if study, or the timeline that a pipeline's own
timers wrote), tokens per expert, collectives by rank, readiness of input, and how the devices of a
machine are joined. Times are int64 ns; each log says whether its ranks share a clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.schema import Column, Int64Array, Table, TableSchema
from distprof.terms import CollectiveKind

__all__ = [
    "INSPECTED",
    "OPERATIONS",
    "PATHS",
    "CollectiveSummary",
    "ExpertCounts",
    "InputReadiness",
    "InspectedClass",
    "InspectedMember",
    "InspectorLog",
    "Machine",
    "Machines",
    "OperationLog",
    "RasGroup",
    "RasLaunches",
    "RasRank",
    "RasStatus",
    "RasTrouble",
    "SummaryClass",
]

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
            name="start_ns", dtype="int64", unit="ns", doc="Start, since the start of the step."
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
    """Operations of a job, and the facts that the log gives about it.

    Args:
        operations: OPERATIONS table.
        origin: What kind of log, for people: ``operation table`` or ``pipeline timeline``.
        world_size: Of the job, None where the log does not say.
        mesh: Axis to size, for example ``{"dp": 2, "pp": 4}``.
        num_micro_batches: Per step, None where the log does not say.
        shares_clock: Whether times of different ranks can be compared.
        step_ns: Step number to the step's length, where the log says it.
        notes: What was assumed, one sentence each.
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
    """Assignments per expert of each layer, once for each part of the data.

    Args:
        tokens: Part of the data (a domain, a step) to int64, shape ``(layers, experts)``.
        layers: Name of each layer.
        top_k: Experts per token, None where the file does not say.
        model: As the file names it, else empty.
        notes: What was assumed, one sentence each.
    """

    tokens: Mapping[str, NDArray[np.int64]] = msgspec.field(default_factory=dict)
    layers: tuple[str, ...] = ()
    top_k: int | None = None
    model: str = ""
    notes: tuple[str, ...] = ()


# Tables without a time line -----------------------------------------------------------------------


class SummaryClass(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives with the same group, kind, type and size.

    Args:
        group: Name of the process group; of the kernel where the table knows no groups.
        ranks: Its members as the table lists them; empty where it does not.
        kind: Operation.
        dtype: As the table spells it.
        num_bytes: Of the full buffer, None if unknown.
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
        num_calls: int64.
        mean_ns: int64, mean duration of a call on that rank.
        notes: What was left out, one sentence each.
    """

    classes: tuple[SummaryClass, ...]
    class_index: Int64Array
    rank: Int64Array
    num_calls: Int64Array
    mean_ns: Int64Array
    notes: tuple[str, ...] = ()


INSPECTED = TableSchema(
    name="inspected",
    doc="Collectives as one of their members timed them, by class, number and member.",
    columns=(
        Column(name="class_index", dtype="int32", doc="Index into the classes."),
        Column(
            name="seq", dtype="int64", doc="Number among those of its kind in its communicator."
        ),
        Column(name="member", dtype="int32", doc="Index into the members."),
        Column(name="t_ns", dtype="int64", unit="ns", doc="When it was written, since the epoch."),
        Column(name="duration_ns", dtype="int64", unit="ns", doc="Its duration on this member."),
    ),
)


class InspectedMember(msgspec.Struct, frozen=True, kw_only=True):
    """One member of one communicator.

    Args:
        communicator: Index of the communicator.
        number: Its rank in the communicator.
        host: Host name.
        pid: Process id.
        rank: Global rank, ABSENT where it is not known: its rank in the largest communicator that
            its process is in.
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
        group: Its name where it has one, else its hash.
        kind: Operation.
        num_bytes: What each member passes in, as NCCL counts it.
        num_ranks: Members of the communicator.
        num_nodes: Nodes that they are on.
        num_records: Records of all members.
        total_ns: Their durations together.
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
    """What NCCL Inspector wrote on all ranks.

    Args:
        classes: Operations that are alike.
        members: Members of communicators.
        table: INSPECTED: all records of a part of the collectives, the same ones on each rank.
        sampled_one_in: One of how many collectives is in the table; 1 where all are.
        first_ns: First time stamp, ns since the epoch; None without one.
        last_ns: Last time stamp.
        num_records: Records of operations.
        num_dropped: Operations that the writer dropped by its own count.
        num_bytes: Bytes read, unpacked.
        formats: Versions of the format, each once.
        notes: What was damaged or left out, one sentence each.
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
        rank: In its communicator; None for a process of which this is not told.
        host: Address of its node, empty where not told.
        pid: Process id, None where not told.
        gpu: Number of its GPU as CUDA counts, None where not told.
    """

    rank: int | None
    host: str = ""
    pid: int | None = None
    gpu: int | None = None


class RasTrouble(msgspec.Struct, frozen=True, kw_only=True):
    """Something wrong with a rank.

    Args:
        kind: ``dead``, ``unresponsive``, ``error``, or ``status`` for one that most others of the
            communicator do not have.
        communicator: Hash, empty for a process of the job.
        size: Ranks of the communicator, None where not told.
        rank: Which one.
        text: The error or the status.
    """

    kind: str
    communicator: str
    size: int | None
    rank: RasRank
    text: str = ""


class RasLaunches(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks of a communicator that have launched as many operations of a kind as each other.

    Args:
        communicator: Hash.
        size: Its ranks, None where not told.
        operation: As NCCL calls it: ``AllReduce``.
        launched: How many they have launched.
        num_ranks: How many they are.
        ranks: Those of them that are named.
    """

    communicator: str
    size: int | None
    operation: str
    launched: int
    num_ranks: int = 0
    ranks: tuple[RasRank, ...] = ()


class RasGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Communicators that are alike.

    Args:
        num_communicators: How many.
        num_nodes: Nodes of each.
        size: Ranks of each.
        status: For example ``RUNNING``.
        errors: Of ``INCOMPLETE``, ``ERROR``, ``MISMATCH``.
    """

    num_communicators: int
    num_nodes: int
    size: int
    status: str
    errors: tuple[str, ...]


class RasStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What NCCL's RAS says of a job at one moment.

    Args:
        version: NCCL's version, empty where not told.
        time: As printed, empty where not told.
        num_nodes: None where not told.
        num_processes: None where not told.
        num_gpus: None where not told.
        num_timeouts: Timeouts while it gathered this.
        groups: Communicators, the largest first.
        troubles: What is wrong with ranks.
        launches: Where ranks of a communicator have launched unequally often.
        num_snapshots: In the file; the last counts.
        stands: Whether the unequal launches are as in the snapshot before, None with one snapshot.
        notes: What was damaged or left out, one sentence each.
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
    """How ready each rank's input was, over time: 1 where the loader was never waited for.

    Args:
        time_s: int64, shape ``(samples,)``, seconds since 1970, ascending.
        ranks: Global ranks, ascending.
        ratio: float64, shape ``(ranks, samples)``, 0 to 1, NaN where missing.
        notes: What was left out, one sentence each.
    """

    time_s: Int64Array
    ranks: tuple[int, ...]
    ratio: NDArray[np.float64]
    notes: tuple[str, ...] = ()


# Machines -----------------------------------------------------------------------------------------

PATHS = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Paths over PCIe, shortest first: one bridge, several, the host bridge, a NUMA node, sockets."""

_NVLINK = re.compile(r"NV\d{1,3}")


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """One machine, or several identical ones.

    Args:
        host: Host name; empty if unknown.
        gpus: GPUs as the driver calls them, in its order: ``GPU0``, …
        cards: Network cards by their own names, for example ``mlx5_0``; as the driver calls them
            (``NIC0``) if unknown.
        links: Path from each device (GPUs, then cards) to each, as ``NV18``, ``PIX``, ``SYS``;
            ``X`` to itself, empty if unknown. Square.
        cpus: CPUs next to each GPU, for example ``0-55``; empty if unknown.
        numa: NUMA nodes next to each GPU; empty if unknown.
    """

    host: str
    gpus: tuple[str, ...]
    cards: tuple[str, ...]
    links: tuple[tuple[str, ...], ...]
    cpus: tuple[str, ...]
    numa: tuple[str, ...]

    def between(self, first: int, second: int) -> str:
        """Path between two devices, numbered as in ``links``."""
        return self.links[first][second]

    def path_to_card(self, gpu: int, card: int) -> str:
        """Path between a GPU and a card, each by its own number."""
        return self.between(gpu, len(self.gpus) + card)

    def nearest_cards(self, gpu: int) -> tuple[str, tuple[int, ...]]:
        """The shortest path to any card, and the cards at its end; empty where none is known."""
        paths = [self.path_to_card(gpu, card) for card in range(len(self.cards))]
        best = next((path for path in PATHS if path in paths), "")
        return best, tuple(c for c, path in enumerate(paths) if best and path == best)

    @property
    def islands(self) -> tuple[tuple[int, ...], ...]:
        """GPUs that NVLink joins, directly or by others, ascending; each GPU is in one of them."""
        left, found = set(range(len(self.gpus))), []
        while left:
            island = self._reached(min(left))
            left -= island
            found.append(tuple(sorted(island)))
        return tuple(found)

    def _reached(self, start: int) -> set[int]:
        """GPUs that NVLink joins with ``start``."""
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
        notes: What was damaged or assumed, one sentence each.
    """

    machines: tuple[Machine, ...]
    notes: tuple[str, ...] = ()
