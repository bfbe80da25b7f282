"""Pipeline parallelism: compares the work of the stages.

Ranks that hold the same stages are one position of the pipeline. The least busy rank defines the
work of a position, so a slow rank among several does not count as an unequal split.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from distprof.artefacts.record import grouped
from distprof.run.evidence import OperationLog
from distprof.run.run import ClockAlignment, Run
from distprof.schema import ABSENT, Floats, Int64Array
from distprof.sections.context import RankAnalyses, RankAnalysis, StageSlots
from distprof.sections.own_time import chance_of_mean, over_peers
from distprof.sections.pipeline import PipelineGroup, PipelinePosition, PipelineRank, PipelineResult
from distprof.sections.pipeline.groups import PipelineSlots, groups_of
from distprof.sections.pipeline.slots import (  # noqa: F401 - parts of a rank
    UNKNOWN_STAGE,
    rank_message_wait_ns,
    rank_messages,
    rank_slots,
    rank_stages,
)
from distprof.sections.pipeline.sources import groups_from_messages, pipelines_of_log
from distprof.sections.step_log import StepLogResult
from distprof.terms import MeshAxis

BY_RANK = "The ranks of each pipeline are inferred from their numerical order."


def pipelines_of(run: Run, analyses: Mapping[int, RankAnalysis]) -> tuple[PipelineSlots, ...]:
    """Every pipeline of the run with slots on at least one rank."""
    with_slots = {r: a for r, a in analyses.items() if a.slots is not None and len(a.slots)}
    # members of the process groups along the pipeline axis in which a rank has slots
    along = (group.ranks for group in run.topology.groups if group.axis is MeshAxis.PP)
    groups = tuple(
        sorted({ranks for ranks in along if len(ranks) > 1 and with_slots.keys() & {*ranks}})
    )
    left = {rank for rank in with_slots if not any(rank in group for group in groups)}
    notes: tuple[str, ...] = ()
    if left:
        assumed = _from_stages({rank: with_slots[rank] for rank in sorted(left)})
        notes = (BY_RANK,) if len(assumed) > 1 else ()
        groups = (*groups, *assumed)
    return tuple(_pipeline(run.clock, group, with_slots, notes) for group in groups)


def _from_stages(with_slots: Mapping[int, RankAnalysis]) -> tuple[tuple[int, ...], ...]:
    """The i-th ranks of all positions form the i-th pipeline; some positions have fewer ranks."""
    positions = grouped([(_stages(analysis), rank) for rank, analysis in with_slots.items()])
    if (UNKNOWN_STAGE,) in positions:
        return (tuple(with_slots),)
    ordered = [positions[key] for key in sorted(positions)]
    number = max(len(ranks) for ranks in ordered)
    return tuple(tuple(ranks[i] for ranks in ordered if i < len(ranks)) for i in range(number))


def _stages(analysis: RankAnalysis) -> tuple[int, ...]:
    return tuple(np.unique(analysis.slots.stage).tolist()) if analysis.slots is not None else ()


def _pipeline(
    clock: ClockAlignment,
    members: tuple[int, ...],
    with_slots: Mapping[int, RankAnalysis],
    notes: tuple[str, ...],
) -> PipelineSlots:
    present = [rank for rank in members if rank in with_slots]
    comparable = are_comparable(clock, present)
    spans = [step.span_ns for rank in present for step in with_slots[rank].steps]
    return PipelineSlots(
        members=members,
        slots={
            rank: _on_common_clock(clock, rank, slots) if comparable else slots
            for rank in present
            if (slots := with_slots[rank].slots) is not None
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


# Work of the stages -------------------------------------------------------------------------------

NO_MARKS = "no marks of pipeline stages in the traces"
NO_STAGES = "the log names no pipeline stages with forward and backward passes"


def analyze_pipeline(
    run: Run, analyses: RankAnalyses, steps: StepLogResult | None = None
) -> PipelineResult:
    """Work, waiting and bubble of a run's pipelines, from slots in traces or from an operation log.

    Source:
        Formula sheet, "Pipeline bubble": stage imbalance is maximum over mean stage time.
    """
    result = _without_samples(run, analyses)
    samples = {one.rank: one.samples_per_step or 0 for one in steps.ranks} if steps else {}
    groups = tuple(
        replace(group, samples_per_step=max(samples.get(r, 0) for r in group.ranks) or None)
        for group in result.groups
    )
    return replace(result, groups=groups)


def _without_samples(run: Run, analyses: RankAnalyses) -> PipelineResult:
    if (operations := run.get(OperationLog)) is not None:
        groups = groups_of(pipelines_of_log(operations))
        return PipelineResult(groups=groups, unavailable=() if groups else (NO_STAGES,))
    groups = groups_of(pipelines_of(run, analyses))
    marked = {rank: a for rank, a in analyses.items() if a.stages and a.steps}
    if not marked:
        inferred = groups_from_messages(run, analyses) if not groups else ()
        if members := _members_by_messages(inferred, analyses):
            return _with_positions(members, inferred)
        groups = groups or inferred
        return PipelineResult(groups=groups, unavailable=() if groups else (NO_MARKS,))
    return _with_positions(_members_by_marks(marked), groups)


class _Member(msgspec.Struct, frozen=True, kw_only=True):
    """A rank of a pipeline."""

    analysis: RankAnalysis  # Analysis of the rank.
    stages: tuple[int, ...]  # Stages that it holds.
    work_ns: Int64Array  # int64 per step: work in these stages.
    num_micro_batches: float  # Mean per step.
    is_marked: bool  # Whether marks separate the work on micro-batches from all other computation.


def _members_by_marks(marked: Mapping[int, RankAnalysis]) -> list[_Member]:
    return [
        _Member(
            analysis=analysis,
            stages=analysis.stage_numbers,
            work_ns=np.sum([mark.work_ns for mark in analysis.stages], axis=0),
            num_micro_batches=float(np.mean([m.num_micro_batches for m in analysis.stages])),
            is_marked=True,
        )
        for analysis in marked.values()
    ]


def _members_by_messages(
    groups: Sequence[PipelineGroup], analyses: Mapping[int, RankAnalysis]
) -> list[_Member]:
    """Ranks of the only shape of pipeline, if they hold one stage each; all computation counts."""
    if len(groups) != 1 or groups[0].virtual_stages != 1:
        return []
    members = [
        _Member(
            analysis=analyses[rank],
            stages=(stage,),
            work_ns=analyses[rank].computation_ns,
            num_micro_batches=float(groups[0].num_micro_batches),
            is_marked=False,
        )
        for chain in groups[0].replicas
        for stage, rank in enumerate(chain)
    ]
    has_work = all(member.work_ns.any() for member in members)
    return members if has_work and len({len(m.work_ns) for m in members}) == 1 else []


def _with_positions(
    members: Sequence[_Member], groups: tuple[PipelineGroup, ...]
) -> PipelineResult:
    positions = _positions(members)
    work = np.array([position.work_ns_per_step for position in positions], dtype=np.float64)
    excess = float(work.max() - work.mean())
    batches = max(position.num_micro_batches for position in positions)
    spans = [step.span_ns for member in members for step in member.analysis.steps]
    ranks = sorted((_rank(member) for member in members), key=lambda rank: rank.rank)
    return PipelineResult(
        groups=groups,
        positions=positions,
        ranks=tuple(ranks),
        max_over_mean=float(work.max() / work.mean()) if work.mean() > 0 else None,
        lost_ns_per_step=int(excess * max(batches - 1, 0) / max(batches, 1)),
        step_ns=int(np.mean(spans)) if spans else None,
    )


def _positions(members: Sequence[_Member]) -> tuple[PipelinePosition, ...]:
    by_stages = grouped([(member.stages, member) for member in members])
    order = sorted(by_stages)
    work = np.stack([np.min([m.work_ns for m in by_stages[key]], axis=0) for key in order])
    excess = over_peers(work)
    chance = np.minimum(1.0, len(order) * chance_of_mean(excess))
    return tuple(
        _position(by_stages[key], work[i], excess[i], float(chance[i]))
        for i, key in enumerate(order)
    )


def _position(
    members: Sequence[_Member], work: Int64Array, excess: Floats, chance: float
) -> PipelinePosition:
    batches = float(np.mean([member.num_micro_batches for member in members]))
    mean, peers = float(work.mean()), float((work - excess).mean())
    busiest, share = _busiest_stage(members)
    return PipelinePosition(
        stages=members[0].stages,
        ranks=tuple(sorted(member.analysis.rank for member in members)),
        num_micro_batches=batches,
        work_ns_per_step=int(mean),
        work_ns_per_micro_batch=int(mean / batches) if batches and members[0].is_marked else None,
        excess_ratio=float(excess.mean()) / peers if peers > 0 else 0.0,
        chance=chance,
        busiest_stage=busiest,
        busiest_ratio=share,
    )


def _busiest_stage(members: Sequence[_Member]) -> tuple[int | None, float | None]:
    """The stage that works most among several of the same ranks, and its share of their work."""
    work: Counter[int] = Counter()
    for member in members:
        slots = member.analysis.slots
        if slots is not None:
            for stage, ns in zip(slots.stage.tolist(), slots.work_ns.tolist(), strict=True):
                work[stage] += ns
    if len(work) < 2 or not work.total():
        return None, None
    ((busiest, ns),) = work.most_common(1)
    return busiest, ns / work.total()


def _rank(member: _Member) -> PipelineRank:
    span = np.mean([step.span_ns for step in member.analysis.steps])
    wait = (
        float(member.analysis.message_wait_ns.mean())
        if member.analysis.message_wait_ns is not None
        else float(np.mean([step.exposed_comm_ns for step in member.analysis.steps]))
    )
    work = member.work_ns.mean()
    return PipelineRank(
        rank=member.analysis.rank,
        stages=member.stages,
        work_ns_per_step=int(work),
        wait_ns_per_step=int(wait),
        other_ns_per_step=max(0, int(span - wait - work)),
    )
