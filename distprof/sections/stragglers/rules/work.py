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
from distprof.units import capitalized, format_duration, format_ratio, name_ranks, verb

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
            return (
                f"{name_ranks(ranks)}, the slowest 3 % of the workers, {verb(ranks, 'explain')}"
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
