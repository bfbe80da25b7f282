"""Attribute idle time to causes: input, a synchronising call, a late CPU, communication, unknown.

From the records of the probes, also measure the time that training threads lost to garbage
collection and to waiting for input.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.artefacts.record import grouped
from distprof.intervals import (
    EMPTY,
    Intervals,
    covered,
    covered_ns,
    index_of,
    intersect,
    reach,
    subtract,
    total,
    union,
    union_where,
)
from distprof.run.records import RankRecords
from distprof.run.tables import (
    NO_THREAD,
    Launches,
    RankTables,
    distinct,
    intervals_of,
    join_launches,
)
from distprof.schema import ABSENT, Coded, Int64Array, Table
from distprof.sections.context import (
    PauseStats,
    ProbeRecords,
    RankAnalyses,
    RankAnalysis,
    RankContext,
    Timeline,
)
from distprof.sections.idle import MEMORY, CpuPause, IdleResult, PausesResult, RankIdle, RankPauses
from distprof.sections.idle.blame import DRAINING_NS, blame_pauses, pause_stats
from distprof.sections.idle.cpu_pauses import (
    PauseKind,
    Pauses,
    callers_of,
    cpu_pauses,
    launching_threads,
)
from distprof.sections.idle.gaps import (
    COPY_CALLS,
    LATENCY_LIMIT_NS,
    Gaps,
    find_gaps,
    is_loading,
    named,
    waits_for_room,
)
from distprof.sections.time import StepBreakdown
from distprof.terms import ActivityKind, IdleCause
from distprof.units import name_ranks

MAX_STEPS = 4_096
"""Pauses are kept per step for this many of a rank's last steps."""


class HostPauses(msgspec.Struct, frozen=True, kw_only=True):
    """Pauses, input and CPU time of one rank's training thread, per step."""

    # Step to time in garbage collection; None if it was not recorded.
    gc_ns: Mapping[int, int] | None = None
    # Step to time in the phase ``input``; None if phases were not logged.
    input_ns: Mapping[int, int] | None = None
    # Step to number of training tokens; None if they were not logged.
    tokens: Mapping[int, int] | None = None
    # Step to time ready to run but without a CPU; None if unknown.
    run_queue_ns: Mapping[int, int] | None = None
    cpu_ns: Mapping[int, int] | None = None  # Step to time on a CPU; None if unknown.
    # Step to time that the loaders of its batches ran on a CPU while training waited for them; None
    # if unknown.
    loader_cpu_ns: Mapping[int, int] | None = None
    # Step to time that these loaders were ready to run but without a CPU.
    loader_queue_ns: Mapping[int, int] | None = None
    untraced: frozenset[int] = frozenset()  # Steps after the first that no profiler recorded.


def measure_pauses(records: RankRecords) -> RankPauses | None:
    """Pauses of one rank; None if they were not recorded or no step was logged."""
    log, pauses = records.step_log, records.pauses
    if len(log) == 0 or (len(pauses) == 0 and "pauses" not in records.about):
        return None
    counted, steps = ~pauses["in_phase"] & _in_steps(records), log["is_probed"].copy()
    if len(log) > 1:
        counted &= pauses["step"] != log["step"][0]
        steps[0] = False
    num_steps = max(1, int(steps.sum()))

    def of_kind(kind: str) -> tuple[int, int, int | None]:
        """Total time per step, number and longest duration."""
        spans = intervals_of(pauses.take(counted & pauses.coded("kind").equals(kind)))
        longest = int(np.max(spans.end - spans.start)) if spans.size else None
        return total(union(spans)) // num_steps, spans.size, longest

    gc_ns, num_gc, longest_gc_ns = of_kind("gc")
    input_ns, num_input, longest_input_ns = of_kind("input")
    waits, queue_ns = _observed_waits(records), None
    if len(waits):
        later = waits["step"] != log["step"][0] if len(log) > 1 else slice(None)
        queue_ns = int(waits["run_queue_ns"][later].sum()) // max(1, len(log) - 1)
    lasted_ns, ran_ns, queued_ns = _mean_of_usual_steps(log)
    slept_ns = None
    if ran_ns is not None and queued_ns is not None:
        slept_ns = max(0, lasted_ns - ran_ns - queued_ns)
    return RankPauses(
        rank=records.rank,
        step_ns=int((log["end_ns"] - log["start_ns"])[steps].sum()) // num_steps,
        gc_ns_per_step=gc_ns,
        num_gc=num_gc,
        longest_gc_ns=longest_gc_ns,
        input_ns_per_step=input_ns,
        num_input=num_input,
        longest_input_ns=longest_input_ns,
        run_queue_ns_per_step=queued_ns,
        cpu_ns_per_step=ran_ns,
        slept_ns_per_step=slept_ns,
        input_queue_ns_per_step=queue_ns,
    )


UNUSUAL_STEP = 2.0
"""A step longer than this many medians is unusual: a profiler starts, or writes its file."""


MANY_UNTRACED = 8
"""With this many steps without a profiler, only these count: a profiler also uses CPUs."""


def _mean_of_usual_steps(log: Table) -> tuple[int, int | None, int | None]:
    """Duration of usual steps except the first, and its parts on a CPU and without a free one.

    A part is None if a step lacks it. It may include time between two steps, so it is limited to
    the duration of the step.
    """
    duration = (log["end_ns"] - log["start_ns"])[1:]
    if not len(duration):
        return 0, None, None
    counted = ~log["is_traced"][1:]
    if counted.sum() < MANY_UNTRACED:
        counted = np.ones_like(counted)
    usual = counted & (duration <= UNUSUAL_STEP * np.median(duration[counted]))

    def mean(column: str) -> int | None:
        spent = np.minimum(log[column][1:], duration)
        return None if (spent < 0).any() else round(float(spent[usual].mean()))

    return round(float(duration[usual].mean())), mean("cpu_ns"), mean("run_queue_ns")


def measure_host_pauses(records: RankRecords) -> HostPauses:
    """Pauses of the last steps, each step separately."""
    pauses, phases = records.pauses, records.phases
    has_pauses = len(pauses) > 0 or "pauses" in records.about
    collected = pauses.take(pauses.coded("kind").equals("gc") & _in_steps(records))
    inputs = phases.take(phases.coded("name").equals("input"))
    waits, log = _observed_waits(records), records.step_log
    # Those of the last steps without a profiler, except the first, which includes set-up.
    last = log.take(slice(max(1, len(log) - MAX_STEPS), None))
    return HostPauses(
        gc_ns=_by_step(collected) if has_pauses else None,
        input_ns=_by_step(inputs) if len(phases) else None,
        tokens=_logged(log, "tokens"),
        run_queue_ns=_within(log, "run_queue_ns"),
        cpu_ns=_within(log, "cpu_ns"),
        loader_cpu_ns=_by_step(waits, "cpu_ns") if len(waits) else None,
        loader_queue_ns=_by_step(waits, "run_queue_ns") if len(waits) else None,
        untraced=frozenset(last["step"][~last["is_traced"]].tolist()),
    )


def _observed_waits(records: RankRecords) -> Table:
    """Waits for input that recorded the CPU time of the loaders, waits inside phases included."""
    pauses = records.pauses
    observed = pauses.coded("kind").equals("input") & (pauses["run_queue_ns"] >= 0)
    return pauses.take(observed & _in_steps(records))


def _within(log: Table, column: str) -> dict[int, int] | None:
    """Times of the last steps, each limited to the step's duration; None if one is missing."""
    logged = _logged(log, column)
    durations = (log["end_ns"] - log["start_ns"]).tolist()
    limit = dict(zip(log["step"].tolist(), durations, strict=True))
    return logged and {step: min(ns, limit[step]) for step, ns in logged.items()}


def _logged(log: Table, column: str) -> dict[int, int] | None:
    """Values of the last steps, each separately; None if one is missing."""
    # The first step may lack a value that is counted from the step before it.
    steps, values = log["step"][-MAX_STEPS:], log[column][-MAX_STEPS:]
    known = values >= 0
    if not known.any() or not known[1:].all():
        return None
    return dict(zip(steps[known].tolist(), values[known].tolist(), strict=True))


def _by_step(rows: Table, column: str = "") -> dict[int, int]:
    """Time of a column, by default the duration, of rows by step, without rows outside steps."""
    spent_ns = rows[column] if column else rows["end_ns"] - rows["start_ns"]
    steps, index = np.unique(rows["step"], return_inverse=True)
    total_ns = np.zeros(len(steps), dtype=np.int64)
    np.add.at(total_ns, index, spent_ns)
    times = zip(steps.tolist(), total_ns.tolist(), strict=True)
    return dict([(step, ns) for step, ns in times if step >= 0][-MAX_STEPS:])


def analyze_pauses(records: ProbeRecords) -> PausesResult:
    """Pauses of all ranks that recorded them."""
    ranks = tuple(records.of(RankPauses).values())
    return PausesResult(ranks=ranks, unavailable=records.why("pauses", ranks))


def _in_steps(records: RankRecords) -> NDArray[np.bool_]:
    """Mask of the pauses that are mostly inside steps."""
    # Between two steps distprof starts the profiler and writes the trace, which leaves much
    # garbage.
    steps = union(intervals_of(records.step_log))
    pauses = intervals_of(records.pauses)
    return 2 * covered(pauses, steps) >= pauses.end - pauses.start


# Idle time of all ranks ---------------------------------------------------------------------------

IN_GRAPH_RATIO = 0.2  # share of idle time inside CUDA graphs above which the result says so


def analyze_idle(analyses: RankAnalyses) -> IdleResult:
    """All ranks whose idle time could be attributed, and the pauses of their CPUs."""
    blind = [rank for rank, analysis in analyses.items() if analysis.idle is None]
    known = [analysis for analysis in analyses.values() if analysis.idle is not None]
    ranks = tuple(analysis.idle for analysis in known if analysis.idle is not None)
    graphs = [one.rank for one in ranks if one.within_launch_ns > IN_GRAPH_RATIO * one.idle_ns]
    notes: tuple[str, ...] = ()
    if blind:
        notes += (
            f"The cause of idle time is unknown on {name_ranks(blind)}: "
            "CPU activities were not read, are not in the trace, or were removed from it.",
        )
    if graphs:
        notes += (
            f"Much of the idle time of {name_ranks(graphs)} is inside CUDA "
            "graphs, whose kernels the trace may lack: its cause is unknown.",
        )
    return IdleResult(
        ranks=ranks,
        pauses=_combined_pauses(known, analyses.num_windows),
        is_cpu=analyses.is_cpu,
        unavailable=notes,
    )


def _combined_pauses(analyses: Sequence[RankAnalysis], num_steps: int) -> tuple[CpuPause, ...]:
    by_name = grouped(
        [
            ((pause.kind, pause.name), (analysis.rank, pause))
            for analysis in analyses
            for pause in analysis.cpu_pauses
        ]
    )
    mean_over = max(1, len(analyses) * num_steps)
    found = [
        CpuPause(
            kind=kind,
            name=name,
            caller=max((pause for _, pause in entries), key=lambda pause: pause.idle_ns).caller,
            ranks=tuple(sorted(rank for rank, _ in entries)),
            count_per_step=sum(pause.count for _, pause in entries) / mean_over,
            cpu_ns_per_step=sum(pause.blocked_ns for _, pause in entries) // mean_over,
            idle_ns_per_step=sum(pause.idle_ns for _, pause in entries) // mean_over,
        )
        for (kind, name), entries in by_name.items()
    ]
    return tuple(
        sorted(found, key=lambda p: (-p.idle_ns_per_step, -p.cpu_ns_per_step, p.kind, p.name))
    )


# Attribution of one rank's idle time to causes: an exact partition of every gap ------------------

WAIT_CALLS = re.compile(r"\bwait_tensor$|^c10d::(wait|_wait)|^Work::wait")
"""Names of host ranges in which a thread waits for a collective."""

_ZERO_GRAD = re.compile(r"^Optimizer\.zero_grad#")

GRAPH_LAUNCHES = re.compile(r"^(cuda|hip|cu)GraphLaunch")
"""Names of calls that launch a graph of many activities. A trace may lack some of them."""


class IdleCauses(msgspec.Struct, frozen=True, kw_only=True):
    """Idle time of one rank by cause, over the whole capture."""

    # Disjoint sets of intervals; the rest of the idle time has no known cause.
    causes: dict[IdleCause, Intervals]
    late: NDArray[np.bool_]  # Mask over ACTIVITY: launched while the GPU had nothing left to do.
    # Mask over ACTIVITY: the first activity of each recorded launch call.
    launched: NDArray[np.bool_]
    # Idle time without a cause between two activities of one launch call, or before the first
    # recorded one of a graph launch that was made in time.
    within_launch: Intervals
    # Pauses of the launching threads inside the windows, by kind and name.
    pauses: tuple[PauseStats, ...]
    # Name of a pause to the idle time that it caused, for the cause ``PAUSE``; disjoint.
    named: dict[str, Intervals]
    # The part of the cause ``SYNC`` that follows copy calls which had to wait.
    after_copies: Intervals
    launches: Launches  # The launch call of each activity.
    zeroing: NDArray[np.bool_]  # Mask over ACTIVITY: launched by ``zero_grad``.
    # int64, ascending: return times of calls that had waited for the GPU, or for room in its queue.
    released_ns: Int64Array


def rank_causes(
    tables: RankTables,
    timeline: Timeline,
    windows: Intervals,
    context: RankContext,
    load_host: Callable[[], Table] | None,
) -> IdleCauses | None:
    """Attribute one rank's idle time to causes: an exact partition of every gap.

    A *gap* ``[g0, g1)`` is a maximal interval in which the GPU neither computes, communicates nor
    copies. Its *next activity* is the one that starts at ``g1`` (of several, the one launched
    first). The CPU call that launched it, found by correlation ID, spans ``[l0, l1)``. Causes are
    applied in this order, each to the time that the earlier ones left:

    1. *host*: the gap until the launch could take effect, ``[g0, max(l1, l0 + latency))``. The
       latency is at most 50 µs for work launched after the gap opened, and this rank's typical
       latency for work launched before.
    2. *input*, *sync* and *pause*: the part of *host* that exists only because the launching
       threads did something else: loaded a batch, waited for the GPU in a call, collected garbage,
       managed memory, or were in a range that the program named. At most as long as that lasted,
       taken from the gap's end. The gap in which it ended comes first, then the next ones until the
       CPU has caught up (:mod:`distprof.sections.idle.blame`).
    3. What is left of *host* is launching itself.
    4. *comm_wait*: up to 50 µs of the rest, if the next activity was launched in time and waited
       for another stream, and either it or the activity that ended at ``g0`` is communication.
    5. *unknown*: the rest, for example the GPU's own pause between queued kernels, gaps at a graph
       launch (``within_launch``; some of its kernels may not have been recorded), gaps at the end
       of the capture outside of pauses, and gaps whose next activity has no launch record.

    Without a launch record of the next activity, only data-loading ranges of any thread explain a
    gap. In traces without any launch records, as from CPU-only jobs, waiting for a collective on
    the CPU (:data:`WAIT_CALLS`) counts as *comm_wait*.
    """
    if not tables.has_host:
        return None
    launches = join_launches(tables.activity["correlation"], tables.host)
    launched = _first_of_launch(tables.activity, launches)  # first: it needs the most memory
    gaps = find_gaps(tables.activity, timeline, launches, windows)
    threads = launching_threads(launches)
    pauses = cpu_pauses(tables, launches, context.collections, windows)
    input_part = _input_part(tables.host, gaps)  # of gaps without a launch
    late = subtract(union(Intervals(gaps.start, gaps.ready)), input_part)
    spans = Intervals(pauses.start, pauses.end)
    # What the CPU does in the gap after the last activity, such as saving, ends the step.
    last = gaps.end > tables.activity["start_ns"].max(initial=ABSENT)
    idle_in_pause = _joined(late, Intervals(gaps.start[last], gaps.end[last]))
    during = intersect(union_where(spans, pauses.kind != PauseKind.SYNC), idle_in_pause)
    rest = subtract(late, during)
    rest_ns = covered(Intervals(gaps.start, gaps.ready), rest)
    left_ns = spans.end - spans.start
    left_ns = left_ns - np.where(pauses.kind == PauseKind.SYNC, 0, covered(spans, during))
    blame = blame_pauses(gaps, rest_ns, left_ns, pauses, tables.activity, launches, threads)
    rows = _last_part(gaps, rest, rest_ns, blame.ns)
    charged = intersect(union(rows), rest)
    inside = union(windows)
    idle_ns = covered(rows, intersect(charged, inside))
    stats = tuple(pause_stats(pauses, inside, intersect(during, inside), blame, idle_ns))

    def idle_of(of_pause: NDArray[np.bool_]) -> Intervals:
        """Idle time during some pauses, and what is charged to them."""
        direct = intersect(union_where(spans, of_pause & (pauses.kind != PauseKind.SYNC)), during)
        is_theirs = np.append(of_pause, False)[blame.pause]  # -1: none
        return _joined(direct, intersect(union_where(rows, is_theirs), charged))

    of_kind = {cause: idle_of(np.isin(pauses.kind, kinds)) for cause, kinds in _KINDS.items()}
    copies = Coded(pauses.name, pauses.names).isin(COPY_CALLS) & (pauses.kind == PauseKind.SYNC)
    comm_wait = _comm_wait_part(tables.host, gaps, launches, input_part)
    zeroing = union(intervals_of(tables.host.take(named(tables.host, _ZERO_GRAD))))
    return IdleCauses(
        causes={
            **of_kind,
            IdleCause.INPUT: _joined(input_part, of_kind[IdleCause.INPUT]),
            IdleCause.HOST: subtract(rest, charged),
            IdleCause.COMM_WAIT: comm_wait,
        },
        named={what: idle_of(of_pause) for what, of_pause in _by_name(pauses).items()},
        after_copies=idle_of(copies),
        within_launch=subtract(_in_launches(tables.host, gaps), comm_wait),
        late=_launched_in(Intervals(gaps.start, gaps.end), launches),
        launched=launched,
        pauses=callers_of(stats, pauses, inside, load_host),
        launches=launches,
        zeroing=_launched_in(zeroing, launches),
        released_ns=_released(pauses, waits_for_room(tables.activity, launches)),
    )


_KINDS = {
    IdleCause.INPUT: (PauseKind.INPUT,),
    IdleCause.SYNC: (PauseKind.SYNC,),
    IdleCause.PAUSE: (PauseKind.COLLECTION, PauseKind.MEMORY, PauseKind.RANGE, PauseKind.PYTHON),
}
"""Kinds of pauses by the cause of the idle time that they lead to."""


def _by_name(pauses: Pauses) -> dict[str, NDArray[np.bool_]]:
    """Masks over pauses by what was done; calls that manage memory count as one."""
    found: dict[str, NDArray[np.bool_]] = {}
    is_work = np.isin(pauses.kind, _KINDS[IdleCause.PAUSE])
    for code in distinct(pauses.name[is_work]).tolist():
        of_pause = is_work & (pauses.name == code)
        what = MEMORY if (pauses.kind[of_pause] == PauseKind.MEMORY).any() else pauses.names[code]
        found[what] = found[what] | of_pause if what in found else of_pause
    return found


def _in_launches(host: Table, gaps: Gaps) -> Intervals:
    """The rest of gaps inside a launch, or before that of a graph, which it could have ended."""
    of_graph = np.append(named(host, GRAPH_LAUNCHES), False)[gaps.call]  # ABSENT: none
    return union_where(Intervals(gaps.ready, gaps.end), gaps.within_launch | of_graph)


def _released(pauses: Pauses, for_room: Intervals) -> Int64Array:
    waited = (pauses.kind == PauseKind.SYNC) & (pauses.end - pauses.start >= DRAINING_NS)
    return np.sort(np.concatenate((pauses.end[waited], for_room.end)))


def _joined(first: Intervals, second: Intervals) -> Intervals:
    return union(Intervals(*map(np.concatenate, zip(first, second, strict=True))))


def rank_cpu_pauses(causes: IdleCauses | None) -> tuple[PauseStats, ...]:
    """Pauses of the launching threads inside the windows."""
    return causes.pauses if causes else ()


def rank_idle_ns(windows: Intervals, causes: IdleCauses | None) -> Mapping[IdleCause, Int64Array]:
    """Idle time in each window due to each cause; 0 if the causes are unknown."""
    by_cause = causes.causes if causes else dict.fromkeys(IdleCause, EMPTY)
    return {cause: covered(windows, blamed) for cause, blamed in by_cause.items()}


def rank_idle(
    rank: int,
    steps: tuple[StepBreakdown, ...],
    windows: Intervals,
    causes: IdleCauses | None,
    idle_ns: Mapping[IdleCause, Int64Array],
    activity: Table,
    inside: NDArray[np.bool_],
) -> RankIdle | None:
    """Total idle time by cause. The rest is unknown, so the causes add up."""
    if causes is None:
        return None
    total_ns = sum(step.idle_ns for step in steps)
    ns = {cause: int(per_window.sum()) for cause, per_window in idle_ns.items()}
    is_kernel = inside & np.isin(
        activity["kind"], (ActivityKind.COMPUTATION, ActivityKind.COMMUNICATION)
    )
    duration = (activity["end_ns"] - activity["start_ns"])[is_kernel]
    launched = is_kernel & causes.launched
    late = int((launched & causes.late).sum())
    return RankIdle(
        rank=rank,
        idle_ns=total_ns,
        input_ns=ns[IdleCause.INPUT],
        sync_ns=ns[IdleCause.SYNC],
        pause_ns=ns[IdleCause.PAUSE],
        host_ns=ns[IdleCause.HOST],
        comm_wait_ns=ns[IdleCause.COMM_WAIT],
        unknown_ns=total_ns - sum(ns.values()),
        within_launch_ns=covered_ns(windows, causes.within_launch),
        num_kernels=len(duration),
        median_kernel_ns=int(np.median(duration)) if len(duration) else None,
        late_launch_ratio=late / int(launched.sum()) if launched.any() else None,
        num_launches=int((inside & causes.launched).sum()),
        num_zeroing=int((inside & causes.launched & causes.zeroing).sum()),
    )


# Causes -----------------------------------------------------------------------------------------


def _input_part(host: Table, gaps: Gaps) -> Intervals:
    """Gaps without a recorded launch while any thread loads data."""
    rows = host.take(np.flatnonzero(is_loading(host)))
    if len(rows) == 0:
        return EMPTY
    return _covered_part(gaps, gaps.thread == NO_THREAD, intervals_of(rows))


def _comm_wait_part(host: Table, gaps: Gaps, launches: Launches, taken: Intervals) -> Intervals:
    if launches.known.any():
        handed_over = np.minimum(gaps.end, gaps.ready + LATENCY_LIMIT_NS)
        across = gaps.other_stream
        return union(Intervals(gaps.ready[across], handed_over[across]))
    rows = host.take(named(host, WAIT_CALLS))
    everywhere = np.ones(len(gaps.start), dtype=np.bool_)
    return subtract(_covered_part(gaps, everywhere, intervals_of(rows)), taken)


def _last_part(gaps: Gaps, late: Intervals, late_ns: Int64Array, wanted: Int64Array) -> Intervals:
    """For each gap, the stretch up to ``ready`` that holds the last ``wanted`` ns of ``late``."""
    if late.size == 0:
        return Intervals(gaps.ready, gaps.ready)
    begin = reach(late, np.cumsum(late_ns) - wanted)
    return Intervals(np.where(wanted > 0, begin, gaps.ready), gaps.ready)


def _covered_part(gaps: Gaps, mask: NDArray[np.bool_], ranges: Intervals) -> Intervals:
    return intersect(union_where(Intervals(gaps.start, gaps.end), mask), union(ranges))


def _first_of_launch(activity: Table, launches: Launches) -> NDArray[np.bool_]:
    """Mask over activities: the first activity of each recorded launch call."""
    # A graph launch starts many activities, but is one launch.
    rows = np.flatnonzero(launches.known)
    order = rows[np.argsort(activity["start_ns"][rows], kind="stable")]
    first = np.full(int(launches.row.max(initial=ABSENT)) + 1, ABSENT, dtype=np.int64)
    first[launches.row[order[::-1]]] = order[::-1]  # the last write wins: the earliest
    result = np.zeros(len(launches.known), dtype=np.bool_)
    result[first[first != ABSENT]] = True
    return result


def _launched_in(spans: Intervals, launches: Launches) -> NDArray[np.bool_]:
    """Mask over activities: the launch call began inside one of these intervals, in order."""
    return launches.known & (index_of(launches.start, spans) >= 0)
