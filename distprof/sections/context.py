"""Inputs of the analyzers: measurements of each rank alone, from its trace and its probes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.artefacts.run_file import RunFile
from distprof.intervals import EMPTY, Intervals, complement, subtract
from distprof.schema import ABSENT, Coded, Int64Array
from distprof.sections.computation import RankComputation
from distprof.sections.idle import RankIdle
from distprof.sections.job import NO_RUN_DIRECTORY
from distprof.sections.overlap import AxisOverlap, RankOverlap
from distprof.sections.settings import RankInput
from distprof.sections.time import RankWaterfall, StepBreakdown
from distprof.terms import IdleCause
from distprof.units import name_ranks


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """Activity of one rank's device, as sets of intervals over the whole capture."""

    computation: Intervals  # K, the union of computation.
    communication: Intervals  # C, the union of communication.
    exposed_comm: Intervals  # C without K.
    exposed_copy: Intervals  # The union of copies without K and C.
    # Time blocked in sends and receives whose transfer time is unknown, without K, C and copies. It
    # is exposed communication but does not count in the overlap.
    message_wait: Intervals = EMPTY

    def idle(self, low: int, high: int) -> Intervals:
        """Idle time of the device within ``[low, high)``."""
        rest = subtract(complement(self.computation, low, high), self.exposed_comm)
        rest = subtract(rest, self.exposed_copy)
        return subtract(rest, self.message_wait) if self.message_wait.size else rest


class RankContext(msgspec.Struct, frozen=True, kw_only=True):
    """Input of one rank's analysis, in addition to its tables. Times on the rank's own clock."""

    rank: int  # Global rank.
    steps: Int64Array  # int64 step numbers of the windows.
    windows: Intervals  # The analysed step windows, in order, disjoint.
    # For each row of the rank's COLLECTIVES table, when the last member started; ABSENT if the row
    # was not matched.
    wait_end_ns: Int64Array
    axis: NDArray[np.int32]  # For each row of COLLECTIVES, index into ``axis_names``.
    axis_names: tuple[str, ...]  # Mesh axes or group descriptions.
    is_cpu: bool = False  # Whether CPU threads were measured, because there is no GPU.
    is_capture: bool = False  # Whether the only window is the whole capture rather than a step.
    # First window to simulate, and the one after the last; None for all.
    simulated: tuple[int, int] | None = None
    collections: Intervals = EMPTY  # Garbage collections of the training thread, a set; own clock.
    is_corrected: bool = False  # Whether the profiler's cost was taken out of the tables.
    is_explained: bool = True  # Whether its computation is explained by operator.
    drawn: tuple[int, ...] = ()  # Windows to draw.
    drawn_pieces: int = 0  # Most pieces of each of them.


class RankLane(msgspec.Struct, frozen=True, kw_only=True):
    """Activities of one stream or CPU thread in a drawn step, in order of start."""

    title: str  # For example ``stream 7``.
    start_ns: Int64Array  # int64, since the start of the window.
    end_ns: Int64Array  # int64.
    name: Coded  # Name of each activity.


class RankStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step to draw: pieces one after another, each of one class."""

    window: int  # Index of its analysed window.
    kind: Int64Array  # int64, class of each piece (:mod:`distprof.sections.picture`).
    end_ns: Int64Array  # int64, its end since the start of the window.
    lanes: tuple[RankLane, ...]  # Its streams and CPU threads; empty unless it is explained.


class KernelStats(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel name on one rank, inside the analysed windows."""

    name: str
    kind: int
    count: int
    total_ns: int
    median_ns: int


class KernelSteps(msgspec.Struct, frozen=True, kw_only=True):
    """The longest computation kernels of one rank, N of them, in each of S analysed steps."""

    names: tuple[str, ...]  # Names of the kernels.
    # Shape ``(N, S)``. All arrays are int32 if the numbers fit, else int64.
    count: NDArray[np.signedinteger[Any]]
    total_ns: NDArray[np.signedinteger[Any]]  # Shape ``(N, S)``.
    # Shape ``(N, S, 3)``: lower quartile, median and upper quartile of the durations; 0 if there
    # are none.
    quartile_ns: NDArray[np.signedinteger[Any]]
    # Shape ``(N, S)``: thread blocks of all launches; ABSENT unless the trace has those of each
    # launch.
    blocks: NDArray[np.signedinteger[Any]]


class PauseStats(msgspec.Struct, frozen=True, kw_only=True):
    """Pauses of one rank's CPU of one kind and name, inside the analysed windows."""

    kind: str  # ``sync``, ``input``, ``collection``, ``memory``, ``range`` or ``python``.
    name: str  # Call or range.
    count: int  # Number of pauses.
    blocked_ns: int  # CPU time in them.
    idle_ns: int  # Idle time of the GPU that they caused.
    caller: str = ""  # Operator or range that made most of these calls; empty if unknown.


class LikelySteps(msgspec.Struct, frozen=True, kw_only=True):
    """How long a step of one rank may take without the profiler, mean over its windows."""

    likely_ns: int  # If the profiler costs as much as on fast CPUs.
    least_ns: int  # If it costs as much as on slow ones.
    num_operators: int  # Recorded operators per step.


class StageMarks(msgspec.Struct, frozen=True, kw_only=True):
    """Work of one pipeline stage on one rank."""

    stage: int  # Its number in the pipeline.
    work_ns: Int64Array  # int64 per analysed step: computation inside its marks.
    num_micro_batches: Int64Array  # int64 per analysed step.


class NamedRanges(msgspec.Struct, frozen=True, kw_only=True):
    """Ranges whose names say that they are slots of a micro-batch, one row each."""

    stage: NDArray[np.int32]  # int32, number of the stage in the pipeline.
    kind: NDArray[np.int8]  # int8, a SlotKind.
    micro_batch: NDArray[np.int32]  # int32.
    start_ns: Int64Array  # int64, on the rank's own clock.
    end_ns: Int64Array  # int64.

    def __len__(self) -> int:
        return len(self.stage)

    def take(self, rows: NDArray[np.intp]) -> NamedRanges:
        """Some of the ranges."""
        fields = NamedRanges.__struct_fields__
        return NamedRanges(**{name: getattr(self, name)[rows] for name in fields})


class StageSlots(NamedRanges, frozen=True, kw_only=True):
    """Work of a rank's pipeline stages, one row per slot of a micro-batch, in order of start."""

    origin: str  # Readable source of the slots: ``distprof marks``, ``torch annotations``, …
    step: Int64Array  # int64, index of the analysed window that holds its start.
    work_ns: Int64Array  # int64, computation inside it.
    # int64, end of the last wait for a message since the rank's previous slot; ABSENT if there was
    # none. None if waits are unknown.
    wait_end_ns: Int64Array | None = None
    is_sure: bool = True  # Whether its bounds are those of the work itself, rather than inferred.


class Own(IntEnum):
    """How own time was spent: columns of :attr:`MainLine.own_ns`."""

    COMPUTATION = 0
    COPY = 1
    HOST = 2  # idle: the CPU launched late
    INPUT = 3  # idle: waiting for input
    SYNC = 4  # idle: a synchronising call
    OTHER = 5  # idle: another cause, or unknown
    PAUSE = 6  # idle: the CPU did something else (``MainLine.parts_ns`` says what)


Part: TypeAlias = tuple[Own, str]
"""A part of own time: how it was spent, and a name of some of it; empty for all of it."""


class LaunchBounds(msgspec.Struct, frozen=True, kw_only=True):
    """Segments of one line that cannot start before a delay after the end of another one."""

    after: Int64Array  # int64, the segment in which the CPU waited for the GPU.
    segment: Int64Array  # int64, a later segment.
    # int64, from the end of the first to the start of the second; may be negative.
    delay_ns: Int64Array
    excess_ns: Int64Array  # int64, the delay less the own time between them; always positive.

    @staticmethod
    def none() -> LaunchBounds:
        """No bounds."""
        empty = np.empty(0, np.int64)
        return LaunchBounds(after=empty, segment=empty, delay_ns=empty, excess_ns=empty)


class MainLine(msgspec.Struct, frozen=True, kw_only=True):
    """Segments of one rank from its first analysed window to its last, S of them."""

    of_rows: ClassVar[tuple[str, ...]] = (
        *("issue", "leader", "unheld", "copy_ns", "resume", "exposed"),
    )

    start_ns: int  # Start of the first window, own clock.
    own_ns: Int64Array  # int64, shape ``(S, len(Own))``. The last segment is empty.
    stage_ns: Int64Array  # int64 per segment: computation inside the marks of pipeline stages.
    # int32 per segment: the stage that computes most in it; ABSENT for none.
    stage: NDArray[np.int32]
    # int64 per row of COLLECTIVES: the segment after which it was issued; ABSENT if that was
    # outside of the line.
    issue: Int64Array
    # int64 per row: the row on another stream whose end it waited for; ABSENT for none.
    leader: Int64Array
    # int64 per row: the segment after which it would have been issued, had it not waited for a copy
    # from the CPU; ABSENT if it did not.
    unheld: Int64Array
    copy_ns: Int64Array  # int64 per row: how long it waited for the copy; 0 if it did not.
    # The segment that could not start before the row's end; ABSENT outside of the line, or if the
    # end is unknown. For a row that overlapped with computation, the segment of the pipeline slot
    # that needs it, else the one after its window.
    resume: Int64Array
    exposed: NDArray[np.bool_]  # bool, whether the rank was blocked when the row ended.
    # int64 for each time that it was blocked in a send or receive without a known transfer time,
    # own clock.
    wait_start_ns: Int64Array
    wait_end_ns: Int64Array  # When it continued.
    wait_resume: Int64Array  # The segment that it continued with.
    opens: Int64Array  # int64 per window: the segment that it starts with.
    closes: Int64Array  # The segment that starts at its end.
    bounds: LaunchBounds  # Earliest starts of segments, given by the CPU's launches.
    # int64 per analysed window: how much longer than its own time these launches would make it, if
    # the rank never waited for another.
    held_ns: Int64Array
    begin_ns: Int64Array  # int64 per segment: when it started, since ``start_ns``.
    # Own time that a pause of the CPU caused, or that a change of the program would save, by the
    # name of either, int64 per segment.
    parts_ns: Mapping[Part, Int64Array] = msgspec.field(default_factory=dict)
    # Index of the first window among the analysed ones. A line may cover only some of them
    # (``RankContext.simulated``).
    first_window: int = 0
    # Row of COLLECTIVES that the first entry of each of ``of_rows`` belongs to. A partial line has
    # entries only for the rows that affect it.
    first_row: int = 0

    def __len__(self) -> int:
        return len(self.own_ns)

    def row_column(self, name: str, num_rows: int) -> NDArray[Any]:
        """One of ``of_rows`` with an entry for each row; ABSENT, or False, if there was none."""
        values: NDArray[Any] = getattr(self, name)
        if len(values) == num_rows:
            return values
        outside = False if values.dtype == np.bool_ else ABSENT
        whole = np.full(num_rows, outside, dtype=values.dtype)
        whole[self.first_row : self.first_row + len(values)] = values
        return whole


class RankGradients(msgspec.Struct, frozen=True, kw_only=True):
    """Gradient reductions on one rank, one entry for those that follow one forward, in order."""

    axis: NDArray[np.int32]  # int32, index into the rank's ``row_axis_names``.
    window: Int64Array  # int64, index of the analysed window.
    update: Int64Array  # int64, the same number for all that one optimizer update waits for.
    num_buckets: Int64Array  # int64, collectives of the reduction.
    # int64, rows of COLLECTIVES: those of the first reduction, then the second's, and so on.
    rows: Int64Array
    bytes: Int64Array  # int64, bytes of all buckets.
    exposed_ns: Int64Array  # int64.
    wait_ns: Int64Array  # int64, exposed waiting; ABSENT if a bucket was not matched.
    # int64, time in which data moves, overlapped or not; ABSENT if a bucket was not matched.
    transfer_ns: Int64Array
    last_bytes: Int64Array  # int64, bytes of the bucket issued last.
    last_exposed_ns: Int64Array  # int64, its exposed time without waiting.
    # int64, computation of backward before the first bucket is ready; ABSENT if the start of
    # backward is unknown.
    before_first_ns: Int64Array
    backward_ns: Int64Array  # int64, the same before the last bucket is ready.
    num_forwards: Int64Array  # int64, forwards that the update waits for.
    dtypes: dict[int, tuple[str, ...]]  # Element types on the wire, by axis.
    marks_updates: bool  # Whether updates are marked; if not, each reduction counts as an update.
    row_bytes: Int64Array = np.empty(0, np.int64)  # int64, bytes of each of ``rows``.
    # int64, time in which its data moves; its whole time if it was not matched.
    row_moving_ns: Int64Array = np.empty(0, np.int64)
    search_ns: int = 0  # Time spent searching for unused parameters, in all windows.
    search_exposed_ns: int = 0  # The exposed part of it, with the bitmap that ranks exchange.


class RankCopies(msgspec.Struct, frozen=True, kw_only=True):
    """Copies of one kind on one rank, inside its windows."""

    direction: str  # As in ``ExposedCopies``.
    host_memory: str  # As in ``ExposedCopies``.
    count: int  # Copies that start inside the windows.
    num_bytes: int  # Bytes that they move; ABSENT if the size of one is unknown.
    duration_ns: int  # Sum of their durations.
    exposed_ns: int  # Time in which one of these copies runs and nothing else.
    # Operators that launched most of them, with the time of their copies; empty if copies are too
    # short to search for them.
    operators: Mapping[str, int] = {}


class RankTrain(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive reductions on one rank while nothing else runs."""

    kind: int  # A CollectiveKind.
    group: str  # Their process group.
    count: int  # Number of reductions.
    busy_ns: int  # Time in them.
    gap_ns: int  # Time between them.
    median_ns: int  # Median of their durations.


class Detail(msgspec.Struct, frozen=True, kw_only=True):
    """How much detail a report contains."""

    # Whether it contains every step of every rank, regardless of their number.
    every_step: bool = False


class ExposedRows(NamedTuple):
    """Exposed time of each row of COLLECTIVES inside the windows.

    Time that several rows expose together is counted in one of them.
    """

    ns: Int64Array
    wait_ns: Int64Array  # The same for its wait; ABSENT if not matched.


class RankAnalysis(msgspec.Struct, frozen=True, kw_only=True):
    """All measurements of one rank alone; small enough to cross a process boundary."""

    rank: int
    steps: tuple[StepBreakdown, ...]  # Breakdown of each analysed step.
    overlap: RankOverlap  # Overlap over all analysed steps.
    axes: tuple[AxisOverlap, ...]  # Overlap by axis, with only this rank in ``ranks``.
    # Idle time by cause, None without CPU rows (then the cause of all idle time is unknown).
    idle: RankIdle | None
    # Pauses of the launching threads by kind and name, synchronising calls included.
    cpu_pauses: tuple[PauseStats, ...]
    waterfall: RankWaterfall  # Exact sum over all analysed steps.
    kernels: tuple[KernelStats, ...]  # Computation, communication and copy rows by name.
    exposed: ExposedRows
    # For each row of COLLECTIVES, index of the window in which it ends, or on a CPU of the step
    # that issued it; ABSENT outside.
    collective_step: NDArray[np.int32]
    idle_ns: Mapping[IdleCause, Int64Array]  # Idle time blamed on each cause, per analysed step.
    computation_ns: Int64Array  # Computation, per analysed step.
    # Idle time at the end of each analysed step, whatever the cause.
    tail_ns: Int64Array = np.empty(0, np.int64)
    is_cpu: bool = False  # Whether CPU threads were measured.
    # Work of the pipeline stages that it holds, ascending; empty without marks.
    stages: tuple[StageMarks, ...] = ()
    slots: StageSlots | None = None  # Slots of these stages, None without marks.
    message_wait_ns: Int64Array | None = None
    # Computation in attention, per analysed step; empty if it was not measured.
    attention_ns: Int64Array = np.empty(0, np.int64)
    # Own time between the moments at which it issued communication and continued after it; None
    # without windows.
    line: MainLine | None = None
    window_start_ns: Int64Array = np.empty(0, np.int64)  # Start of each analysed window, own clock.
    window_end_ns: Int64Array = np.empty(0, np.int64)  # End of each.
    # For each row of COLLECTIVES, index into ``row_axis_names``.
    row_axis: NDArray[np.int32] = np.empty(0, np.int32)
    row_axis_names: tuple[str, ...] = ()  # Mesh axes or group descriptions.
    input: RankInput = RankInput()  # How it is fed.
    copies: tuple[RankCopies, ...] = ()  # Its copies by direction and kind of CPU memory.
    trains: tuple[RankTrain, ...] = ()  # Its consecutive reductions while nothing else runs.
    # For each row of COLLECTIVES, the time that overlaps with computation.
    row_overlapped_ns: Int64Array = np.empty(0, np.int64)
    # For each row, whether computation runs while it begins.
    row_begins_overlapped: NDArray[np.bool_] = np.empty(0, np.bool_)
    # For each row, whether it runs on a GPU stream that also computes; empty on a CPU.
    row_among_kernels: NDArray[np.bool_] = np.empty(0, np.bool_)
    gradients: RankGradients | None = None  # Gradient reductions; None if nothing marks DDP.
    # Its kernels step by step; None if they were not measured.
    kernel_steps: KernelSteps | None = None
    # Its steps without the profiler, if only a guess is possible and matters.
    likely_steps: LikelySteps | None = None
    computation: RankComputation | None = None  # Its operators; None if it is not explained.
    drawn: tuple[RankStep, ...] = ()  # The steps to draw.

    @property
    def stage_numbers(self) -> tuple[int, ...]:
        """Pipeline stages that it holds according to marks, ascending; empty without marks."""
        return tuple(mark.stage for mark in self.stages)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankAnalyses(Mapping[int, RankAnalysis]):
    """The analysis of every rank that could be measured, by global rank, ascending."""

    by_rank: Mapping[int, RankAnalysis]  # The analyses.
    # When the last member of each collective started, own clock, by global rank
    # (:func:`distprof.join.waits.last_start_on_own_clock`).
    wait_ends: Mapping[int, Int64Array] = field(default_factory=dict)
    num_windows: int = 1  # Analysed windows per rank: steps, or 1 for the whole capture.
    # Whether the windows are steps or the whole capture.
    window: Literal["steps", "capture"] = "steps"
    unavailable: tuple[str, ...] = ()  # Which ranks were left out and why, one sentence each.

    @staticmethod
    def of(analyses: Iterable[RankAnalysis], *, num_windows: int = 1) -> RankAnalyses:
        """These analyses, without matches between them."""
        by_rank = {analysis.rank: analysis for analysis in analyses}
        return RankAnalyses(by_rank=by_rank, num_windows=num_windows)

    def __getitem__(self, rank: int) -> RankAnalysis:
        return self.by_rank[rank]

    def __iter__(self) -> Iterator[int]:
        return iter(self.by_rank)

    def __len__(self) -> int:
        return len(self.by_rank)

    @property
    def is_cpu(self) -> bool:
        """Whether CPU threads were measured on any rank."""
        return any(analysis.is_cpu for analysis in self.values())


_Found = TypeVar("_Found")


class ProbeRecords(msgspec.Struct, frozen=True, kw_only=True):
    """What probes recorded in addition to the traces, measured rank by rank."""

    # Measurements by type and rank, ranks ascending.
    found: Mapping[type, Mapping[int, Any]] = field(default_factory=dict)
    job: RunFile | None = None  # The run file, which says which probes ran; None for bare traces.
    notes: tuple[str, ...] = ()  # What was damaged, one sentence each.

    def of(self, kind: type[_Found]) -> Mapping[int, _Found]:
        """Measurements of one type by rank; ranks without one are left out."""
        return self.found.get(kind, {})

    def why(self, probe: str, found: Collection[Any]) -> tuple[str, ...]:
        """Why the probe did not work, with the ranks; empty if it worked or that is unknown."""
        if self.job is None:
            return () if found else (NO_RUN_DIRECTORY,)
        reasons: dict[str, list[int]] = {}
        for entry in self.job.ranks:
            for status in entry.probes:
                if status.name == probe and status.state != "on":
                    why = status.reason.rstrip(".") or f"the probe was {status.state}"
                    reasons.setdefault(why, []).append(entry.rank)
        if reasons:
            return tuple(f"{why} ({name_ranks(ranks)})" for why, ranks in reasons.items())
        return () if found else ("nothing was recorded",)
