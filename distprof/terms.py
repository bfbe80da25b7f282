"""The field's terms, as enumerations. Ingest translates upstream spellings to these."""

from __future__ import annotations

import re
from enum import IntEnum, StrEnum

UNKNOWN_AXIS = "unknown"
"""Mesh axis of a group whose axis is unknown."""


PAGE_FORMATS = ("text", "brief", "json", "md", "html")
"""Formats of every result for people."""

CI_FORMATS = ("github", "gitlab", "sarif", "junit")
"""Formats of CI services, for results with a judgement."""

FORMATS = (*PAGE_FORMATS, *CI_FORMATS)
"""Formats of a report: names that its ``--format`` accepts."""


class Labelled(IntEnum):
    """An enumeration whose members have a name in reports."""

    @property
    def label(self) -> str:
        """The name in reports, for example ``all_reduce``."""
        return self.name.lower()


class ActivityKind(Labelled):
    """The kind of a GPU activity. Stored as int8 in tables."""

    COMPUTATION = 0
    COMMUNICATION = 1
    COPY = 2  # memory copies and sets
    ANNOTATION = 3  # a range on the GPU's timeline; part of no time sum
    WAITING = 4  # blocked in a send or receive whose transfer time is unknown


class CollectiveKind(Labelled):
    """The operation that a communication activity carries out. Stored as int8 in tables."""

    UNKNOWN = 0
    ALL_REDUCE = 1
    ALL_GATHER = 2
    REDUCE_SCATTER = 3
    ALL_TO_ALL = 4
    BROADCAST = 5
    REDUCE = 6
    SCATTER = 7
    GATHER = 8
    SEND = 9
    RECV = 10
    SEND_RECV = 11  # grouped point-to-point: the trace does not give the direction
    BARRIER = 12

    @property
    def is_point_to_point(self) -> bool:
        """True for send, recv and grouped point-to-point operations."""
        return self in (CollectiveKind.SEND, CollectiveKind.RECV, CollectiveKind.SEND_RECV)

    @property
    def is_symmetric(self) -> bool:
        """True if no member can finish before every member has started.

        Only these collectives carry information about clocks, because all members end together.
        """
        return self in (
            CollectiveKind.ALL_REDUCE,
            CollectiveKind.ALL_GATHER,
            CollectiveKind.REDUCE_SCATTER,
            CollectiveKind.ALL_TO_ALL,
            CollectiveKind.BARRIER,
        )


MESSAGES = tuple(kind for kind in CollectiveKind if kind.is_point_to_point)
"""Kinds of operations between two ranks."""


class Origin(IntEnum):
    """Where a value of a collective record comes from. Stored as int8 in tables."""

    ABSENT = 0
    MEASURED = 1  # written in the trace
    DERIVED = 2  # inferred from other fields; the reader documents how


class StepSource(StrEnum):
    """How the window of a step was found."""

    PROFILER_STEP = "profiler_step"  # the ProfilerStep# annotation on the CPU
    DEVICE = "device"  # the GPU activities launched inside the CPU's step
    OPTIMIZER = "optimizer"  # ends of Optimizer.step annotations
    OPERATIONS = "operations"  # numbered in a log of operations, without a trace
    CAPTURE = "capture"  # no step marks: the whole capture is one window


class MatchMethod(IntEnum):
    """How members of a collective were found to belong together. Stored as int8 in tables."""

    SEQUENCE = 1  # process group and sequence number
    SUBSEQUENCE = 2  # longest common subsequence of operations within the group


class MeshAxis(StrEnum):
    """Axes of a device mesh, slowest varying first."""

    PP = "pp"
    DP_REPLICATE = "dp_replicate"
    DP_SHARD = "dp_shard"
    DP = "dp"
    CP = "cp"
    TP = "tp"
    EP = "ep"
    WORLD = "world"


DATA_AXES = (MeshAxis.DP, MeshAxis.DP_REPLICATE, MeshAxis.DP_SHARD, MeshAxis.WORLD)
"""Axes whose ranks train on different data."""


class SlotKind(Labelled):
    """The action of a pipeline stage on a micro-batch. Stored as int8 in tables."""

    FORWARD = 0
    BACKWARD = 1  # to inputs and weights
    BACKWARD_INPUT = 2  # to the inputs only (zero bubble)
    BACKWARD_WEIGHT = 3  # to the weights only
    LOSS = 4  # on the last stage
    OVERLAPPED = 5  # a forward and a backward of two micro-batches at once (DualPipe)


class IdleCause(StrEnum):
    """Why a GPU was idle."""

    INPUT = "input"
    SYNC = "sync"
    PAUSE = "pause"
    HOST = "host"
    COMM_WAIT = "comm_wait"
    UNKNOWN = "unknown"


class StragglerPattern(StrEnum):
    """How a rank's lateness is distributed over steps."""

    PERSISTENT = "persistent"
    TRANSIENT = "transient"
    ROTATING = "rotating"
    NONE = "none"


class StragglerCause(StrEnum):
    """Why a rank arrives late."""

    SLOW_DEVICE = "slow_device"
    MORE_WORK = "more_work"
    LATE_HOST = "late_host"
    LATE_INPUT = "late_input"
    SLOW_COPIES = "slow_copies"
    CPU_TAKEN = "cpu_taken"
    TRACING = "tracing"
    UNKNOWN = "unknown"

    @property
    def is_own(self) -> bool:
        """Whether the rank is to blame, rather than other processes or the profiler."""
        return self not in (StragglerCause.CPU_TAKEN, StragglerCause.TRACING)


class NcclRemark(StrEnum):
    """What NCCL's log says of network cards, and of GPUs that ``NVLink`` or ``PCIe`` connects."""

    GDR_ON = "GPUDirect RDMA is enabled"
    GDR_OFF = "GPUDirect RDMA is disabled"
    PEER_OFF = "access between GPUs is disabled"
    PLUGIN = "OFI plug-in"
    NO_SPEED = "PCIe links without a speed"
    NO_RATE = "PCIe links count as almost nothing"
    RINGS = "rings that the graph search found"
    NO_VERBS = "InfiniBand is not tried"
    BESIDE = "what the text shows of the hardware"


class Severity(StrEnum):
    """How much a finding matters."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    @property
    def rank(self) -> int:
        """0 for info, 1 for warning, 2 for error: for comparison with a threshold."""
        return ("info", "warning", "error").index(self.value)


class Subject(StrEnum):
    """The subject of a judgement. Evidence on one subject says nothing about another."""

    RUN = "run"  # a recording, or logs of a job
    CONFIGURATION = "configuration"  # of a job that has not run
    SWEEP = "sweep"  # runs of one program on several numbers of ranks


class Confidence(StrEnum):
    """The basis of a finding."""

    MEASURED = "measured"
    INFERRED = "inferred"
    MODELLED = "modelled"


INPUT_TIMER = re.compile(
    r"^(?:data|input|load|fetch)(?:[_ ]?(?:time|wait|load\w{0,6}))?$"
    r"|^batch-generator$|train_dataloader_next$|^get_train_batch$|^dataloader"
)
"""Names of timers around the wait for the next batch, as programs print them."""

AWAITED = ": they wait for it."  # Ends a note on a rank's late input.
