"""Compares two runs: step time, its parts, kernels, collectives, findings, environment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import comb

import msgspec
import numpy as np

from distprof.artefacts.record import grouped, made_from
from distprof.artefacts.summary_file import StepParts, SummaryFile, compared, differences, unlike
from distprof.rules.base import Finding
from distprof.sections.collectives import CollectiveClass, CollectivesResult
from distprof.sections.computation import ComputationResult
from distprof.sections.kernels import KernelRow, KernelsResult
from distprof.sections.picture import StepPicture
from distprof.units import NS_PER_S
from distprof.verbs.compare import (
    CollectiveChange,
    ComparedRun,
    Comparison,
    FindingChange,
    FingerprintChange,
    KernelChange,
    PartChange,
    State,
    StepChange,
    Trend,
)
from distprof.verbs.compare.operators import compare_operators
from distprof.verbs.gate import mann_whitney
from distprof.version import __version__

ALIKE_RATIO = 0.02
"""Times that differ by less than this count as equal."""
_REST = "other"
_COMPUTATION = "computation"


def compare_kernels(
    first: KernelsResult, second: KernelsResult, windows: tuple[int, int]
) -> tuple[KernelChange, ...]:
    """Kernels by change; ``windows`` are the ranks times steps that each table sums over."""
    mine, theirs = (
        {(row.kind, row.name): row for row in table.kernels if row.kind != _REST}
        for table in (first, second)
    )
    folded = [any(row.kind == _REST for row in table.kernels) for table in (first, second)]
    changes = []
    for kind, name in dict.fromkeys((*mine, *theirs)):
        one, other = mine.get((kind, name)), theirs.get((kind, name))
        unlisted = (one is None and folded[0]) or (other is None and folded[1])
        first_ns, first_count, first_median_ns = _per_window(one, windows[0])
        second_ns, second_count, second_median_ns = _per_window(other, windows[1])
        changes.append(
            KernelChange(
                name=name,
                kind=kind,
                state="unlisted" if unlisted else state_of(first_ns, second_ns),
                first_ns=first_ns,
                second_ns=second_ns,
                first_count=first_count,
                second_count=second_count,
                first_median_ns=first_median_ns,
                second_median_ns=second_median_ns,
                change_ns=0 if unlisted else (second_ns or 0) - (first_ns or 0),
            )
        )
    return tuple(sorted(changes, key=lambda change: (-abs(change.change_ns), change.name)))


def _per_window(row: KernelRow | None, windows: int) -> tuple[int | None, float | None, int | None]:
    """Time and count per rank and step, and the median; None for a kernel that is not there."""
    if row is None:
        return None, None, None
    return row.total_ns // max(1, windows), row.count / max(1, windows), row.median_ns


def common_kernels(first: KernelsResult, second: KernelsResult) -> float | None:
    """Share of the computation in kernels of both tables, the smaller one; None without kernels."""
    totals = [
        {row.name: row.total_ns for row in table.kernels if row.kind == _COMPUTATION}
        for table in (first, second)
    ]
    both = totals[0].keys() & totals[1].keys()
    if not all(sum(total.values()) for total in totals):
        return None
    return min(sum(total[name] for name in both) / sum(total.values()) for total in totals)


def state_of(first_ns: float | None, second_ns: float | None) -> State:
    """The state of a kernel or class of collectives by its time; None marks a run without it."""
    if first_ns is None:
        return "appeared"
    if second_ns is None:
        return "vanished"
    if abs(second_ns - first_ns) <= ALIKE_RATIO * first_ns:
        return "alike"
    return "slower" if second_ns > first_ns else "faster"


# Collectives whose exposed time grew or shrank, and those that appeared or disappeared ------------

_Key = tuple[str, str, int | None]


def compare_collectives(
    first: CollectivesResult, second: CollectivesResult
) -> tuple[CollectiveChange, ...]:
    """Every class of either run, largest change of exposed time first."""
    both = [[(row.axis or row.group, row) for row in result.classes] for result in (first, second)]
    sizes = [{(axis, row.group_size) for axis, row in rows} for rows in both]
    shared = {axis for axis, _ in sizes[0]} & {axis for axis, _ in sizes[1]}
    resized = shared & {axis for axis, _ in sizes[0] ^ sizes[1]}
    mine, theirs = (
        grouped(
            [((row.kind, axis, None if axis in resized else row.bytes), row) for axis, row in rows]
        )
        for rows in both
    )
    changes = [
        _class_change(key, mine.get(key, ()), theirs.get(key, ()), first, second)
        for key in dict.fromkeys((*mine, *theirs))
    ]
    return tuple(sorted(changes, key=lambda change: (-abs(change.change_ns), change.kind)))


def _class_change(
    key: _Key,
    mine: Sequence[CollectiveClass],
    theirs: Sequence[CollectiveClass],
    first: CollectivesResult,
    second: CollectivesResult,
) -> CollectiveChange:
    kind, axis, size = key
    first_ns, second_ns = _total(mine, "exposed_ns"), _total(theirs, "exposed_ns")
    known = (not mine or first_ns is not None) and (not theirs or second_ns is not None)
    state = state_of((first_ns or 0) if mine else None, (second_ns or 0) if theirs else None)
    return CollectiveChange(
        kind=kind,
        axis=axis,
        bytes=size,
        state=state if known else "unlisted",
        first_exposed_ns=first_ns,
        second_exposed_ns=second_ns,
        first_wait_ns=_total(mine, "exposed_wait_ns"),
        second_wait_ns=_total(theirs, "exposed_wait_ns"),
        first_count=_count(mine, first),
        second_count=_count(theirs, second),
        first_busbw_bytes_per_s=_bandwidth(mine),
        second_busbw_bytes_per_s=_bandwidth(theirs),
        change_ns=(second_ns or 0) - (first_ns or 0) if known else 0,
    )


def _total(rows: Sequence[CollectiveClass], field: str) -> int | None:
    """Sum per step; None if it is unknown for any class."""
    values = [getattr(row, f"{field}_per_step") for row in rows]
    return None if not values or None in values else sum(values)


def _count(rows: Sequence[CollectiveClass], result: CollectivesResult) -> float | None:
    return sum(row.count for row in rows) / max(1, result.num_steps) if rows else None


def _bandwidth(rows: Sequence[CollectiveClass]) -> float | None:
    return rows[0].busbw_bytes_per_s if len(rows) == 1 else None


# Whether the steps of one run are longer, or chance explains the difference -----------------------

_CONFIDENCE = 0.95
_ALPHA = 0.05
"""Two-sided level of the test on steps."""
_STRICT_ALPHA = 0.01
"""The level for changes below :data:`ALIKE_RATIO`, which slow drift within a run may also cause."""


def compare_steps(first: Sequence[int], second: Sequence[int]) -> StepChange:
    """Medians of steps in ns, their intervals, and whether chance explains the difference.

    A rank test decides: a single slow step does not hide a change, as it would if the intervals of
    few values had to be disjoint. Steps of one run are treated as independent. Neither the test nor
    the intervals cover differences between runs, which ``distprof check`` measures with repeats.
    """
    mine, theirs = _median(first), _median(second)
    low, high = median_interval(first) or (None, None)
    other_low, other_high = median_interval(second) or (None, None)
    change = theirs - mine if mine is not None and theirs is not None else None
    return StepChange(
        first_ns=mine,
        first_low_ns=low,
        first_high_ns=high,
        second_ns=theirs,
        second_low_ns=other_low,
        second_high_ns=other_high,
        change_ns=change,
        change_ratio=change / mine if change is not None and mine else None,
        trend=_trend(first, second, change),
        p_value=_p_value(first, second),
        num_apart=_num_apart(first, second, change),
    )


def median_interval(values: Sequence[int]) -> tuple[int, int] | None:
    """The 95 % interval of the median from order statistics; None with fewer than six values.

    Source:
        The number of values below the median is binomial (Conover, "Practical Nonparametric
        Statistics", 3.2).
    """
    place = _place(len(values))
    if place is None:
        return None
    ordered = sorted(values)
    return ordered[place], ordered[-1 - place]


def part_changes(first: StepParts | None, second: StepParts | None) -> tuple[PartChange, ...]:
    """The change of each part, which add up exactly; empty if a run has no parts."""
    if first is None or second is None:
        return ()
    names = [name for name in StepParts.__struct_fields__ if name != "span_ns"]
    times = {
        name.removesuffix("_ns"): (getattr(first, name), getattr(second, name)) for name in names
    }
    return tuple(
        PartChange(part=part, first_ns=mine, second_ns=theirs, change_ns=theirs - mine)
        for part, (mine, theirs) in times.items()
    )


@lru_cache(maxsize=1024)
def _place(count: int) -> int | None:
    """Maximum number of values outside the interval on each side that still covers 95 %."""
    if count > _LARGE:
        spread = _NORMAL * np.sqrt(count) / 2
        return int(np.floor(count / 2 - spread))
    tail, place = 0.0, -1
    for below in range(count // 2):
        tail += comb(count, below) / 2**count
        if tail > (1 - _CONFIDENCE) / 2:
            break
        place = below
    return place if place >= 0 else None


_LARGE = 400
_NORMAL = 1.96


def _median(values: Sequence[int]) -> int | None:
    return int(np.median(values)) if len(values) else None


def _p_value(first: Sequence[int], second: Sequence[int]) -> float | None:
    if not len(first) or not len(second):
        return None
    return min(1.0, 2 * min(mann_whitney(first, second), mann_whitney(second, first)))


def _trend(first: Sequence[int], second: Sequence[int], change: int | None) -> Trend:
    """The direction of the change, if the rank test and the medians agree."""
    # The smallest possible p-value must be significant
    if change is None or 2 / comb(len(first) + len(second), len(first)) > _ALPHA:
        return "unknown"
    if not change:
        return "alike"
    shorter, longer = (first, second) if change > 0 else (second, first)
    is_small = abs(change) < ALIKE_RATIO * min(np.median(first), np.median(second))
    if 2 * mann_whitney(shorter, longer) > (_STRICT_ALPHA if is_small else _ALPHA):
        return "alike"
    return "slower" if change > 0 else "faster"


def _num_apart(first: Sequence[int], second: Sequence[int], change: int | None) -> int:
    if not change:
        return 0
    sign = 1 if change > 0 else -1
    last = max(sign * ns for ns in first)
    return sum(sign * ns > last for ns in second)


# The comparison: step time, its parts, kernels, collectives, findings, environment ---------------


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two runs."""

    summary: SummaryFile  # Its summary.
    kernels: KernelsResult  # Its kernel table.
    num_windows: int  # Ranks times steps that the kernel table sums over.
    collectives: CollectivesResult  # Its classes of collectives.
    computation: ComputationResult = ComputationResult()  # Its operators.
    problems: tuple[Finding, ...] = ()  # Its findings.
    picture: StepPicture = StepPicture()  # Its step, drawn.


def compare(first: Side, second: Side) -> Comparison:
    """Changes from the first run to the second; those of all parts add up to that of the step."""
    is_mixed = first.summary.is_traced != second.summary.is_traced
    # Never traced steps of one and plain steps of the other
    steps = [
        _traced(side.summary) if is_mixed else side.summary.step_ns for side in (first, second)
    ]
    forbidding = unlike(first.summary.fingerprint, second.summary.fingerprint)
    found = differences(first.summary.fingerprint, second.summary.fingerprint)
    windows = first.num_windows, second.num_windows
    return Comparison(
        distprof_version=__version__,
        first=_run(first.summary, steps[0], is_mixed=is_mixed),
        second=_run(second.summary, steps[1], is_mixed=is_mixed),
        is_alike=not forbidding,
        differences=tuple(
            FingerprintChange(**msgspec.structs.asdict(one), forbids=one in forbidding)
            for one in found
        ),
        step=compare_steps(steps[0], steps[1]),
        parts=part_changes(first.summary.parts, second.summary.parts),
        kernels=compare_kernels(first.kernels, second.kernels, windows),
        operators=compare_operators(
            (first.computation, first.summary.parts), (second.computation, second.summary.parts)
        ),
        collectives=compare_collectives(first.collectives, second.collectives),
        findings=_findings(first.problems, second.problems),
        pictures=(first.picture.brief(), second.picture.brief()),
        compared=compared(first.summary.fingerprint, second.summary.fingerprint),
        common_kernels_ratio=common_kernels(first.kernels, second.kernels),
        unavailable=tuple(_missing(first.summary, second.summary)),
    )


def _traced(summary: SummaryFile) -> Sequence[int]:
    """The mean traced step, which every run with a trace has."""
    if summary.parts is None:
        return summary.step_ns if summary.is_traced else ()
    return (summary.parts.span_ns,)


def _run(summary: SummaryFile, steps: Sequence[int], *, is_mixed: bool) -> ComparedRun:
    """One side; ``is_mixed`` if one run has plain steps and the other only traced ones."""
    unit, per_step = "tokens", summary.tokens_per_step
    if per_step is None:
        unit, per_step = "samples", summary.samples_per_step
    mean_ns = sum(steps) / len(steps) if len(steps) and not is_mixed else None
    rate = per_step * NS_PER_S / mean_ns if per_step is not None and mean_ns else None
    return made_from(
        summary.fingerprint,
        ComparedRun,
        source=summary.source,
        git_commit=summary.git_commit,
        num_steps=len(steps),
        is_traced=summary.is_traced or is_mixed,
        throughput_per_s=rate,
        throughput_unit=unit if rate is not None else "",
        peak_memory_bytes=summary.peak_memory_bytes,
    )


def _findings(first: Sequence[Finding], second: Sequence[Finding]) -> tuple[FindingChange, ...]:
    """Findings by rule: new, common, then gone, each group with the most expensive first."""
    costs = _costs(first), _costs(second)
    names = {problem.code: problem.name for problem in (*first, *second)}
    changes = [
        FindingChange(
            code=code,
            name=name,
            state="new" if code not in costs[0] else "gone" if code not in costs[1] else "both",
            first_cost_ns_per_step=costs[0].get(code),
            second_cost_ns_per_step=costs[1].get(code),
        )
        for code, name in names.items()
    ]
    order = ("new", "both", "gone")

    def rank(change: FindingChange) -> tuple[int, int, str]:
        cost = max(change.first_cost_ns_per_step or 0, change.second_cost_ns_per_step or 0)
        return order.index(change.state), -cost, change.code

    return tuple(sorted(changes, key=rank))


def _costs(problems: Sequence[Finding]) -> dict[str, int | None]:
    """Cost by rule: that of its most expensive finding, because findings of a rule may overlap."""
    costs = grouped((one.code, one.cost_ns_per_step) for one in problems).items()
    return {code: max((ns for ns in of if ns is not None), default=None) for code, of in costs}


def _missing(first: SummaryFile, second: SummaryFile) -> Iterator[str]:
    if first.step_ns and second.step_ns and first.is_traced != second.is_traced:
        yield (
            "One run has steps without a profiler, but the other has only traced steps: the "
            "comparison uses the traced steps of both."
        )
    without = [one.source for one in (first, second) if one.parts is None]
    if without:
        yield f"No traced steps in {' and '.join(without)}: the change cannot be split by part."
