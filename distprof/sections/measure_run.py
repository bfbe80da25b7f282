"""Measure every rank of a run alone: its trace in the windows that all ranks share, its probes.

A part ``x`` of a rank's analysis is made by the function ``rank_x`` in the ``measure`` module of
any subject. Its parameters name what it needs: other parts, or given inputs (:func:`_given`). The
fields of :class:`~distprof.sections.context.RankAnalysis` are the parts that are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from functools import cache
from typing import Any, Literal, Protocol, get_type_hints

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from distprof.artefacts.record import grouped
from distprof.errors import DistprofError
from distprof.intervals import EMPTY, Intervals
from distprof.join.waits import last_start_on_own_clock
from distprof.run.records import RankRecords, RecordSource
from distprof.run.run import Rank, Run, TableSource, light
from distprof.run.tables import RankTables, encode, intervals_of
from distprof.run.topology import GroupNames, ProcessGroup
from distprof.schema import ABSENT, Int64Array, Table
from distprof.sections.context import ProbeRecords, RankAnalyses, RankAnalysis, RankContext
from distprof.sections.engine import WiringError, declared_functions
from distprof.sections.perturbation.corrected import CorrectedTables
from distprof.sections.picture.measure import steps_to_draw
from distprof.terms import UNKNOWN_AXIS, ActivityKind
from distprof.units import fold_ranks, name_ranks


class Mapper(Protocol):
    """Anything that maps like ``concurrent.futures.Executor``; results in order of the inputs."""

    def map(self, fn: Callable[..., Any], /, *iterables: Iterable[Any]) -> Iterator[Any]:
        """Apply ``fn`` to each item."""
        ...


class _Job(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a worker. If ``context`` has no windows, it measures the whole capture."""

    path: str
    source: TableSource
    context: RankContext

    @property
    def rank(self) -> int:
        """Global rank."""
        return self.context.rank

    def light(self) -> _Job:
        """The same for a worker on another machine, which reads all tables there."""
        return replace(self, source=light(self.source))


def measure_run(
    run: Run,
    *,
    executor: Mapper | None = None,
    window: Literal["steps", "capture"] = "steps",
    collections: Mapping[int, Intervals] | None = None,
) -> RankAnalyses:
    """Measure every rank of a run inside the analysed windows.

    The executor has one rank's tables in memory per worker; None measures them in this process.
    ``steps`` analyses the steps that all ranks recorded completely, or the whole capture if nothing
    marks steps; ``capture`` always the whole capture. ``collections`` are garbage collections of
    ranks' training threads, sets; own clock. ``unavailable`` has a sentence for each rank whose
    tables cannot be read.
    """
    by_step = window == "steps" and bool(run.window.steps)
    wait_ends = last_start_on_own_clock(run.matches, run.clock, run.ranks)
    jobs, unavailable = _jobs_of(run, by_step, wait_ends, collections or {})
    outcomes = _map(jobs, executor)
    axes = {job.rank: job.context.axis for job in jobs}
    analyses = [
        replace(outcome, row_axis=axes[outcome.rank])  # the one that came back is a copy
        for outcome in outcomes
        if isinstance(outcome, RankAnalysis)
    ]
    unavailable += [outcome for outcome in outcomes if isinstance(outcome, str)]
    return RankAnalyses(
        by_rank={analysis.rank: analysis for analysis in analyses},
        wait_ends=wait_ends,
        num_windows=len(run.window.steps) if by_step else 1,
        window="steps" if by_step else "capture",
        unavailable=tuple(unavailable),
    )


def analysed_windows(
    run: Run, window: Literal["steps", "capture"] = "steps"
) -> dict[int, Intervals]:
    """The analysed steps of each rank that will be measured, own clock."""
    if window == "capture" or not run.window.steps:
        return {}
    found = {rank.rank: _step_windows(rank, run.window.steps)[1] for rank in run.ranks}
    wanted = len(run.window.steps)
    return {
        rank: windows for rank, windows in found.items() if not _window_problem(windows, wanted)
    }


def windows_of_records(run: Run, windows: Mapping[int, Intervals]) -> dict[int, Intervals]:
    """Time in which the sensor samples of each rank count, own clock.

    A rank without a trace gets the windows of the first traced one: steps begin and end together,
    and samples are further apart than the clocks of hosts. ``windows`` is empty if the whole
    capture is analysed.
    """
    found = windows or {
        rank.rank: Intervals(np.array([rank.capture_start_ns]), np.array([rank.capture_end_ns]))
        for rank in run.ranks
    }
    first = next(iter(found.values()), None)
    return {} if first is None else {**dict.fromkeys(run.records, first), **found}


# Ranks --------------------------------------------------------------------------------------------


def _jobs_of(
    run: Run,
    by_step: bool,
    wait_ends: Mapping[int, Int64Array],
    collections: Mapping[int, Intervals],
) -> tuple[list[_Job], list[str]]:
    """One job per rank that can be measured, and a sentence for each that cannot."""
    names_of = _AxisNames(run.topology.groups)
    simulated = _simulated(run) if by_step else None
    drawn = steps_to_draw(analysed_windows(run) if by_step else {}, simulated)
    drawn = drawn if len(run.ranks) <= MOST_DRAWN_TWICE else drawn[:1]
    pieces = DRAWN_PIECES // max(len(run.ranks) * len(drawn), 1)
    explained = _explained(run)
    jobs: list[_Job] = []
    problems: list[str] = []
    for rank in run.ranks:
        if rank.quality.no_device:
            problems.append(f"Rank {rank.rank} is not measured: no GPU activity was recorded.")
            continue
        steps, windows = _step_windows(rank, run.window.steps) if by_step else _WHOLE_CAPTURE
        problem = _window_problem(windows, len(run.window.steps)) if by_step else ""
        if problem:
            problems.append(f"Rank {rank.rank} {problem}: left out.")
            continue
        wait_end = wait_ends.get(rank.rank)
        rows = len(rank.collectives)
        axis, names = _axes(rank.collectives, names_of)
        context = RankContext(
            rank=rank.rank,
            steps=steps,
            windows=windows,
            wait_end_ns=np.full(rows, ABSENT, dtype=np.int64) if wait_end is None else wait_end,
            axis=axis,
            axis_names=names,
            is_cpu=rank.device.name == "cpu",
            simulated=simulated,
            collections=collections.get(rank.rank, EMPTY),
            is_corrected=isinstance(rank.tables, CorrectedTables),
            is_explained=rank.rank in explained,
            drawn=tuple(drawn),
            drawn_pieces=min(max(pieces, FEWEST_PIECES), MOST_PIECES),
        )
        jobs.append(_Job(path=rank.path, source=rank.tables, context=context))
    return jobs, problems


DRAWN_PIECES = 500_000
"""Pieces of all ranks in the picture of the step: three bytes each in the page."""

FEWEST_PIECES, MOST_PIECES = 24, 1_500
"""Pieces of one rank and step: from a coarse impression to pixels of a wide screen."""

MOST_DRAWN_TWICE = 256
"""Ranks up to which the longest step is drawn, too."""

MOST_EXPLAINED = 8
"""Ranks whose computation is explained by operator, because that reads all rows of the CPU."""

MOST_EVENTS = 3_000_000
"""Events of such a rank: its operators take up to 100 bytes each."""


def _explained(run: Run) -> frozenset[int]:
    """Ranks evenly spaced over the job, so every pipeline stage has one where they suffice."""
    ranks = [rank.rank for rank in run.ranks if rank.quality.num_events <= MOST_EVENTS]
    places = np.linspace(0, len(ranks) - 1, min(len(ranks), MOST_EXPLAINED)).round().astype(int)
    return frozenset(ranks[place] for place in places.tolist())


MOST_SIMULATED = 1_000_000
"""Most collectives of all ranks that are simulated; each takes about a kilobyte of memory."""


def _simulated(run: Run) -> tuple[int, int] | None:
    """The middle steps to simulate, if the run is too large to simulate all of them."""
    steps = len(run.window.steps)
    recorded = sum(len(rank.collectives) for rank in run.ranks)
    if recorded <= MOST_SIMULATED or steps < 2:
        return None
    count = max(steps * MOST_SIMULATED // recorded, 1)
    low = (steps - count) // 2
    return low, low + count


_WHOLE_CAPTURE = (np.zeros(1, dtype=np.int64), EMPTY)


def _step_windows(rank: Rank, wanted: Sequence[int]) -> tuple[Int64Array, Intervals]:
    """The rank's windows of the wanted steps, in order of time."""
    numbers = rank.steps["step"]
    start, end = intervals_of(rank.steps)
    rows = np.flatnonzero(np.isin(numbers, wanted))
    rows = rows[np.argsort(start[rows], kind="stable")]
    return numbers[rows], Intervals(start[rows], end[rows])


def _window_problem(windows: Intervals, wanted: int) -> str:
    if windows.size < wanted:
        return "lacks some of the analysed steps"
    if windows.size > wanted or (windows.start[1:] < windows.end[:-1]).any():
        return "has steps that overlap or repeat"
    return ""


def _measure_job(job: _Job) -> RankAnalysis | str:
    """Measure one rank, or return a sentence on why its tables could not be read."""
    try:
        tables = job.source.load()
    except (DistprofError, OSError, ValueError, EOFError) as error:
        reason = " ".join(str(error).split())
        return f"Rank {job.context.rank} could not be measured: {job.path}: {reason}"
    context = job.context
    if context.windows.size == 0:
        window = capture_window(tables.activity)
        steps = context.steps[: window.size]
        context = replace(context, windows=window, steps=steps, is_capture=True)
    return measure_rank(tables, context, lambda: job.source.load(every_host_row=True).host)


def _map(jobs: Sequence[_Job], executor: Mapper | None) -> list[RankAnalysis | str]:
    results = map(_measure_job, jobs) if executor is None else executor.map(_measure_job, jobs)
    outcomes: list[RankAnalysis | str] = []
    try:
        outcomes.extend(results)
    except BrokenExecutor as error:
        lost = [job.context.rank for job in jobs[len(outcomes) :]]
        outcomes.append(f"Ranks {fold_ranks(lost)} could not be measured: a worker died: {error}")
    return outcomes


# Axes ---------------------------------------------------------------------------------------------


class _AxisNames:
    """What the run's collectives communicate along, by what each records of its group."""

    def __init__(self, groups: Sequence[ProcessGroup]) -> None:
        uses = Counter(group.name for group in groups)
        self._exact = {(group.name, fold_ranks(group.ranks)): group for group in groups}
        self._by_name = {one.name: one for one in groups if one.name and uses[one.name] == 1}
        self._names = GroupNames(groups)

    def of(self, name: str, ranks: str, description: str) -> str:
        """Mesh axis, or description, of a group of this name, folded ranks and description."""
        group = self._exact.get((name, ranks)) or self._by_name.get(name)
        if group is not None and group.axis is not None:
            return group.axis.value
        text = description or (group.description if group is not None else "")
        if text and text != "undefined":
            return text
        return self._names.of(name, ranks) or UNKNOWN_AXIS


def _axes(collectives: Table, names_of: _AxisNames) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """For each row, the mesh axis or group description it communicates along."""
    if len(collectives) == 0:
        return np.empty(0, np.int32), ()
    group, ranks, desc = (
        collectives.coded(name) for name in ("group", "group_ranks", "group_desc")
    )
    shape = (len(group.values), len(ranks.values), len(desc.values))
    keys = np.ravel_multi_index((group.codes, ranks.codes, desc.codes), shape)
    distinct, inverse = encode(keys)
    labels = [
        names_of.of(group.values[g], ranks.values[r], desc.values[d])
        for g, r, d in zip(*np.unravel_index(distinct, shape), strict=True)
    ]
    names = tuple(sorted(set(labels)))
    numbers = np.array([names.index(label) for label in labels], dtype=np.int32)
    return numbers[inverse], names


_RANK = "rank_"


def measure_rank(
    tables: RankTables, context: RankContext, load_host: Callable[[], Table] | None = None
) -> RankAnalysis:
    """Measure one rank inside its windows.

    Pure: the same tables and context give the same analysis. Linear in the rows, except for sorting
    them; each window adds only a search. ``load_host`` reads every operator; None if it cannot. A
    context that does not fit the tables is a ValueError.
    """
    _check_context(tables, context)
    # several parts need every operator: it is read once
    parts = _given(tables, context, None if load_host is None else cache(load_host))
    return RankAnalysis(**{name: _made(name, parts, ()) for name in RankAnalysis.__struct_fields__})


@cache
def rank_parts() -> Mapping[str, Callable[..., Any]]:
    """Functions that measure a rank alone, by the part they make; WiringError if two make one."""
    return declared_functions(_RANK)


def _given(
    tables: RankTables, context: RankContext, load_host: Callable[[], Table] | None = None
) -> dict[str, Any]:
    """Inputs of parts in addition to other parts."""
    return {
        "load_host": load_host,
        "tables": tables,
        "activity": tables.activity,
        "collectives": tables.collectives,
        "context": context,
        "rank": context.rank,
        "is_cpu": context.is_cpu,
        "windows": context.windows,
        "window_start_ns": context.windows.start,
        "window_end_ns": context.windows.end,
        "wait_end_ns": context.wait_end_ns,
        "row_axis": context.axis,
        "row_axis_names": context.axis_names,
    }


def _made(name: str, parts: dict[str, Any], above: tuple[str, ...]) -> Any:
    """A part; all parts made on the way are added to ``parts``."""
    if name not in parts:
        make = rank_parts().get(name)
        if make is None or name in above:
            chain = " for ".join(reversed((*above, name)))
            raise WiringError(f"no subject has a function {_RANK}{name} to make {chain}")
        needs = make.__code__.co_varnames[: make.__code__.co_argcount]
        parts[name] = make(**{need: _made(need, parts, (*above, name)) for need in needs})
    return parts[name]


def capture_window(activity: Table) -> Intervals:
    """The whole capture as one window: the span of the GPU's activities.

    Communication and copies count, annotations do not. No window if the GPU did nothing.
    """
    rows = activity["kind"] != ActivityKind.ANNOTATION
    if not rows.any():
        return EMPTY
    start, end = activity["start_ns"], activity["end_ns"]
    return Intervals.of((int(start[rows].min()), int(end[rows].max())))


def _check_context(tables: RankTables, context: RankContext) -> None:
    rows = len(tables.collectives)
    if len(context.wait_end_ns) != rows or len(context.axis) != rows:
        raise ValueError(f"rank {context.rank}: the context does not fit its {rows} collectives")
    start, end = context.windows
    if len(context.steps) != len(start):
        raise ValueError(f"rank {context.rank}: {len(context.steps)} steps, {len(start)} windows")
    if (end < start).any() or (start[1:] < end[:-1]).any():
        raise ValueError(f"rank {context.rank}: windows must be in order and disjoint")


_RECORDS = "measure_"


class _OfRank(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of one rank's records; small enough to cross a process boundary."""

    rank: int
    found: tuple[Any, ...]
    notes: tuple[str, ...]


class _RecordsJob(msgspec.Struct, frozen=True):
    """The input of a worker: a rank's records, and its analysed steps."""

    source: RecordSource
    windows: Intervals

    @property
    def rank(self) -> int:
        """Global rank."""
        return self.source.rank


def measure_records(
    run: Run, *, executor: Mapper | None = None, windows: Mapping[int, Intervals] | None = None
) -> ProbeRecords:
    """Measure the probe records of every rank; bare traces have none.

    The executor has one rank's records in memory per worker; None measures them in this process.
    Windows are the analysed steps by rank, own clock, for the sensor samples inside them.
    """
    by_rank = windows or {}
    jobs = [
        _RecordsJob(run.records[rank], by_rank.get(rank, EMPTY)) for rank in sorted(run.records)
    ]
    results = map(_measure, jobs) if executor is None else executor.map(_measure, jobs)
    outcomes = list(results)
    failed = [outcome for outcome in outcomes if isinstance(outcome, str)]
    ranks = [outcome for outcome in outcomes if isinstance(outcome, _OfRank)]
    found: dict[type, dict[int, Any]] = {}
    for rank in ranks:
        for one in rank.found:
            found.setdefault(type(one), {})[rank.rank] = one
    return ProbeRecords(found=found, job=run.job, notes=(*failed, *_folded_notes(ranks)))


def _measure(job: _RecordsJob) -> _OfRank:
    records = job.source.load()
    given = {RankRecords: records, Intervals: job.windows}
    found = (
        make(**{name: given[need] for name, need in needs.items()})
        for make, needs in record_parts()
    )
    present = tuple(one for one in found if one is not None)
    return _OfRank(rank=records.rank, found=present, notes=records.notes)


@cache
def record_parts() -> Sequence[tuple[Callable[..., Any], Mapping[str, type]]]:
    """Functions that measure one rank's records, with the types of their parameters.

    These are the functions ``measure_…(records: RankRecords)`` in the ``measure`` modules of
    subjects. Results are looked up by type, so no two functions may return the same type.
    """
    found = declared_functions(_RECORDS).values()
    hints = {make: get_type_hints(make) for make in found if "records" in make.__annotations__}
    return [
        (make, {name: need for name, need in kinds.items() if name != "return"})
        for make, kinds in hints.items()
        if RankRecords in kinds.values()
    ]


def _folded_notes(ranks: Iterable[_OfRank]) -> list[str]:
    """Notes of all ranks, each once with the ranks that have it."""
    ranks_of = grouped([(note, rank.rank) for rank in ranks for note in rank.notes])
    return [f"{name_ranks(numbers)}: {note}" for note, numbers in ranks_of.items()]
