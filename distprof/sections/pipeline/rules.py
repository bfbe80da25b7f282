"""Rules about pipelines: their bubble, and how work is divided among stages."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

import msgspec

from distprof.artefacts.record import made_from
from distprof.escape import fitting
from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, advice, rule, worth
from distprof.sections.idle import IdleResult, PausesResult
from distprof.sections.pipeline import (
    MICRO_BATCHES,
    PipelineGroup,
    PipelinePosition,
    PipelinePrediction,
    PipelineResult,
    refill_key,
)
from distprof.sections.placement import PlacementResult
from distprof.sections.settings import SettingsResult
from distprof.sections.stragglers import StragglersResult
from distprof.sections.table import counted
from distprof.sections.training_log import TrainingLogResult
from distprof.terms import Confidence, MeshAxis, Severity, StragglerCause
from distprof.units import capitalized, format_duration, format_ratio, name_ranks, verb


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline whose idle time is split into its causes."""

    group: PipelineGroup  # The pipeline.
    span_ns: int  # Span of the pipeline, above 0.
    idle_ns: int  # Idle time of the mean rank.
    warm_up_drain_ns: int  # Part of the idle time due to warm-up and drain.
    exposed_p2p_ns: int  # Part of the idle time due to exposed messages.

    @property
    def name(self) -> str:
        """For example ``The pipeline of ranks 0-3``."""
        return f"The pipeline of {name_ranks(self.group.ranks)}"

    def ratio(self, ns: float) -> float:
        """Share of the span."""
        return ns / self.span_ns


def judged_groups(pipeline: PipelineResult) -> Iterator[Judged]:
    """Pipelines whose idle time is split into causes; none if the run has no pipeline."""
    if not pipeline.groups:
        return
    known = [judged for group in pipeline.groups if (judged := _judged(group)) is not None]
    if not known:
        reasons = [note for group in pipeline.groups for note in group.notes[-1:]]
        why = reasons[0] if reasons else "no work was recorded in its stages."
        raise InsufficientEvidenceError(
            f"the causes of the pipeline's idle time are unknown: {why}"
        )
    yield from known


def _judged(group: PipelineGroup) -> Judged | None:
    parts = (group.span_ns, group.idle_ns, group.warm_up_drain_ns, group.exposed_p2p_ns)
    if any(part is None for part in parts) or not group.span_ns:
        return None
    return made_from(group, Judged, group=group)


BY_COUNT = 0.8
"""A pipeline of unknown order is reported if it idles for this share of the ideal bubble."""


@rule(
    "PIP102",
    Severity.WARNING,
    bubble_ratio=Limit(0.1, "largest acceptable share of time spent filling and draining"),
)
def too_few_micro_batches(pipeline: PipelineResult, limits: Limits) -> Iterator[Draft]:
    """A pipeline spends more than a tenth of its time filling and draining because it has too few
    micro-batches per step for its number of stages.
    """
    if not any(group.warm_up_drain_ns is not None for group in pipeline.groups):
        by_count = list(_by_count(pipeline, limits["bubble_ratio"]))
        yield from by_count
        if by_count:
            return
    for judged in judged_groups(pipeline):
        share = judged.ratio(judged.warm_up_drain_ns)
        if share <= limits["bubble_ratio"]:
            continue
        group = judged.group
        best = judged.group.better
        yield Draft(
            headline=f"Filling and draining the pipeline takes {format_ratio(share)} of its time",
            message=(
                f"{format_duration(judged.warm_up_drain_ns)} of {format_duration(judged.span_ns)} "
                f"on {name_ranks(group.ranks)}: "
                f"{counted(group.num_micro_batches, 'micro-batch')} on {group.num_positions} ranks "
                f"with schedule {group.schedule}."
            ),
            fix=_fix(judged),
            cost_ns_per_step=judged.warm_up_drain_ns,
            confidence=group.confidence,
            evidence=("pipeline.groups",),
            without=refill_key(best[0]) if best else "",
        )


def _by_count(pipeline: PipelineResult, max_ratio: float) -> Iterator[Draft]:
    """One finding per pipeline of unknown order that idles as its micro-batches predict."""
    for group in pipeline.groups:
        ranks, batches = group.num_positions, group.num_micro_batches
        span, idle = group.span_ns, group.bubble_fraction
        if not batches or not span or idle is None:
            continue
        ideal = (ranks - 1) / ((group.virtual_stages or 1) * batches + ranks - 1)
        if ideal <= max_ratio or idle < BY_COUNT * ideal:
            continue
        yield Draft(
            headline=f"The pipeline idles {format_ratio(idle)} of its time: too few micro-batches",
            message=(
                f"{format_duration(round(idle * span))} of {format_duration(span)} on "
                f"{name_ranks(group.ranks)}: {counted(batches, 'micro-batch')} on {ranks} stages "
                f"leave {format_ratio(ideal)} idle at best, if stages alternate between forward "
                "and backward."
            ),
            fix=advice("too-few-micro-batches", "by-count", more=_more(group, ranks)),
            cost_ns_per_step=round(min(ideal, idle) * span),
            confidence=Confidence.INFERRED,
            evidence=("pipeline.groups",),
            explains=("COM101", "COM102", "COM103", "STR110"),
            comes_first=True,
        )


def _more(group: PipelineGroup, ranks: int) -> str:
    """Advice to use more micro-batches, as far as the batch has enough samples."""
    samples = group.samples_per_step
    if samples is not None and samples <= group.num_micro_batches:
        return "Each micro-batch is one sample: use a larger batch, "
    wanted = 4 * ranks if samples is None else min(4 * ranks, samples)
    return f"Use more micro-batches ({wanted} or more for {ranks} stages), "


def _fix(judged: Judged) -> str:
    """The best change of the order, which the plan prices, and the next with its prediction."""
    best = judged.group.better
    if not best:
        more = _more(judged.group, judged.group.num_positions)
        return f"{more}several stages per rank, or a zero-bubble schedule."
    others = [f", or {_change(row)}: {format_duration(row.step_ns)} per step" for row in best[1:]]
    return f"{capitalized(_change(best[0]))}{''.join(others)}{' (predicted)' if others else ''}."


def _change(prediction: PipelinePrediction) -> str:
    if prediction.change == MICRO_BATCHES:
        return f"divide the same batch into {prediction.num_micro_batches} micro-batches"
    return f"use {prediction.what}"


_IMBALANCE, _VARIATION = "unequal stages", "uneven micro-batches"
_MESSAGES, _HOST = "messages", "late launches, stalls inside slots and other causes"


@rule(
    "PIP103",
    Severity.WARNING,
    excess_ratio=Limit(
        0.05, "largest acceptable share of idle time beyond what the order of actions explains"
    ),
)
def bubble_above_ideal(
    pipeline: PipelineResult, placement: PlacementResult, limits: Limits
) -> Iterator[Draft]:
    """A pipeline idles longer than its schedule explains."""
    for judged in judged_groups(pipeline):
        excess = judged.idle_ns - judged.warm_up_drain_ns
        if judged.ratio(excess) <= limits["excess_ratio"]:
            continue
        group = judged.group
        ns, what = max(_parts(group))
        said = f"The pipeline idles {format_ratio(judged.ratio(excess))} more than its schedule"
        busiest = "the busiest stage"
        if group.limiting_rank is not None:
            busiest = f"stage {group.limiting_stage} (rank {group.limiting_rank})"
        yield Draft(
            headline=fitting(f"{said} explains: {what.partition(',')[0]}", said),
            message=(
                f"{judged.name} idles {format_ratio(judged.ratio(judged.idle_ns))} of its time; "
                f"warm-up and drain take {format_ratio(judged.ratio(judged.warm_up_drain_ns))}. Of "
                f"the other {format_duration(excess)}, {format_duration(ns)} are lost to {what}."
            ),
            fix=_nearer(placement)
            if what == _MESSAGES
            else advice("bubble-above-ideal", what, busiest=busiest),
            cost_ns_per_step=excess,
            confidence=group.confidence,
            evidence=("pipeline.groups",),
            without=_WITHOUT.get(what, ""),
        )


_WITHOUT = {_IMBALANCE: "stage-imbalance", _MESSAGES: f"axis {MeshAxis.PP}", _HOST: "launch-gaps"}
"""Scenarios of the simulated step, by the most expensive cause."""


def _parts(group: PipelineGroup) -> list[tuple[int, str]]:
    return [
        (group.imbalance_ns or 0, _IMBALANCE),
        (group.variation_ns or 0, _VARIATION),
        (group.exposed_p2p_ns or 0, _MESSAGES),
        (group.host_ns or 0, _HOST),
    ]


@rule(
    "PIP104",
    Severity.WARNING,
    exposed_ratio=Limit(
        0.03, "largest acceptable share of the pipeline's time spent on exposed messages"
    ),
)
def exposed_pipeline_messages(
    pipeline: PipelineResult, placement: PlacementResult, limits: Limits
) -> Iterator[Draft]:
    """Pipeline stages wait for messages that have already been sent."""
    for judged in judged_groups(pipeline):
        cost = judged.exposed_p2p_ns
        if judged.ratio(cost) <= limits["exposed_ratio"]:
            continue
        yield Draft(
            headline=(
                f"Waiting for messages already sent takes {format_ratio(judged.ratio(cost))} of "
                "the pipeline"
            ),
            message=(
                f"{judged.name} spends {format_duration(cost)} of "
                f"{format_duration(judged.span_ns)} on it."
            ),
            fix=_nearer(placement),
            cost_ns_per_step=cost,
            confidence=judged.group.confidence,
            evidence=("pipeline.groups",),
            without=f"axis {MeshAxis.PP}",
        )


def _nearer(placement: PlacementResult) -> str:
    """What to do about slow messages; not to put stages on one node if they are."""
    if {axis.num_nodes for axis in placement.axes if axis.axis == MeshAxis.PP} == {1}:
        return advice("exposed-pipeline-messages", "near")
    return advice("exposed-pipeline-messages", "far")


MICRO_BATCHES_PER_STAGE = 4


@rule(
    "PIP105",
    Severity.WARNING,
    idle_ratio=Limit(0.1, "largest acceptable share of an iteration without computation"),
)
def pipeline_idle_by_timers(
    log: TrainingLogResult, pipeline: PipelineResult, limits: Limits
) -> Iterator[Draft]:
    """According to the training program's timers, a pipeline stage computes for too little of an
    iteration.
    """
    if not log.origin or log.mesh.get("pp", 1) < 2:
        return
    if log.idle_ratio is None or log.ideal_bubble_ratio is None or log.mean_ns is None:
        raise InsufficientEvidenceError("the log has no computation timers, or no layout")
    if pipeline.groups or log.idle_ratio <= limits["idle_ratio"]:
        return
    ideal = min(log.ideal_bubble_ratio, log.idle_ratio)
    who = f"The {log.timer_stage} stage" if log.timer_stage else "The slowest rank"
    yield Draft(
        headline=f"{who} of the pipeline computes {format_ratio(log.compute_ratio)} of the time",
        message=_message(log, log.idle_ratio - ideal),
        fix=_fix_by_timers(log, ideal),
        cost_ns_per_step=round((log.idle_ratio - limits["idle_ratio"]) * log.mean_ns),
        evidence=("training_log.timers",),
    )


def _message(log: TrainingLogResult, other_ratio: float) -> str:
    batches = counted(log.num_micro_batches or 0, "micro-batch")
    text = (
        f"An iteration takes {format_duration(log.mean_ns)}: {batches} on "
        f"{log.mesh['pp']} stages leave {format_ratio(log.ideal_bubble_ratio)} idle at best"
    )
    if not other_ratio:
        return f"{text}."
    return f"{text}, and {format_ratio(other_ratio)} has other causes."


def _fix_by_timers(log: TrainingLogResult, ideal: float) -> str:
    if ideal >= (log.idle_ratio or 0.0) / 2:
        wanted = MICRO_BATCHES_PER_STAGE * log.mesh["pp"]
        most = (log.num_micro_batches or 0) * (log.micro_batch_size or wanted)
        more = f"Use more micro-batches ({min(wanted, most):,} or more for {log.mesh['pp']} stages)"
        if log.micro_batch_size == 1:
            more = "Each micro-batch is one sample: use a larger batch"
        return f"{more}, several chunks per rank, or fewer stages."
    return "Balance the stages (the first and the last hold the embedding), and overlap messages."


_WIDER = ("PIP103",)  # Finding that includes the same time in a larger sum


@rule(
    "PIP101",
    Severity.WARNING,
    excess_ratio=Limit(
        0.08, "largest acceptable excess of a stage's work over the other stages' median"
    ),
    excess_ratio_without_spare_cpu=Limit(
        0.2, "the same on CPU ranks that share as few CPUs as there are ranks"
    ),
    min_step_ratio=worth(0.01),
    chance=Limit(0.01, "largest probability that equal stages would differ as much by chance"),
)
def unequal_stages(
    pipeline: PipelineResult,
    stragglers: StragglersResult,
    pauses: PausesResult,
    idle: IdleResult,
    settings: SettingsResult,
    limits: Limits,
) -> Iterator[Draft]:
    """One pipeline stage works longer on each micro-batch than the others."""
    cost, step = pipeline.lost_ns_per_step, pipeline.step_ns
    if not pipeline.positions:
        yield from _of_logs(pipeline, limits)
        return
    if len(pipeline.positions) < 2 or not cost or not step:
        return  # no pipeline, or one with equal stages
    busiest = max(pipeline.positions, key=lambda position: position.excess_ratio)
    if busiest.excess_ratio < limits["excess_ratio"] or cost < limits["min_step_ratio"] * step:
        return
    if _is_due_to(StragglerCause.SLOW_DEVICE, busiest, stragglers):
        return  # its GPU is slow: it does not hold more layers
    if busiest.chance > limits["chance"]:
        raise InsufficientEvidenceError(
            f"{_stages(busiest).lower()} works {format_ratio(busiest.excess_ratio)} more than the "
            "others, but these few steps differ so much that it may be chance: trace more steps"
        )
    is_small = busiest.excess_ratio < limits["excess_ratio_without_spare_cpu"]
    if idle.is_cpu and is_small and settings.without_spare.intersection(busiest.ranks):
        raise InsufficientEvidenceError(
            f"{_stages(busiest).lower()} works {format_ratio(busiest.excess_ratio)} more than the "
            "others, but there are no more CPUs than ranks, so equal stages differ as much by "
            "chance: leave a CPU free"
        )
    is_taken = _is_due_to(StragglerCause.CPU_TAKEN, busiest, stragglers)
    is_traced = _is_due_to(StragglerCause.TRACING, busiest, stragglers)
    if idle.is_cpu and (is_taken or is_traced or _has_no_more_cpu_time(busiest, pauses)):
        raise InsufficientEvidenceError(
            f"{_stages(busiest).lower()} takes {format_ratio(busiest.excess_ratio)} longer than "
            "the others, but the CPU time of its training thread does not confirm this: other "
            "processes take its CPU, or the profiler slows the stage down"
        )
    # messages show which rank holds which stage, but not which computation is the stage's
    is_marked = busiest.work_ns_per_micro_batch is not None
    more = f"works {format_ratio(busiest.excess_ratio)} more than the others"
    yield Draft(
        headline=fitting(f"{_stages(busiest)} {more}", f"A group of stages {more}"),
        message=(
            f"{_who_works(busiest)} {format_duration(_work(busiest))} {_each(busiest)}, the other "
            "stages' median is "
            f"{format_duration(_work(busiest) / (1 + busiest.excess_ratio))}. The pipeline waits "
            f"{format_duration(cost)} ({format_ratio(cost / step)}) of each step for it."
        ),
        cost_ns_per_step=cost,
        confidence=Confidence.MEASURED if is_marked else Confidence.INFERRED,
        ranks=busiest.ranks,
        evidence=("pipeline.positions", "pipeline.max_over_mean"),
        without="stage-imbalance",
        explains=_WIDER,
    )


def _is_due_to(
    cause: StragglerCause, busiest: PipelinePosition, stragglers: StragglersResult
) -> bool:
    """Whether all ranks of a position are slow because of this cause."""
    slow = {rank for one in stragglers.sets if one.cause is cause for rank in one.ranks}
    return set(busiest.ranks) <= slow


UNEVEN = 1.1  # Share of a stage over an even one from which it, and not its group, is named

SHOWS = 0.5
"""Share of a stage's excess, in time or relative to the other stages, that the CPU time of its
training thread must also show. On a busy machine, waiting stretches the time; in short steps,
everything outside of stages dilutes the ratio."""


def _has_no_more_cpu_time(busiest: PipelinePosition, pauses: PausesResult) -> bool:
    """Whether a stage on CPU ranks takes longer, although its training thread does not run longer.

    It then waits for a CPU, or the profiler slows it down: the CPU time is that of steps without a
    profiler.
    """
    cpu_ns = {rank.rank: rank.cpu_ns_per_step for rank in pauses.ranks}
    others = [ns for rank, ns in cpu_ns.items() if ns and rank not in busiest.ranks]
    own = [ns for rank, ns in cpu_ns.items() if ns and rank in busiest.ranks]
    if not own or not others:
        return False
    excess_ns = busiest.work_ns_per_step * busiest.excess_ratio / (1 + busiest.excess_ratio)
    more_ns = median(own) - median(others)
    return more_ns < SHOWS * min(excess_ns, busiest.excess_ratio * median(others))


def _of_logs(pipeline: PipelineResult, limits: Limits) -> Iterator[Draft]:
    """The busiest stage according to an operation log, which does not separate steps."""
    uneven = [
        one for one in pipeline.groups if (one.imbalance_ratio or 0) - 1 >= limits["excess_ratio"]
    ]
    if uneven and all(group.imbalance_ns is None for group in pipeline.groups):
        raise InsufficientEvidenceError(_unpriced(uneven[0], uneven[0].imbalance_ratio or 0.0))
    for group in pipeline.groups:
        cost, span, stage = group.imbalance_ns, group.span_ns, group.limiting_stage
        ratio = group.imbalance_ratio
        if cost is None or not span or stage is None or ratio is None:
            continue
        if ratio - 1 < limits["excess_ratio"] or cost < limits["min_step_ratio"] * span:
            continue
        yield Draft(
            headline=(
                f"Stage {stage} (rank {group.limiting_rank}) limits the pipeline: it works "
                f"{format_ratio(ratio - 1)} more"
            ),
            message=(
                f"The comparison is with the mean stage. The pipeline waits "
                f"{format_duration(cost)} ({format_ratio(cost / span)}) of each step for it."
            ),
            cost_ns_per_step=cost,
            confidence=group.confidence,
            ranks=() if group.limiting_rank is None else (group.limiting_rank,),
            evidence=("pipeline.groups",),
            without="stage-imbalance",
            explains=_WIDER,
        )


def _unpriced(group: PipelineGroup, ratio: float) -> str:
    """Reason for a pipeline whose order is unknown, or that was not recorded completely."""
    return (
        f"rank {group.limiting_rank} of the pipeline of {name_ranks(group.ranks)} works "
        f"{format_ratio(ratio - 1)} more than the mean, but the cost is unknown, because its "
        "stages or their order are not completely known: mark the stages (pipeline_marks)"
    )


def _who_works(position: PipelinePosition) -> str:
    """The subject and the verb: the stage, or the one of several that works more than its share."""
    ranks, ratio = name_ranks(position.ranks), position.busiest_ratio
    if ratio is None or ratio < UNEVEN / len(position.stages):
        return f"{_stages(position)} ({ranks}) works"
    share, numbers = format_ratio(ratio), ", ".join(map(str, position.stages))
    busiest = f"Stage {position.busiest_stage} is {share} of the work of stages {numbers}"
    return f"{busiest}: {ranks} {verb(position.ranks, 'work')}"


def _stages(position: PipelinePosition) -> str:
    numbers = ", ".join(map(str, position.stages))
    return f"Stage {numbers}" if len(position.stages) == 1 else f"The group with stages {numbers}"


def _each(position: PipelinePosition) -> str:
    return "in each step" if position.work_ns_per_micro_batch is None else "on each micro-batch"


def _work(position: PipelinePosition) -> float:
    return position.work_ns_per_micro_batch or position.work_ns_per_step
