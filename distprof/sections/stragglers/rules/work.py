"""Rules about unequal work."""

from __future__ import annotations

from collections.abc import Iterator

from distprof.escape import few_ranks
from distprof.rules.base import Draft, Limit, Limits, advice, rule
from distprof.sections.collectives import CollectivesResult
from distprof.sections.pipeline import PipelineResult
from distprof.sections.shares import WIDER_WAIT
from distprof.sections.stragglers import SequenceImbalance, StragglersResult, words
from distprof.sections.whatif import Cause, CauseKind, WhatIfResult, causes_of, limiting_stage
from distprof.terms import Confidence, Severity
from distprof.units import capitalized, format_duration, format_ratio, name_ranks

NAMED_RATIO = 1.08
"""Imbalance of stages from which `unequal-stages` names the longest."""


@rule(
    "STR105",
    Severity.WARNING,
    min_slowdown=Limit(1.03, "step over the ideal one below which no cause is named"),
    warn_slowdown=Limit(1.1, "step over the ideal one from which it is a warning"),
    warn_gain_ratio=Limit(0.03, "share of the step from which one cause is a warning"),
    min_share=Limit(0.25, "share of the slowdown that a cause must explain"),
)
def uneven_operations(
    whatif: WhatIfResult, pipeline: PipelineResult, limits: Limits
) -> Iterator[Draft]:
    """A log of operations shows longer steps than if all operations of a kind took equally long.
    The rule also names the cause: a few workers, a pipeline stage, micro-batches or transfers.

    ## Why it costs time
    Workers of a step wait for each other at every message and collective, so the longest of each
    round sets the pace and the mean does not matter.

    ## Evidence needed
    A table of operations with start and duration on clocks that agree to a few milliseconds, which
    distprof reads in place of traces. If the order of the pipeline is known, `unequal-stages`
    reports a stage that is far longer than the others.

    ## How the cost is computed
    Each step is simulated from its dependencies with measured operations, and again without the
    cause: the slowest 3 % of the workers with ideal operations, all stages equally long,
    micro-batches of a stage equally long, or all transfers of a kind at their median. The
    difference is the cost. Causes overlap, so the costs of several findings do not add up. The
    times that each still recovers after the findings above it do. The ideal duration is the mean of
    a kind of computation and the median of a kind of transfer.

    ## How to fix
    A few workers: take their machines out of the job and test them. A stage: move layers from it,
    and count the output layer and the loss with the last stage. Micro-batches that differ equally
    in forward and backward have sequences of unequal length: give micro-batches equal attention
    work, not equal token counts. Micro-batches that differ without this pattern: look for garbage
    collection and other work on the hosts. Transfers: check the network of the named group.

    ## When it is wrong
    A stage that is longer on purpose, because others lack the memory. With one worker per stage, a
    slow machine and a stage with more work look the same. Operations that the table lacks
    (optimizer states on the CPU, evaluation) count as late launches, which the simulation leaves
    out. The report gives the error of the simulated step relative to the measured one.

    ## Sources
    J. Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis",
    OSDI 2025. Formula sheet, "What-if".
    """
    if whatif.source != "operations" or whatif.slowdown is None:
        return  # other rules judge traces
    if whatif.slowdown < limits["min_slowdown"]:
        return
    step_ns, longest = max(1, whatif.replayed_ns or 0), limiting_stage(whatif)
    for cause in causes_of(whatif, limits["min_share"]):
        kind, gain_ns = cause.kind, cause.scenario.recoverable_ns
        is_stage = kind is CauseKind.STAGES
        if is_stage and any((one.imbalance_ratio or 0.0) >= NAMED_RATIO for one in pipeline.groups):
            continue  # `unequal-stages` reports it
        is_large = whatif.slowdown >= limits["warn_slowdown"]
        is_large |= gain_ns / step_ns >= limits["warn_gain_ratio"]
        of_stage = longest.ranks if longest is not None else ()
        yield Draft(
            headline=_lost_to(cause, f"{format_ratio(gain_ns / step_ns)} of each step"),
            message=(
                f"{capitalized(_because(whatif, cause))} {words()['saves'][kind]} "
                f"{format_duration(gain_ns)}{'' if kind is CauseKind.WORKERS else ' of each step'}."
            ),
            fix=advice("uneven-operations", kind),
            cost_ns_per_step=gain_ns,
            confidence=Confidence.MODELLED,
            ranks=of_stage if is_stage else cause.scenario.ranks,
            evidence=("whatif.without", "whatif.workers", "whatif.stages"),
            severity=None if is_large else Severity.INFO,
            without=cause.scenario.what,
            explains=("PIP103",) if is_stage else (),
        )


def _lost_to(cause: Cause, share: str) -> str:
    if cause.kind is CauseKind.WORKERS:
        return f"Slow workers cost {share}: {few_ranks(cause.scenario.ranks)}"
    return f"{words()['costs'][cause.kind]} cost {share}"


def _because(whatif: WhatIfResult, cause: Cause) -> str:
    correlation = whatif.micro_batch_correlation
    measure = "" if correlation is None else f" (correlation {correlation:.2f})"
    match cause.kind:
        case CauseKind.WORKERS:
            ranks = cause.scenario.ranks
            explain = "explains" if len(ranks) == 1 else "explain"
            return (
                f"{name_ranks(ranks)}, the slowest 3 % of the workers, {explain}"
                f" {format_ratio(cause.share)} of the slowdown."
            )
        case CauseKind.STAGES:
            longest = limiting_stage(whatif)
            others = [stage.compute_ns for stage in whatif.stages if stage is not longest]
            if longest is None or not others:
                return "pipeline stages differ in length."
            return (
                f"stage {longest.stage} ({name_ranks(longest.ranks)}) computes for "
                f"{format_duration(longest.compute_ns)} per step, compared with a mean of "
                f"{format_duration(sum(others) / len(others))} on the other stages."
            )
        case CauseKind.TRANSFERS:
            kind = cause.scenario.what.removeprefix("kind ")
            return f"transfers of kind {kind} vary in duration."
        case CauseKind.DATA:
            return (
                "micro-batches of a stage differ in duration, equally in forward and backward"
                f"{measure}: their sequences differ in length."
            )
    return f"micro-batches of a stage differ in duration, with no pattern in the data{measure}."


@rule(
    "STR106",
    Severity.WARNING,
    min_step_ratio=Limit(0.03, "share of the step that the imbalance may cost"),
)
def sequence_length_imbalance(
    stragglers: StragglersResult, collectives: CollectivesResult, limits: Limits
) -> Iterator[Draft]:
    """In each step a different rank computes longer than the mean, because its sequences are
    longer.

    ## Why it costs time
    Attention grows with the square of a sequence's length. A batch with one document of 8,000
    tokens takes far longer than one with eight of 1,000, though both hold the same number of
    tokens, and all ranks wait for the one that drew it.

    ## Evidence needed
    At least three steps of at least two ranks that do the same work. What ranks compute above the
    mean must follow the tokens of the step log, or the time in attention kernels, which must differ
    between ranks more than all other computation does. It must not be the same rank in all steps: a
    slow GPU, or a shard that always has more work, is `persistent-straggler`.

    ## How the cost is computed
    The busiest rank's computation less the mean of all, mean over steps: what even batches would
    recover. The time is part of what `exposed-communication` reports.

    ## How to fix
    Build batches of equal cost instead of equal numbers of samples or tokens: sort the documents of
    a global batch by squared length, and give each to the rank with the least work so far.
    Bucketing by length has much the same effect. If documents are packed, cut the longest.

    ## When it is wrong
    Attention that differs for another reason, such as caches of different sizes. Token counts that
    correlate with another cost.

    ## Sources
    Formula sheet, "Measured from traces" (straggler; more work). Lin et al., "Understanding
    Stragglers in Large Model Training Using What-if Analysis", OSDI 2025.
    """
    found = stragglers.sequences
    if found is None or not collectives.classes:
        return
    if found.share_of_step_ratio < limits["min_step_ratio"]:
        return
    yield Draft(
        headline=(
            "Sequences of unequal length cost "
            f"{format_ratio(found.share_of_step_ratio)} of each step"
        ),
        message=(
            f"The busiest rank of a step computes {found.max_over_mean:.2f} times as long as the "
            f"mean rank, because its sequences are longer ({_evidence(found)}). Even batches would "
            f"recover {format_duration(found.lost_ns_per_step)} of each step."
        ),
        cost_ns_per_step=found.lost_ns_per_step,
        confidence=Confidence.MEASURED if found.evidence == "tokens" else Confidence.INFERRED,
        evidence=("stragglers.sequences",),
        without="even-work",
        explains=WIDER_WAIT,
    )


def _evidence(found: SequenceImbalance) -> str:
    if found.attention_spread is None or found.rest_spread is None:
        return "computation follows the tokens of the step log"
    return (
        f"known from {found.evidence}: attention varies by {format_ratio(found.attention_spread)} "
        f"between ranks, the rest by {format_ratio(found.rest_spread)}"
    )
