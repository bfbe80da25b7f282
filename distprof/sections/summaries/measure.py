"""Ranks that arrive last in collectives, readiness of input, scaling and time by operator."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from distprof.artefacts.record import made_from
from distprof.bounds import table_beside
from distprof.config import CommunicationConfig
from distprof.ingest.communication import classifier_for
from distprof.join.nccl import compared, summary_of
from distprof.run.evidence import (
    CollectiveSummary,
    InputReadiness,
    InspectorLog,
    OperatorTable,
    ScalingTable,
    SummaryClass,
    TableOperator,
)
from distprof.run.run import Run
from distprof.schema import Int64Array
from distprof.sections.summaries import (
    OTHER_COLLECTIVES,
    CollectiveSummaryResult,
    InputReadinessResult,
    LatePeriod,
    OperatorTableResult,
    RankReadiness,
    ScalingTableResult,
    SummarisedClass,
    SummarisedRank,
    TablePart,
    TableRow,
)
from distprof.terms import CollectiveKind
from distprof.units import fill

CLEAR_RATIO = 0.5
"""A rank is named if the collectives in which it arrives last hold this share of all waiting."""


def analyze_collective_summary(run: Run) -> CollectiveSummaryResult:
    """Waiting between ranks, from a table of durations or from the records of all ranks."""
    summary = run.get(CollectiveSummary)
    log = run.get(InspectorLog)
    if summary is None and log is not None:
        summary = summary_of(log, compared(log))
    summary = summary or _of_ranks(run.get(OperatorTable))
    if summary is None:
        return CollectiveSummaryResult()
    summarised = [_class(summary, index) for index in range(len(summary.classes))]
    classes = sorted(summarised, key=lambda c: -c.wait_ns * c.num_calls * c.num_ranks)
    ranks, total, waiting = _ranks(summary, summarised)
    late = max(ranks, key=lambda rank: (rank.blamed_ns, -rank.rank))
    share = late.blamed_ns / waiting if waiting else 0.0
    is_clear = share >= CLEAR_RATIO
    return CollectiveSummaryResult(
        classes=tuple(classes),
        ranks=ranks,
        wait_ratio=waiting / total if total else summary.wait_ratio,
        late_rank=late.rank if is_clear else None,
        blamed_ratio=share if is_clear else None,
        unavailable=(*summary.notes, *_limits(summarised)),
    )


def _of_ranks(table: OperatorTable | None) -> CollectiveSummary | None:
    """Mean times of collectives in the tables of several ranks, a class for each kernel."""
    found = list[tuple[SummaryClass, list[int]]]()
    while table and table.rank is not None:
        for row in table.operators:
            if row.kind and row.self_device_ns and row.num_calls:
                one = made_from(
                    row, SummaryClass, group=row.name, ranks=(), dtype="", num_bytes=None
                )
                numbers = [table.rank, row.num_calls, row.self_device_ns // row.num_calls]
                found.append((one, numbers))
        table = table.second
    classes = tuple({one: None for one, _ in found})
    rows = np.array([[classes.index(one), *numbers] for one, numbers in found], np.int64)
    columns = zip(("class_index", "rank", "num_calls", "mean_ns"), rows.T, strict=False)
    return CollectiveSummary(classes=classes, **dict(columns)) if found else None


def _class(summary: CollectiveSummary, index: int) -> SummarisedClass:
    ranks, calls, means = _rows(summary, index)
    collective = summary.classes[index]
    shortest = int(means.min())
    is_whole = len(ranks) > 1 and set(collective.ranks) <= set(ranks.tolist())
    return made_from(
        collective,
        SummarisedClass,
        kind=collective.kind.label,
        num_ranks=len(ranks),
        group_size=len(collective.ranks) or None,
        num_calls=int(np.median(calls)),
        mean_ns=round(float(means.mean())),
        shortest_ns=shortest,
        wait_ns=round(float((means - shortest).mean())),
        last_rank=int(ranks[int(np.argmin(means))]),
        first_rank=int(ranks[int(np.argmax(means))]),
        is_compared=is_whole and collective.kind.is_symmetric,
    )


def _rows(summary: CollectiveSummary, index: int) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Ranks, calls and mean durations of a class; rows of the same rank are merged."""
    chosen = summary.class_index == index
    ranks, place = np.unique(summary.rank[chosen], return_inverse=True)
    calls = np.bincount(place, weights=summary.num_calls[chosen])
    spent = summary.num_calls[chosen].astype(np.float64) * summary.mean_ns[chosen]
    times = np.bincount(place, weights=spent) / calls
    return ranks, calls.astype(np.int64), np.rint(times).astype(np.int64)


def _ranks(
    summary: CollectiveSummary, classes: list[SummarisedClass]
) -> tuple[tuple[SummarisedRank, ...], float, float]:
    """Ranks, and the total time and waiting in classes that can be compared."""
    all_ranks = np.unique(summary.rank)
    spent, waited, blamed = (np.zeros(len(all_ranks)) for _ in range(3))
    total = 0.0
    for index, one in enumerate(classes):
        ranks, calls, means = _rows(summary, index)
        place = np.searchsorted(all_ranks, ranks)
        time = calls.astype(np.float64) * means
        spent[place] += time
        if one.is_compared:
            waiting = calls.astype(np.float64) * (means - one.shortest_ns)
            waited[place] += waiting
            blamed[int(np.searchsorted(all_ranks, one.last_rank))] += waiting.sum()
            total += float(time.sum())
    summarised = tuple(
        SummarisedRank(
            rank=int(rank),
            communication_ns=round(spent[i]),
            wait_ns=round(waited[i]),
            blamed_ns=round(blamed[i]),
        )
        for i, rank in enumerate(all_ranks)
    )
    return summarised, total, float(waited.sum())


def _limits(classes: list[SummarisedClass]) -> tuple[str, ...]:
    missing = sum(not one.is_compared for one in classes)
    said = fill(_TABLE["say"]["not compared"], missing=missing, classes=len(classes))
    return (said,) * bool(missing)


# Input readiness of each rank over time ----------------------------------------------------------

SMOOTHED_SAMPLES = 9

MIN_PERIOD_RATIO = 0.05
"""Smallest share of the time for which a rank must be the least ready to get a period."""


def analyze_input_readiness(run: Run) -> InputReadinessResult:
    """Readiness of input, and periods in which one rank is the least ready."""
    readiness = run.get(InputReadiness)
    if readiness is None:
        return InputReadinessResult()
    ratio = readiness.ratio[:, np.isfinite(readiness.ratio).any(axis=0)]
    if not ratio.shape[1]:
        return InputReadinessResult(unavailable=(*readiness.notes, "No sample has a value."))
    filled = np.where(np.isfinite(ratio), ratio, np.inf)
    least = filled.min(axis=0)
    gaps = np.diff(readiness.time_s)
    is_least = (filled == least) & (least < 1)
    known = np.isfinite(ratio)
    return InputReadinessResult(
        num_samples=ratio.shape[1],
        interval_s=int(np.median(gaps)) if len(gaps) else None,
        span_s=int(readiness.time_s[-1] - readiness.time_s[0]),
        job_ratio=float(least.mean()),
        ranks=tuple(
            RankReadiness(
                rank=rank,
                mean_ratio=float(ratio[i][known[i]].mean()) if known[i].any() else None,
                least_ratio=float(is_least[i].mean()),
                num_missing=int((~known[i]).sum()),
            )
            for i, rank in enumerate(readiness.ranks)
        ),
        periods=_periods(readiness.ranks, ratio),
        unavailable=readiness.notes,
    )


def _periods(ranks: tuple[int, ...], ratio: NDArray[np.float64]) -> tuple[LatePeriod, ...]:
    """Runs of samples with the same least ready rank after smoothing, without short ones."""
    smooth = _smoothed(ratio)
    slowest = smooth.argmin(axis=0)
    edges = np.flatnonzero(np.diff(slowest)) + 1
    starts = [0, *edges.tolist()]
    ends = [*edges.tolist(), len(slowest)]
    shortest = max(SMOOTHED_SAMPLES // 2, MIN_PERIOD_RATIO * len(slowest))
    runs: list[tuple[int, int, int]] = []
    for start, end in zip(starts, ends, strict=True):
        if end - start < shortest:
            continue
        who = int(slowest[start])
        first = runs.pop()[1] if runs and runs[-1][0] == who else start
        runs.append((who, first, end))
    return tuple(
        LatePeriod(
            rank=ranks[who],
            first_sample=start,
            num_samples=end - start,
            mean_ratio=float(np.nanmean(ratio[who, start:end])),
        )
        for who, start, end in runs
        if np.isfinite(ratio[who, start:end]).any() and float(smooth[who, start:end].mean()) < 1
    )


def _smoothed(ratio: NDArray[np.float64]) -> NDArray[np.float64]:
    """Means of the known values of neighbours; 1 (ready) if none is known."""
    kernel = np.ones(min(SMOOTHED_SAMPLES, ratio.shape[1]))
    known = np.isfinite(ratio)
    sums, counts = (
        np.array([np.convolve(row, kernel, "same")[: ratio.shape[1]] for row in values])
        for values in (np.where(known, ratio, 0.0), known.astype(float))
    )
    return np.where(counts > 0.5, sums / np.maximum(counts, 1.0), 1.0)


# A table of operators ----------------------------------------------------------------------------

MOST_ROWS = 200
_FEWEST_SORTED = 5  # Fewer rows are in order by chance.
_STEP = "ProfilerStep"
_LOADER = "enumerate(DataLoader)"
_OPERATORS = ("aten::", "autograd::", "c10d::", "nccl:", "record_param_comms", "Optimizer.", _STEP)
_COLLECTIVES = ("nccl:", "c10d::", "record_param_comms")  # All repeat the times of kernels.
_KERNEL = re.compile(r"[<(]|::|(?i:kernel|gemm|mem(?:cpy|set)|nccl)|triton_|^Cijk_")
_RANGES = (_STEP, "Call CompiledFxGraph", "Optimizer.", "nn.Module")
_TABLE = table_beside(__package__, "known.toml")
_WORK = [(what, re.compile(name)) for what, name in _TABLE["kernel"].items()]
_SPANS = 10  # Spans are this many times as long as kernels.
_ROUNDED = 1.02  # Sums of rounded times exceed their whole by no more.


def analyze_scaling_table(run: Run) -> ScalingTableResult:
    """Efficiency of scaling, from throughput by the number of GPUs."""
    table = run.get(ScalingTable)
    if table is None:
        return ScalingTableResult()
    each = [rate / count for count, rate in zip(table.counts, table.rates, strict=True)]
    return made_from(
        table,
        ScalingTableResult,
        unavailable=table.notes,
        efficiency_ratio=tuple(one / each[0] for one in each),
    )


def analyze_operator_table(run: Run) -> OperatorTableResult:
    """Time of the device by what it does, from a table of operators."""
    table = run.get(OperatorTable)
    return OperatorTableResult() if table is None else _of_table(table)


def _of_table(table: OperatorTable) -> OperatorTableResult:
    spans = [row for row in table.operators if row.name.startswith(_STEP)]
    steps = [row for row in spans if row.cpu_ns] or spans
    num_steps = sum(row.num_calls for row in steps)
    loads = [row.cpu_ns for row in table.operators if row.name.startswith(_LOADER)]
    around = _ranges(table)
    kernels = _kernels(table, around) if table.device else []
    parts = _parts(kernels, table.self_device_ns or 0)
    order = sorted(
        (r for r in table.operators if r.cpu_ns or steps is spans or not r.name.startswith(_STEP)),
        key=lambda row: (
            row.name.startswith(_STEP) or row in around,
            -row.self_device_ns,
            -row.device_ns,
            -row.self_cpu_ns,
        ),
    )
    steps_ns = sum(row.cpu_ns for row in steps)
    return made_from(
        table,
        OperatorTableResult,
        num_steps=num_steps or None,
        step_ns=steps_ns // num_steps if steps_ns and num_steps else None,
        self_device_ns=sum(one.device_ns for one in parts) if parts else table.self_device_ns,
        has_device_total=table.self_device_ns is not None,
        loader_ns=sum(loads) // num_steps if loads and num_steps else None,
        parts=parts,
        rows=tuple(
            made_from(row, TableRow, kind="span" if row in around else _kind(row))
            for row in order[:MOST_ROWS]
        ),
        num_rows=len(table.operators),
        sorted_by=_sorted_by(table),
        second=_of_table(table.second) if table.second else None,
        unavailable=table.notes,
    )


def _sorted_by(table: OperatorTable) -> str:
    """The times by which a table is sorted: what is cut from its end has shorter ones."""
    names = {row.name for row in table.operators}  # once each, or rows are single calls
    if table.is_from_top and _FEWEST_SORTED <= len(names) == len(table.operators):
        for field in ("self_device_ns", "self_cpu_ns", "device_ns", "cpu_ns"):
            times = [getattr(row, field) for row in table.operators]
            if times[0] > times[-1] and times == sorted(times, reverse=True):
                return field
    return ""


def _ranges(table: OperatorTable) -> set[TableOperator]:
    """Rows of the device that are spans of time around kernels, of which tables have rows too."""
    alone = [r for r in table.operators if r.self_device_ns and not (r.cpu_ns or r.self_cpu_ns)]
    alone = [r for r in alone if r.name.startswith(_RANGES) or not r.name.startswith(_OPERATORS)]
    alone.sort(key=lambda row: -row.self_device_ns)
    host = {r.name for r in table.operators if r.cpu_ns and not r.self_device_ns and not r.kind}
    around = {row for row in alone if row.name.startswith(_RANGES) or row.name in host}
    around |= {row for row in alone if row.device_ns > _ROUNDED * row.self_device_ns}
    listed = sum(row.self_device_ns for row in alone) - sum(r.self_device_ns for r in around)
    kernels = [row for row in alone if _KERNEL.search(row.name)]
    long_ns = max((row.self_device_ns / max(row.num_calls, 1) for row in kernels), default=0)
    is_more = listed > _ROUNDED * (table.self_device_ns or listed)
    for row in alone:
        is_long = is_more and row.self_device_ns > _SPANS * long_ns * max(row.num_calls, 1)
        is_over = listed > _ROUNDED * (table.self_device_ns or listed)
        if (is_over or is_long) and row not in around and not _KERNEL.search(row.name):
            around.add(row)
            listed -= row.self_device_ns
    return around


def _kernels(table: OperatorTable, around: set[TableOperator]) -> list[TableOperator]:
    """Rows whose times on the device can be added: operators repeat those of their kernels."""
    busy = [row for row in table.operators if row.self_device_ns > 0 and row not in around]
    busy = [row for row in busy if not row.name.startswith(_STEP)]
    kernels = [row for row in busy if not row.name.startswith(_OPERATORS)]
    kernels = [row for row in kernels if not (row.cpu_ns or row.self_cpu_ns)] or kernels
    others = {*busy} - {*kernels}
    repeats = [{row for row in kernels if row.kind is not CollectiveKind.UNKNOWN}]
    repeats += [{r for r in others if r.name.startswith(name)} for name in _COLLECTIVES]
    spent = [sum(row.self_device_ns for row in rows) for rows in repeats]
    if 0 < spent[-1] * _ROUNDED < spent[-2]:  # those of kernels that c10d's operators lack
        repeats, spent = [*repeats, repeats[-1] | repeats[-2]], [*spent, spent[-1] + spent[-2]]
    once = repeats[next(i for i, ns in enumerate(spent) if ns * _ROUNDED >= max(spent))]
    others = others.difference(*repeats) | once
    if all(row.name != "aten::copy_" for row in others):  # which repeats them
        others |= {row for row in kernels if row.name.startswith("Memcpy")}
    ways = [(sum(r.self_device_ns for r in rows), rows) for rows in (kernels, [*others])]
    most = _ROUNDED * (table.self_device_ns or max(ns for ns, _ in ways))
    return max((way for way in ways if way[0] <= most), key=lambda way: way[0], default=ways[0])[1]


def _parts(kernels: list[TableOperator], whole: int) -> tuple[TablePart, ...]:
    """Parts of the device's time, longest first, and the part without rows."""
    ns: dict[str, int] = {}
    calls: dict[str, int] = {}
    for row in kernels:
        kind = _kind(row)
        ns[kind] = ns.get(kind, 0) + row.self_device_ns
        calls[kind] = calls.get(kind, 0) + row.num_calls
    listed = sum(ns.values())
    total = max(whole, listed)
    if total > listed:
        ns["not listed"] = total - listed
    order = sorted(ns, key=lambda kind: -ns[kind])
    return tuple(
        TablePart(kind=kind, device_ns=ns[kind], ratio=ns[kind] / total, num_calls=calls.get(kind))
        for kind in order
    )


def _kind(row: TableOperator) -> str:
    if row.kind is not CollectiveKind.UNKNOWN:
        return row.kind.label
    verdict = classifier_for(CommunicationConfig()).verdict(row.name)
    if verdict.is_communication or row.name == "record_param_comms":
        return OTHER_COLLECTIVES
    return next((what for what, name in _WORK if name.search(row.name)), "computation")
