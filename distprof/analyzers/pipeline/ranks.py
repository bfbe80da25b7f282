"""Which ranks of a traced run form one pipeline, with their slots on one clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from distprof.analyzers.context import RankAnalysis, StageSlots
from distprof.analyzers.pipeline.groups import PipelineSlots
from distprof.analyzers.pipeline.names import UNKNOWN_STAGE
from distprof.run.run import ClockAlignment, Run
from distprof.schema import ABSENT
from distprof.terms import MeshAxis

__all__ = ["are_comparable", "pipelines_of"]

BY_RANK = "Which ranks form one pipeline is concluded from the order of their numbers."


def pipelines_of(run: Run, analyses: Mapping[int, RankAnalysis]) -> tuple[PipelineSlots, ...]:
    """Every pipeline of the run of which some rank has slots.

    Ranks are grouped as the run's process groups along the pipeline say; without such groups the
    first rank of each position forms the first pipeline, and so on.
    """
    held = {r: a for r, a in analyses.items() if a.slots is not None and len(a.slots)}
    groups = _from_topology(run, held)
    left = {rank for rank in held if not any(rank in group for group in groups)}
    notes: tuple[str, ...] = ()
    if left:
        assumed = _from_stages({rank: held[rank] for rank in sorted(left)})
        notes = (BY_RANK,) if len(assumed) > 1 else ()
        groups = (*groups, *assumed)
    return tuple(_pipeline(run.clock, group, held, notes) for group in groups)


def _from_topology(run: Run, held: Mapping[int, RankAnalysis]) -> tuple[tuple[int, ...], ...]:
    """Members of the process groups along the pipeline that have slots."""
    groups = (group.ranks for group in run.topology.groups if group.axis is MeshAxis.PP)
    return tuple(sorted({ranks for ranks in groups if len(ranks) > 1 and held.keys() & {*ranks}}))


def _from_stages(held: Mapping[int, RankAnalysis]) -> tuple[tuple[int, ...], ...]:
    """The i-th rank of every position is the i-th pipeline; short positions end the list."""
    positions: dict[tuple[int, ...], list[int]] = {}
    for rank, analysis in held.items():
        positions.setdefault(_stages(analysis), []).append(rank)
    if (UNKNOWN_STAGE,) in positions:
        return (tuple(held),)
    ordered = [positions[key] for key in sorted(positions)]
    most = max(len(ranks) for ranks in ordered)
    return tuple(tuple(ranks[i] for ranks in ordered if i < len(ranks)) for i in range(most))


def _stages(analysis: RankAnalysis) -> tuple[int, ...]:
    return tuple(np.unique(analysis.slots.stage).tolist()) if analysis.slots is not None else ()


def _pipeline(
    clock: ClockAlignment,
    members: tuple[int, ...],
    held: Mapping[int, RankAnalysis],
    notes: tuple[str, ...],
) -> PipelineSlots:
    present = [rank for rank in members if rank in held]
    comparable = are_comparable(clock, present)
    spans = [step.span_ns for rank in present for step in held[rank].steps]
    return PipelineSlots(
        members=members,
        slots={
            rank: _on_common_clock(clock, rank, slots) if comparable else slots
            for rank in present
            if (slots := held[rank].slots) is not None
        },
        comparable=comparable,
        residual_ns=_residual(clock, present) if comparable else 0,
        step_ns=int(np.mean(spans)) if spans else None,
        notes=notes,
    )


def are_comparable(clock: ClockAlignment, ranks: Sequence[int]) -> bool:
    """Whether times of all these ranks can be put on one clock."""
    known = {rank for domain in clock.domains for rank in domain}
    if len(ranks) < 2 or not known.issuperset(ranks):
        return len(ranks) < 2
    first = clock.domain_of(ranks[0])
    return all(
        clock.domain_of(rank) == first or clock.residual_between(ranks[0], rank) is not None
        for rank in ranks[1:]
    )


def _residual(clock: ClockAlignment, ranks: Sequence[int]) -> int:
    """The largest uncertainty between the first rank and another."""
    between = [clock.residual_between(ranks[0], rank) for rank in ranks[1:]]
    return max((residual for residual in between if residual is not None), default=0)


def _on_common_clock(clock: ClockAlignment, rank: int, slots: StageSlots) -> StageSlots:
    waits = slots.wait_end_ns
    if rank not in {member for domain in clock.domains for member in domain}:
        return slots
    return replace(
        slots,
        start_ns=clock.to_common(rank, slots.start_ns),
        end_ns=clock.to_common(rank, slots.end_ns),
        wait_end_ns=None
        if waits is None
        else np.where(waits == ABSENT, ABSENT, clock.to_common(rank, waits)),
    )
