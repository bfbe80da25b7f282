"""Where each rank's time went: computation, exposed communication, exposed copies, idle."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.artefacts.record import grouped
from distprof.intervals import (
    Intervals,
    covered,
    covered_ns,
    intersect,
    outermost,
    subtract,
    total,
    union,
    union_where,
)
from distprof.run.evidence import OperationLog
from distprof.run.run import Run
from distprof.run.tables import intervals_of, join_launches
from distprof.schema import ABSENT, Int64Array, Table
from distprof.sections.context import Detail, RankAnalyses, RankContext, RankCopies, Timeline
from distprof.sections.idle import RankIdle
from distprof.sections.time import (
    BreakdownResult,
    ExposedCopies,
    RankBreakdown,
    RankWaterfall,
    StepBreakdown,
    StepTimeResult,
    WaterfallResult,
)
from distprof.terms import MESSAGES, ActivityKind, StepSource


def rank_timeline(activity: Table) -> Timeline:
    """The sets from which all times are computed. Annotations do not count.

    Source:
        Formula sheet, "Measured from traces".
    """
    computation = _union_of(activity, ActivityKind.COMPUTATION)
    communication = _union_of(activity, ActivityKind.COMMUNICATION)
    copies = _union_of(activity, ActivityKind.COPY)
    waiting = _union_of(activity, ActivityKind.WAITING)
    for busy in (computation, communication, copies):
        waiting = subtract(waiting, busy) if waiting.size else waiting
    return Timeline(
        computation=computation,
        communication=communication,
        exposed_comm=subtract(communication, computation),
        exposed_copy=subtract(subtract(copies, computation), communication),
        message_wait=waiting,
    )


def rank_computation_ns(windows: Intervals, timeline: Timeline) -> Int64Array:
    """Computation in each window."""
    return covered(windows, timeline.computation)


def rank_tail_ns(windows: Intervals, timeline: Timeline) -> Int64Array:
    """Idle time at the end of each window, after the last activity in it."""
    last = windows.start.copy()
    parts = (timeline.computation, timeline.exposed_comm, timeline.exposed_copy)
    for busy in (*parts, timeline.message_wait):
        if busy.size:
            at = np.maximum(np.searchsorted(busy.start, windows.end) - 1, 0)
            begun = busy.start[at] < windows.end
            last = np.maximum(last, np.where(begun, np.minimum(busy.end[at], windows.end), 0))
    return windows.end - np.maximum(last, windows.start)


def rank_copies(
    activity: Table, windows: Intervals, timeline: Timeline, load_host: Callable[[], Table] | None
) -> tuple[RankCopies, ...]:
    """Copies by kind, with their exposed time."""
    return measure_copies(activity, windows, timeline.exposed_copy, load_host)


def rank_steps(context: RankContext, timeline: Timeline) -> tuple[StepBreakdown, ...]:
    """Exclusive split of each window; an activity that spans two windows counts in each in part."""
    windows = context.windows
    span = windows.end - windows.start
    computation = covered(windows, timeline.computation)
    exposed_comm = covered(windows, timeline.exposed_comm)
    exposed_comm += covered(windows, timeline.message_wait)
    exposed_copy = covered(windows, timeline.exposed_copy)
    idle = span - computation - exposed_comm - exposed_copy
    columns = {
        "step": context.steps,
        "span_ns": span,
        "computation_ns": computation,
        "exposed_comm_ns": exposed_comm,
        "exposed_copy_ns": exposed_copy,
        "idle_ns": idle,
    }
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return tuple(
        StepBreakdown(rank=context.rank, **dict(zip(columns, row, strict=True))) for row in rows
    )


MOST_STEPS = 16_384  # Most rows of single steps in a report, at 130 bytes each

MANY_RANKS = 8_192
"""Above this number of ranks, whose rows take 1,150 bytes each, an eighth of the steps is kept."""

DIFFERENT = 8
"""One in this many listed ranks is chosen because its computation differs most from the median."""


def analyze_breakdown(analyses: RankAnalyses, detail: Detail | None = None) -> BreakdownResult:
    """Steps of each rank and their sum; ``unavailable`` lists ranks that could not be measured."""
    ranks = [_add_up(analysis.rank, analysis.steps) for analysis in analyses.values()]
    num_steps = sum(len(analysis.steps) for analysis in analyses.values())
    listed: Sequence[int] = range(len(ranks))
    if num_steps > MOST_STEPS and not (detail is not None and detail.every_step):
        room = MOST_STEPS if len(ranks) <= MANY_RANKS else MOST_STEPS // 8
        # Positions of ``count`` ranks, ascending: those that differ most, and others evenly spaced
        count = max(len(ranks) * room // num_steps, 1)
        computation = np.array([rank.computation_ns for rank in ranks])
        deviation = abs(computation - np.median(computation))
        outliers = np.argsort(-deviation, kind="stable")[: count // DIFFERENT]
        others = np.setdiff1d(np.arange(len(ranks)), outliers)
        even = others[np.linspace(0, len(others) - 1, count - len(outliers)).astype(np.int64)]
        listed = np.sort(np.concatenate((outliers, even))).tolist()
    chosen = [analyses[ranks[position].rank].steps for position in listed]
    return BreakdownResult(
        ranks=tuple(ranks),
        steps=tuple(step for steps in chosen for step in steps),
        num_ranks_left_out=len(ranks) - len(listed),
        unavailable=analyses.unavailable,
    )


def analyze_step_time(run: Run, analyses: RankAnalyses) -> StepTimeResult:
    """Step durations of the measured ranks, or those from a log of operations."""
    operations = run.get(OperationLog)
    if operations is not None and operations.step_ns:
        return step_times(
            np.array([list(operations.step_ns.values())], np.int64),
            source=StepSource.OPERATIONS,
            note="Steps from the first start to the last end of their operations.",
        )
    if analyses.window == "capture" or not analyses:
        return step_times(
            np.empty((0, 0), np.int64),
            source=StepSource.CAPTURE,
            note="The whole capture is one window.",
            unavailable=("Step times are unknown: the whole capture is one window.",),
        )
    first = run.rank(next(iter(analyses)))
    durations = [one.window_end_ns - one.window_start_ns for one in analyses.values()]
    return step_times(np.array(durations), source=first.step_source, note=first.step_note)


def step_times(
    durations: Int64Array, *, source: StepSource, note: str, unavailable: Sequence[str] = ()
) -> StepTimeResult:
    """Statistics of step durations, ns, shape ``(ranks, steps)``; unknown without columns.

    The duration of a step is that of its median rank: a rank that ends one step late also begins
    the next one late, so the maxima of all steps would add up to more than the job took. ``note``
    says how step windows were found, in one sentence.
    """
    per_step = np.median(durations, axis=0) if durations.size else np.empty(0)
    is_known = len(per_step) > 0
    return StepTimeResult(
        num_steps=len(per_step),
        median_ns=int(np.median(per_step)) if is_known else None,
        p95_ns=int(np.percentile(per_step, 95)) if is_known else None,
        cv=float(per_step.std() / per_step.mean()) if len(per_step) > 1 else None,
        source=source,
        note=note,
        unavailable=tuple(unavailable),
    )


def _union_of(activity: Table, kind: ActivityKind) -> Intervals:
    start, end = intervals_of(activity)
    mask = activity["kind"] == kind
    return union(Intervals(start[mask], end[mask]), overwrite=True)  # the mask makes copies


def _add_up(rank: int, steps: Sequence[StepBreakdown]) -> RankBreakdown:
    times = RankBreakdown.__struct_fields__[1:]
    return RankBreakdown(
        rank=rank, **{field: sum(getattr(step, field) for step in steps) for field in times}
    )


# The lost-time waterfall: a step as an exact sum of its causes -----------------------------------


def waits_of(collectives: Table, wait_end_ns: Int64Array) -> Intervals:
    """Part of each row before the last member started; empty if the row's member was the last."""
    start, end = intervals_of(collectives)
    until = np.maximum(start, np.minimum(end, wait_end_ns))
    return Intervals(start, np.where(wait_end_ns == ABSENT, start, until))


def rank_waterfall(
    rank: int,
    steps: tuple[StepBreakdown, ...],
    windows: Intervals,
    timeline: Timeline,
    collectives: Table,
    wait_end_ns: Int64Array,
    idle: RankIdle | None,
) -> RankWaterfall:
    """One rank's analysed time as an exact sum.

    Matched rows split exposed communication. It is waiting while any collective waits for its last
    member. Otherwise it is point-to-point waiting while a send or recv waits, and transfer while
    any matched row runs. Time covered only by unmatched rows stays unsplit. Time blocked in a send
    or receive whose transfer time is unknown is point-to-point waiting.
    """
    wait, p2p_wait, transfer, unsplit = split_exposed(
        timeline.exposed_comm, collectives, wait_end_ns
    )
    idle_ns = sum(step.idle_ns for step in steps)
    return RankWaterfall(
        rank=rank,
        span_ns=sum(step.span_ns for step in steps),
        computation_ns=sum(step.computation_ns for step in steps),
        exposed_transfer_ns=covered_ns(windows, transfer),
        exposed_wait_ns=covered_ns(windows, wait),
        exposed_p2p_wait_ns=covered_ns(windows, p2p_wait)
        + covered_ns(windows, timeline.message_wait),
        exposed_comm_unsplit_ns=covered_ns(windows, unsplit),
        exposed_copy_ns=sum(step.exposed_copy_ns for step in steps),
        idle_host_ns=idle.host_ns if idle else 0,
        idle_sync_ns=idle.sync_ns if idle else 0,
        idle_pause_ns=idle.pause_ns if idle else 0,
        idle_input_ns=idle.input_ns if idle else 0,
        idle_comm_wait_ns=idle.comm_wait_ns if idle else 0,
        idle_unknown_ns=idle.unknown_ns if idle else idle_ns,
    )


def analyze_waterfall(analyses: RankAnalyses) -> WaterfallResult:
    """Each rank's waterfall and their sum."""
    ranks = tuple(analysis.waterfall for analysis in analyses.values())
    return WaterfallResult(
        num_ranks=len(ranks),
        num_steps=analyses.num_windows,
        ranks=ranks,
        all=_sum_of_parts(ranks) if ranks else None,
        copies=exposed_copies(
            (analysis.copies for analysis in analyses.values()), len(ranks) * analyses.num_windows
        ),
    )


def split_exposed(
    exposed: Intervals, collectives: Table, wait_end_ns: Int64Array
) -> tuple[Intervals, Intervals, Intervals, Intervals]:
    """Disjoint sets that make up ``exposed``: wait, point-to-point wait, transfer, unsplit."""
    is_p2p = np.isin(collectives["kind"], MESSAGES)
    waits = waits_of(collectives, wait_end_ns)
    matched = union_where(intervals_of(collectives), wait_end_ns != ABSENT)
    wait = intersect(exposed, union_where(waits, ~is_p2p))
    p2p_wait = subtract(intersect(exposed, union_where(waits, is_p2p)), wait)
    transfer = subtract(subtract(intersect(exposed, matched), wait), p2p_wait)
    return wait, p2p_wait, transfer, subtract(exposed, matched)


def _sum_of_parts(ranks: Sequence[RankWaterfall]) -> RankWaterfall:
    sums = {
        field: sum(getattr(rank, field) for rank in ranks)
        for field in RankWaterfall.__struct_fields__
    }
    return msgspec.structs.replace(ranks[0], **{**sums, "rank": ABSENT})


MANY = 0.05  # Share of the windows from which exposed copies justify reading every operator

MAX_OPERATORS = 3

_OPERATOR, _TENSOR_OPERATOR = "cpu_op", "aten::"

_CUDA = re.compile(r"Memcpy (\w)to(\w)(?: \((\w+) -> (\w+)\))?")
_HIP = re.compile(r"Copy(Host|Device)To(Host|Device)", re.IGNORECASE)


@lru_cache(1 << 10)  # all ranks have the same few names
def direction_of(name: str) -> tuple[str, str]:
    """Direction and kind of CPU memory, from the name of a copy.

    For example ``Memcpy HtoD (Pageable -> Device)`` gives ``HtoD`` and ``pageable``.
    """
    cuda = _CUDA.search(name)
    if cuda:
        words = {(word or "").lower() for word in cuda.groups()[2:]}
        memory = next((word for word in ("pageable", "pinned") if word in words), "")
        return f"{cuda[1].upper()}to{cuda[2].upper()}", memory
    hip = _HIP.search(name)
    if hip:
        return f"{hip[1][0].upper()}to{hip[2][0].upper()}", ""
    return "memset" if "memset" in name.lower() else "other", ""


def measure_copies(
    activity: Table,
    windows: Intervals,
    exposed: Intervals,
    load_host: Callable[[], Table] | None = None,
) -> tuple[RankCopies, ...]:
    """Copies of one rank by kind."""
    copies = activity.take(activity["kind"] == ActivityKind.COPY)
    names = copies.coded("name")
    start, end = intervals_of(copies)
    inside = covered(Intervals(start, np.maximum(end, start + 1)), union(windows)) > 0
    alone = intersect(exposed, union(windows))
    is_long = total(alone) >= MANY * (windows.end - windows.start).sum()
    operators = np.full(len(copies), "", dtype=object)
    if load_host is not None and alone.size and is_long:
        operators = _operators(copies, load_host())
    kinds = [direction_of(name) for name in names.values]
    found = []
    for direction, memory in sorted(set(kinds)):
        rows = names.where([kind == (direction, memory) for kind in kinds]) & inside
        sizes = copies["bytes"][rows]
        spans = union(Intervals(start[rows], end[rows]))
        spent: Counter[str] = Counter()
        for name, ns in zip(operators[rows].tolist(), (end - start)[rows].tolist(), strict=True):
            if name:
                spent[name] += ns
        found.append(
            RankCopies(
                direction=direction,
                host_memory=memory,
                count=int(rows.sum()),
                num_bytes=int(ABSENT) if (sizes == ABSENT).any() else int(sizes.sum()),
                duration_ns=int((end - start)[rows].sum()),
                exposed_ns=covered_ns(spans, alone),
                operators=dict(spent.most_common(MAX_OPERATORS)),
            )
        )
    return tuple(one for one in found if one.count)


def _operators(copies: Table, host: Table) -> NDArray[np.object_]:
    """Outermost tensor operator that launched each copy; empty if unknown."""
    launches = join_launches(copies["correlation"], host)
    names, threads = host.coded("name"), host.coded("thread").codes
    tensor = names.where([name.startswith(_TENSOR_OPERATOR) for name in names.values])
    tensor &= host.coded("category").equals(_OPERATOR)
    found = np.full(len(copies), "", dtype=object)
    for thread in np.unique(launches.thread[launches.known]).tolist():
        rows = np.flatnonzero(tensor & (threads == thread))
        rows = rows[outermost(host["start_ns"][rows], host["end_ns"][rows])]
        mine = np.flatnonzero(launches.known & (launches.thread == thread))
        if len(rows) == 0:
            continue
        call = launches.start[mine]
        at = np.searchsorted(host["start_ns"][rows], call, side="right") - 1
        inside = (at >= 0) & (call < host["end_ns"][rows[np.maximum(at, 0)]])
        within = rows[at[inside]]
        found[mine[inside]] = [names.values[code] for code in names.codes[within].tolist()]
    return found


def _busiest_overall(ones: Iterable[RankCopies]) -> tuple[str, ...]:
    spent: Counter[str] = Counter()
    for one in ones:
        spent.update(one.operators)
    return tuple(name for name, _ in spent.most_common(MAX_OPERATORS))


def exposed_copies(
    ranks: Iterable[Iterable[RankCopies]], num_samples: int
) -> tuple[ExposedCopies, ...]:
    """Copies by kind, as means over ranks and steps."""
    by_kind = grouped([((one.direction, one.host_memory), one) for rank in ranks for one in rank])
    samples = max(num_samples, 1)
    rows = [
        ExposedCopies(
            direction=direction,
            host_memory=memory,
            num_per_step=sum(one.count for one in ones) / samples,
            bytes_per_step=(
                None
                if any(one.num_bytes == ABSENT for one in ones)
                else sum(one.num_bytes for one in ones) / samples
            ),
            exposed_ns_per_step=sum(one.exposed_ns for one in ones) // samples,
            operators=_busiest_overall(ones),
        )
        for (direction, memory), ones in by_kind.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.exposed_ns_per_step, row.direction)))
