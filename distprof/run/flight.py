"""What torch's Flight Recorder knows of one rank: operations launched, groups, their progress."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from distprof.schema import Column, Table, TableSchema

__all__ = ["FLIGHT", "FlightDump", "FlightGroup", "FlightState", "GroupStatus"]


class FlightState(IntEnum):
    """How far an operation came, as the recorder saw it. Stored as int8."""

    UNKNOWN = 0
    SCHEDULED = 1  # launched by the host
    STARTED = 2  # on the device; seen only where timing is recorded
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
        Column(name="description", dtype="category", doc="What its maker calls the group.",
               nullable=True),
        Column(name="seq", dtype="int64", doc="Sequence number of the collective in its group.",
               nullable=True),
        Column(name="p2p_seq", dtype="int64", doc="Sequence number among messages of the group.",
               nullable=True),
        Column(name="name", dtype="category", doc="Upstream's name, for example nccl:all_reduce."),
        Column(name="kind", dtype="int8", doc="A CollectiveKind."),
        Column(name="is_p2p", dtype="bool", doc="Whether it is a message between two ranks."),
        Column(name="shape", dtype="category", doc="Sizes of inputs and outputs, as shown."),
        Column(name="in_dtype", dtype="category", doc="Data types of the inputs.", nullable=True),
        Column(name="in_elements", dtype="int64", doc="Elements of the inputs.", nullable=True),
        Column(name="out_elements", dtype="int64", doc="Elements of the outputs.", nullable=True),
        Column(name="state", dtype="int8", doc="A FlightState."),
        Column(name="retired", dtype="bool", doc="Whether the recorder stopped watching it."),
        Column(name="created_ns", dtype="int64", unit="ns",
               doc="When the host launched it, since the epoch on its own clock.", nullable=True),
        Column(name="started_ns", dtype="int64", unit="ns",
               doc="When it was seen to have started.", nullable=True),
        Column(name="completed_ns", dtype="int64", unit="ns",
               doc="When it was seen to have completed.", nullable=True),
        Column(name="timeout_ms", dtype="int64", unit="ms", doc="Timeout of its group.",
               nullable=True),
        Column(name="frame", dtype="category", doc="The call that launched it.",
               nullable=True),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightGroup:
    """A process group as a rank's dump describes it.

    Args:
        name: Its name; several groups may share one.
        description: What its maker calls it, empty when nothing.
        ranks: Global ranks of its members, ascending; empty where the dump does not say.
    """

    name: str
    description: str = ""
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    """Progress of one group on one rank: sequence numbers, None where not known.

    Args:
        enqueued: Latest operation that the host launched.
        started: Latest one that the device started; None where timing is off.
        completed: Latest one that completed.
    """

    enqueued: int | None = None
    started: int | None = None
    completed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightDump:
    """The dump of one rank.

    Args:
        rank: Global rank.
        source: File it was read from.
        entries: FLIGHT table.
        version: Of the format, for example ``2.9``.
        library: Version of NCCL or its like, empty when unknown.
        groups: Groups the rank is a member of, by the recorder's name.
        status: Number of a group within the process, to its progress.
        host: Host name, empty when unknown.
        written_ns: When the file was last written, ns since the epoch; None when unknown.
        digest: Of the file.
        notes: What was damaged or left out, one sentence each.
    """

    rank: int
    source: str
    entries: Table
    version: str = ""
    library: str = ""
    groups: tuple[FlightGroup, ...] = ()
    status: dict[int, GroupStatus] = field(default_factory=dict)
    host: str = ""
    written_ns: int | None = None
    digest: str = ""
    notes: tuple[str, ...] = ()
