"""Inputs of the analyzers: measurements of each rank alone, from its trace and its probes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar, Literal, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.artefacts.run_file import RunFile
from distprof.intervals import EMPTY, Intervals
from distprof.schema import ABSENT, Int64Array
from distprof.sections.idle.result import RankIdle
from distprof.sections.job.result import NO_RUN_DIRECTORY
from distprof.sections.overlap.result import AxisOverlap, RankOverlap
from distprof.sections.time.result import RankWaterfall, StepBreakdown
from distprof.units import name_ranks


class RankContext(msgspec.Struct, frozen=True, kw_only=True):
    """Input of one rank's analysis, in addition to its tables. Times on the rank's own clock.

    Args:
        rank: Global rank.
        steps: int64 step numbers of the windows.
        windows: The analysed step windows, in order, disjoint.
        wait_end_ns: For each row of the rank's COLLECTIVES table, when the last member started;
            ABSENT if the row was not matched.
        axis: For each row of COLLECTIVES, index into ``axis_names``.
        axis_names: Mesh axes or group descriptions.
        is_cpu: Whether CPU threads were measured, because there is no GPU.
        is_capture: Whether the only window is the whole capture rather than a step.
        simulated: First window to simulate, and the one after the last; None for all.
        collections: Garbage collections of the training thread, a set; own clock.
        is_corrected: Whether the profiler's cost was taken out of the tables.
    """

    rank: int
    steps: Int64Array
    windows: Intervals
    wait_end_ns: Int64Array
    axis: NDArray[np.int32]
    axis_names: tuple[str, ...]
    is_cpu: bool = False
    is_capture: bool = False
    simulated: tuple[int, int] | None = None
    collections: Intervals = EMPTY
    is_corrected: bool = False


class KernelStats(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel name on one rank, inside the analysed windows."""

    name: str
    kind: int
    count: int
    total_ns: int
    median_ns: int


class KernelSteps(msgspec.Struct, frozen=True, kw_only=True):
    """The longest computation kernels of one rank, N of them, in each of S analysed steps.

    Args:
        names: Names of the kernels.
        count: Shape ``(N, S)``. All arrays are int32 if the numbers fit, else int64.
        total_ns: Shape ``(N, S)``.
        quartile_ns: Shape ``(N, S, 3)``: lower quartile, median and upper quartile of the
            durations; 0 if there are none.
        blocks: Shape ``(N, S)``: thread blocks of all launches; ABSENT unless the trace has those
            of each launch.
    """

    names: tuple[str, ...]
    count: NDArray[np.signedinteger[Any]]
    total_ns: NDArray[np.signedinteger[Any]]
    quartile_ns: NDArray[np.signedinteger[Any]]
    blocks: NDArray[np.signedinteger[Any]]


class PauseStats(msgspec.Struct, frozen=True, kw_only=True):
    """Pauses of one rank's CPU of one kind and name, inside the analysed windows.

    Args:
        kind: ``sync``, ``input``, ``collection``, ``memory``, ``range`` or ``python``.
        name: Call or range.
        count: Number of pauses.
        blocked_ns: CPU time in them.
        idle_ns: Idle time of the GPU that they caused.
        caller: Operator or range that made most of these calls; empty if unknown.
    """

    kind: str
    name: str
    count: int
    blocked_ns: int
    idle_ns: int
    caller: str = ""


class LikelySteps(msgspec.Struct, frozen=True, kw_only=True):
    """How long a step of one rank may take without the profiler, mean over its windows.

    Args:
        likely_ns: If the profiler costs as much as on fast CPUs.
        least_ns: If it costs as much as on slow ones.
        num_operators: Recorded operators per step.
    """

    likely_ns: int
    least_ns: int
    num_operators: int


class StageMarks(msgspec.Struct, frozen=True, kw_only=True):
    """Work of one pipeline stage on one rank.

    Args:
        stage: Its number in the pipeline.
        work_ns: int64 per analysed step: computation inside its marks.
        num_micro_batches: int64 per analysed step.
    """

    stage: int
    work_ns: Int64Array
    num_micro_batches: Int64Array


class StageSlots(msgspec.Struct, frozen=True, kw_only=True):
    """Work of a rank's pipeline stages, one row per slot of a micro-batch, in order of start.

    Args:
        origin: Readable source of the slots: ``distprof marks``, ``torch annotations``, …
        stage: int32, number of the stage in the pipeline.
        kind: int8, a SlotKind.
        micro_batch: int32.
        step: int64, index of the analysed window that holds its start.
        start_ns: int64, on the rank's own clock.
        end_ns: int64.
        work_ns: int64, computation inside it.
        wait_end_ns: int64, end of the last wait for a message since the rank's previous slot;
            ABSENT if there was none. None if waits are unknown.
        is_sure: Whether its bounds are those of the work itself, rather than inferred.
    """

    origin: str
    stage: NDArray[np.int32]
    kind: NDArray[np.int8]
    micro_batch: NDArray[np.int32]
    step: Int64Array
    start_ns: Int64Array
    end_ns: Int64Array
    work_ns: Int64Array
    wait_end_ns: Int64Array | None = None
    is_sure: bool = True

    def __len__(self) -> int:
        return len(self.stage)


class Own(IntEnum):
    """How own time was spent: columns of :attr:`MainLine.own_ns`."""

    COMPUTATION = 0
    COPY = 1
    HOST = 2  # idle: the CPU launched late
    INPUT = 3  # idle: waiting for input
    SYNC = 4  # idle: a synchronising call
    OTHER = 5  # idle: another cause, or unknown
    PAUSE = 6  # idle: the CPU did something else (``MainLine.pause_ns`` says what)


class LaunchBounds(msgspec.Struct, frozen=True, kw_only=True):
    """Segments of one line that cannot start before a delay after the end of another one.

    Args:
        after: int64, the segment in which the CPU waited for the GPU.
        segment: int64, a later segment.
        delay_ns: int64, from the end of the first to the start of the second; may be negative.
        excess_ns: int64, the delay less the own time between them; always positive.
    """

    after: Int64Array
    segment: Int64Array
    delay_ns: Int64Array
    excess_ns: Int64Array

    @staticmethod
    def none() -> LaunchBounds:
        """No bounds."""
        empty = np.empty(0, np.int64)
        return LaunchBounds(after=empty, segment=empty, delay_ns=empty, excess_ns=empty)


class MainLine(msgspec.Struct, frozen=True, kw_only=True):
    """Segments of one rank from its first analysed window to its last, S of them.

    Args:
        start_ns: Start of the first window, own clock.
        own_ns: int64, shape ``(S, len(Own))``. The last segment is empty.
        stage_ns: int64 per segment: computation inside the marks of pipeline stages.
        stage: int32 per segment: the stage that computes most in it; ABSENT for none.
        issue: int64 per row of COLLECTIVES: the segment after which it was issued; ABSENT if that
            was outside of the line.
        leader: int64 per row: the row on another stream whose end it waited for; ABSENT for none.
        unheld: int64 per row: the segment after which it would have been issued, had it not waited
            for a copy from the CPU; ABSENT if it did not.
        copy_ns: int64 per row: how long it waited for the copy; 0 if it did not.
        resume: The segment that could not start before the row's end; ABSENT outside of the line,
            or if the end is unknown. For a row that overlapped with computation, the segment of the
            pipeline slot that needs it, else the one after its window.
        exposed: bool, whether the rank was blocked when the row ended.
        wait_start_ns: int64 for each time that it was blocked in a send or receive without a known
            transfer time, own clock.
        wait_end_ns: When it continued.
        wait_resume: The segment that it continued with.
        opens: int64 per window: the segment that it starts with.
        closes: The segment that starts at its end.
        bounds: Earliest starts of segments, given by the CPU's launches.
        held_ns: int64 per analysed window: how much longer than its own time these launches would
            make it, if the rank never waited for another.
        begin_ns: int64 per segment: when it started, since ``start_ns``.
        pause_ns: Name of a pause of the CPU to the part of ``own_ns`` in ``Own.PAUSE`` that it
            caused, int64 per segment.
        first_window: Index of the first window among the analysed ones. A line may cover only some
            of them (``RankContext.simulated``).
        first_row: Row of COLLECTIVES that the first entry of each of ``of_rows`` belongs to. A
            partial line has entries only for the rows that affect it.
    """

    of_rows: ClassVar[tuple[str, ...]] = (
        *("issue", "leader", "unheld", "copy_ns", "resume", "exposed"),
    )

    start_ns: int
    own_ns: Int64Array
    stage_ns: Int64Array
    stage: NDArray[np.int32]
    issue: Int64Array
    leader: Int64Array
    unheld: Int64Array
    copy_ns: Int64Array
    resume: Int64Array
    exposed: NDArray[np.bool_]
    wait_start_ns: Int64Array
    wait_end_ns: Int64Array
    wait_resume: Int64Array
    opens: Int64Array
    closes: Int64Array
    bounds: LaunchBounds
    held_ns: Int64Array
    begin_ns: Int64Array
    pause_ns: Mapping[str, Int64Array] = msgspec.field(default_factory=dict)
    first_window: int = 0
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
    """Gradient reductions on one rank, one entry for those that follow one forward, in order.

    Args:
        axis: int32, index into the rank's ``row_axis_names``.
        window: int64, index of the analysed window.
        update: int64, the same number for all that one optimizer update waits for.
        num_buckets: int64, collectives of the reduction.
        rows: int64, rows of COLLECTIVES: those of the first reduction, then the second's, and so
            on.
        bytes: int64, bytes of all buckets.
        exposed_ns: int64.
        wait_ns: int64, exposed waiting; ABSENT if a bucket was not matched.
        transfer_ns: int64, time in which data moves, overlapped or not; ABSENT if a bucket was not
            matched.
        last_bytes: int64, bytes of the bucket issued last.
        last_exposed_ns: int64, its exposed time without waiting.
        before_first_ns: int64, computation of backward before the first bucket is ready; ABSENT
            if the start of backward is unknown.
        backward_ns: int64, the same before the last bucket is ready.
        row_bytes: int64, bytes of each of ``rows``.
        row_moving_ns: int64, time in which its data moves; its whole time if it was not matched.
        num_forwards: int64, forwards that the update waits for.
        dtypes: Element types on the wire, by axis.
        marks_updates: Whether updates are marked; if not, each reduction counts as an update.
        search_ns: Time spent searching for unused parameters, in all windows.
        search_exposed_ns: The exposed part of it, with the bitmap that ranks exchange.
    """

    axis: NDArray[np.int32]
    window: Int64Array
    update: Int64Array
    num_buckets: Int64Array
    rows: Int64Array
    bytes: Int64Array
    exposed_ns: Int64Array
    wait_ns: Int64Array
    transfer_ns: Int64Array
    last_bytes: Int64Array
    last_exposed_ns: Int64Array
    before_first_ns: Int64Array
    backward_ns: Int64Array
    num_forwards: Int64Array
    dtypes: dict[int, tuple[str, ...]]
    marks_updates: bool
    row_bytes: Int64Array = msgspec.field(default_factory=lambda: np.empty(0, np.int64))
    row_moving_ns: Int64Array = msgspec.field(default_factory=lambda: np.empty(0, np.int64))
    search_ns: int = 0
    search_exposed_ns: int = 0


class RankInput(msgspec.Struct, frozen=True, kw_only=True):
    """How one rank is fed, inside its analysed windows.

    Args:
        num_own_loads: Batches that the training thread loaded itself.
        num_worker_loads: Batches that it took from data loader workers.
        num_pageable: Copies from pageable CPU memory to the GPU.
        pageable_ns: Time in them.
        exposed_pageable_ns: The part of it that overlaps with neither computation nor
            communication.
    """

    num_own_loads: int = 0
    num_worker_loads: int = 0
    num_pageable: int = 0
    pageable_ns: int = 0
    exposed_pageable_ns: int = 0


class RankCopies(msgspec.Struct, frozen=True, kw_only=True):
    """Copies of one kind on one rank, inside its windows.

    Args:
        direction: As in ``ExposedCopies``.
        host_memory: As in ``ExposedCopies``.
        count: Copies that start inside the windows.
        num_bytes: Bytes that they move; ABSENT if the size of one is unknown.
        duration_ns: Sum of their durations.
        exposed_ns: Time in which one of these copies runs and nothing else.
        operators: Operators that launched most of them, with the time of their copies; empty if
            copies are too short to search for them.
    """

    direction: str
    host_memory: str
    count: int
    num_bytes: int
    duration_ns: int
    exposed_ns: int
    operators: Mapping[str, int] = {}


class RankTrain(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive reductions on one rank while nothing else runs.

    Args:
        kind: A CollectiveKind.
        group: Their process group.
        count: Number of reductions.
        busy_ns: Time in them.
        gap_ns: Time between them.
        median_ns: Median of their durations.
    """

    kind: int
    group: str
    count: int
    busy_ns: int
    gap_ns: int
    median_ns: int


class Detail(msgspec.Struct, frozen=True, kw_only=True):
    """How much detail a report contains.

    Args:
        every_step: Whether it contains every step of every rank, regardless of their number.
    """

    every_step: bool = False


class RankAnalysis(msgspec.Struct, frozen=True, kw_only=True):
    """All measurements of one rank alone; small enough to cross a process boundary.

    Args:
        steps: Breakdown of each analysed step.
        overlap: Overlap over all analysed steps.
        axes: Overlap by axis, with only this rank in ``ranks``.
        idle: Idle time by cause, None without CPU rows (then the cause of all idle time is
            unknown).
        cpu_pauses: Pauses of the launching threads by kind and name, synchronising calls included.
        waterfall: Exact sum over all analysed steps.
        kernels: Computation, communication and copy rows by name.
        exposed_ns: For each row of COLLECTIVES, exposed time inside the windows; time that several
            rows expose together is counted in one of them.
        exposed_wait_ns: The same for its wait; ABSENT if not matched.
        collective_step: For each row of COLLECTIVES, index of the window in which it ends, or on a
            CPU of the step that issued it; ABSENT outside.
        input_ns: Idle time blamed on input, per analysed step.
        computation_ns: Computation, per analysed step.
        idle_host_ns: Idle time blamed on the CPU, per analysed step.
        tail_ns: Idle time at the end of each analysed step, whatever the cause.
        idle_comm_wait_ns: Idle time blamed on waiting for communication, per analysed step.
        is_cpu: Whether CPU threads were measured.
        stages: Work of the pipeline stages that it holds, ascending; empty without marks.
        slots: Slots of these stages, None without marks.
        attention_ns: Computation in attention, per analysed step; empty if it was not measured.
        line: Own time between the moments at which it issued communication and continued after it;
            None without windows.
        window_start_ns: Start of each analysed window, own clock.
        window_end_ns: End of each.
        row_axis: For each row of COLLECTIVES, index into ``row_axis_names``.
        row_axis_names: Mesh axes or group descriptions.
        input: How it is fed.
        copies: Its copies by direction and kind of CPU memory.
        trains: Its consecutive reductions while nothing else runs.
        row_overlapped_ns: For each row of COLLECTIVES, the time that overlaps with computation.
        row_begins_overlapped: For each row, whether computation runs while it begins.
        row_among_kernels: For each row, whether it runs on a GPU stream that also computes; empty
            on a CPU.
        gradients: Gradient reductions; None if nothing marks DDP.
        kernel_steps: Its kernels step by step; None if they were not measured.
        likely_steps: Its steps without the profiler, if only a guess is possible and matters.
    """

    rank: int
    steps: tuple[StepBreakdown, ...]
    overlap: RankOverlap
    axes: tuple[AxisOverlap, ...]
    idle: RankIdle | None
    cpu_pauses: tuple[PauseStats, ...]
    waterfall: RankWaterfall
    kernels: tuple[KernelStats, ...]
    exposed_ns: Int64Array
    exposed_wait_ns: Int64Array
    collective_step: NDArray[np.int32]
    input_ns: Int64Array
    computation_ns: Int64Array
    idle_host_ns: Int64Array
    idle_comm_wait_ns: Int64Array
    tail_ns: Int64Array = msgspec.field(default_factory=lambda: np.empty(0, np.int64))
    is_cpu: bool = False
    stages: tuple[StageMarks, ...] = ()
    slots: StageSlots | None = None
    message_wait_ns: Int64Array | None = None
    attention_ns: Int64Array = msgspec.field(default_factory=lambda: np.empty(0, np.int64))
    line: MainLine | None = None
    window_start_ns: Int64Array = msgspec.field(default_factory=lambda: np.empty(0, np.int64))
    window_end_ns: Int64Array = msgspec.field(default_factory=lambda: np.empty(0, np.int64))
    row_axis: NDArray[np.int32] = msgspec.field(default_factory=lambda: np.empty(0, np.int32))
    row_axis_names: tuple[str, ...] = ()
    input: RankInput = RankInput()
    copies: tuple[RankCopies, ...] = ()
    trains: tuple[RankTrain, ...] = ()
    row_overlapped_ns: Int64Array = msgspec.field(default_factory=lambda: np.empty(0, np.int64))
    row_begins_overlapped: NDArray[np.bool_] = msgspec.field(
        default_factory=lambda: np.empty(0, np.bool_)
    )
    row_among_kernels: NDArray[np.bool_] = msgspec.field(
        default_factory=lambda: np.empty(0, np.bool_)
    )
    gradients: RankGradients | None = None
    kernel_steps: KernelSteps | None = None
    likely_steps: LikelySteps | None = None

    @property
    def stage_numbers(self) -> tuple[int, ...]:
        """Pipeline stages that it holds according to marks, ascending; empty without marks."""
        return tuple(mark.stage for mark in self.stages)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankAnalyses(Mapping[int, RankAnalysis]):
    """The analysis of every rank that could be measured, by global rank, ascending.

    Args:
        by_rank: The analyses.
        wait_ends: When the last member of each collective started, own clock, by global rank
            (:func:`distprof.join.waits.last_start_on_own_clock`).
        num_windows: Analysed windows per rank: steps, or 1 for the whole capture.
        window: Whether the windows are steps or the whole capture.
        unavailable: Which ranks were left out and why, one sentence each.
    """

    by_rank: Mapping[int, RankAnalysis]
    wait_ends: Mapping[int, Int64Array] = field(default_factory=dict)
    num_windows: int = 1
    window: Literal["steps", "capture"] = "steps"
    unavailable: tuple[str, ...] = ()

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
    """What probes recorded in addition to the traces, measured rank by rank.

    Args:
        found: Measurements by type and rank, ranks ascending.
        job: The run file, which says which probes ran; None for bare traces.
        notes: What was damaged, one sentence each.
    """

    found: Mapping[type, Mapping[int, Any]] = field(default_factory=dict)
    job: RunFile | None = None
    notes: tuple[str, ...] = ()

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
