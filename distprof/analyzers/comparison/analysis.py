"""Two runs side by side: step time, its parts, kernels, collectives, findings, circumstances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distprof.analyzers.collectives import CollectivesResult
from distprof.analyzers.comparison.collectives import compare_collectives
from distprof.analyzers.comparison.kernels import compare_kernels
from distprof.analyzers.comparison.result import (
    ComparedRun,
    Comparison,
    FindingChange,
    FingerprintChange,
    PartChange,
)
from distprof.analyzers.comparison.steps import compare_steps, part_changes
from distprof.analyzers.kernels import KernelsResult
from distprof.artefacts.summary_file import SummaryFile
from distprof.run.fingerprint import differences, unlike
from distprof.units import NS_PER_S

__all__ = ["FoundProblem", "Side", "compare"]


@dataclass(frozen=True, slots=True)
class FoundProblem:
    """What a rule found: its code, its name, and the cost of each of its findings."""

    code: str
    name: str
    cost_ns_per_step: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two runs.

    Args:
        summary: Its figures.
        kernels: Its kernel table.
        num_windows: Ranks times steps that the kernel table adds up.
        collectives: Its classes of collectives.
        problems: What rules found in it.
    """

    summary: SummaryFile
    kernels: KernelsResult
    num_windows: int
    collectives: CollectivesResult
    problems: tuple[FoundProblem, ...] = ()


def compare(first: Side, second: Side, *, version: str) -> Comparison:
    """What changed from the first run to the second.

    Args:
        first: What is compared with.
        second: What is compared.
        version: Of distprof.

    Returns:
        Changes, largest first; the changes of the parts add up to that of the traced step.
    """
    steps = _comparable_steps(first.summary, second.summary)
    forbidding = unlike(first.summary.fingerprint, second.summary.fingerprint)
    found = differences(first.summary.fingerprint, second.summary.fingerprint)
    windows = first.num_windows, second.num_windows
    return Comparison(
        distprof_version=version,
        first=_run(first.summary),
        second=_run(second.summary),
        is_alike=not forbidding,
        differences=tuple(
            FingerprintChange(
                field=one.field,
                group=one.group,
                first=one.first,
                second=one.second,
                forbids=one in forbidding,
            )
            for one in found
        ),
        step=compare_steps(*steps),
        parts=_parts(first.summary, second.summary),
        kernels=compare_kernels(first.kernels, second.kernels, windows),
        collectives=compare_collectives(first.collectives, second.collectives),
        findings=_findings(first.problems, second.problems),
        unavailable=_missing(first.summary, second.summary),
    )


def _comparable_steps(
    first: SummaryFile, second: SummaryFile
) -> tuple[Sequence[int], Sequence[int]]:
    """Steps of both; traced and other steps are not compared with each other."""
    if first.is_traced == second.is_traced:
        return first.step_ns, second.step_ns
    return _traced(first), _traced(second)


def _traced(summary: SummaryFile) -> Sequence[int]:
    if summary.is_traced or summary.parts is None:
        return summary.step_ns if summary.is_traced else ()
    return (summary.parts.span_ns,)


def _run(summary: SummaryFile) -> ComparedRun:
    unit, per_step = "tokens", summary.tokens_per_step
    if per_step is None:
        unit, per_step = "samples", summary.samples_per_step
    mean_ns = sum(summary.step_ns) / len(summary.step_ns) if summary.step_ns else None
    rate = per_step * NS_PER_S / mean_ns if per_step is not None and mean_ns else None
    return ComparedRun(
        source=summary.source,
        world_size=summary.fingerprint.world_size,
        device=summary.fingerprint.device,
        workload=summary.fingerprint.workload,
        git_commit=summary.git_commit,
        num_steps=len(summary.step_ns),
        is_traced=summary.is_traced,
        throughput_per_s=rate,
        throughput_unit=unit if rate is not None else "",
        peak_memory_bytes=summary.peak_memory_bytes,
    )


def _parts(first: SummaryFile, second: SummaryFile) -> tuple[PartChange, ...]:
    if first.parts is None or second.parts is None:
        return ()
    return tuple(
        PartChange(part=part, first_ns=mine, second_ns=theirs, change_ns=change)
        for part, mine, theirs, change in part_changes(first.parts, second.parts)
    )


def _findings(
    first: Sequence[FoundProblem], second: Sequence[FoundProblem]
) -> tuple[FindingChange, ...]:
    """By rule: new ones, then those of both, then those that are gone; the dearest first."""
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
    return tuple(sorted(changes, key=lambda c: (order.index(c.state), -_size(c), c.code)))


def _costs(problems: Sequence[FoundProblem]) -> dict[str, int | None]:
    """Cost by rule: its dearest finding, since several of one rule may be about the same time."""
    costs: dict[str, int | None] = {}
    for problem in problems:
        known = [c for c in (costs.get(problem.code), problem.cost_ns_per_step) if c is not None]
        costs[problem.code] = max(known, default=None)
    return costs


def _size(change: FindingChange) -> int:
    return max(change.first_cost_ns_per_step or 0, change.second_cost_ns_per_step or 0)


def _missing(first: SummaryFile, second: SummaryFile) -> tuple[str, ...]:
    found = []
    if first.is_traced != second.is_traced:
        found.append(
            "One run has steps without a profiler and the other has traced ones alone: "
            "the traced steps of both are compared."
        )
    without = [one.source for one in (first, second) if one.parts is None]
    if without:
        found.append(f"{' and '.join(without)} has no steps with traces: no split of the change.")
    return tuple(found)
