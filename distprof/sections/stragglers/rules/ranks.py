"""Rules about ranks that make others wait."""

from __future__ import annotations

from collections.abc import Iterator

from distprof.escape import few_ranks, fitting
from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, advice, rule, worth
from distprof.sections.capture import CaptureResult
from distprof.sections.collectives import CollectivesResult
from distprof.sections.moe import MoeResult
from distprof.sections.shares import StepTimes, unrecorded
from distprof.sections.stragglers import (
    COLLECTIONS,
    MEMORY_CALLS,
    PAUSED_FOR,
    RankStraggler,
    StragglerSet,
    StragglersResult,
    words,
)
from distprof.sections.time import StepTimeResult
from distprof.terms import Confidence, Severity, StragglerCause, StragglerPattern
from distprof.units import capitalized, fold_ranks, format_duration, format_ratio, name_ranks, verb

_Slow = RankStraggler | StragglerSet


def because(rank: _Slow) -> str:
    """The cause as a sentence without its full stop."""
    if rank.detail.startswith(PAUSED_FOR):
        text = f"Its CPU launches late: it is in {rank.detail.removeprefix(PAUSED_FOR)}"
    else:
        text = words()["because"].get(rank.detail) or words()["because"][rank.cause]
    if isinstance(rank, StragglerSet) and len(rank.ranks) > 1:
        for one, several in words()["several"]:
            text = text.replace(one, several)
    return text


def who(found: StragglerSet) -> str:
    """For example ``Ranks 4-7 (node node1)``."""
    return capitalized(_them(found))


def _them(found: StragglerSet) -> str:
    shared = {"node": f" (node {found.name})", "": ""}.get(found.shares, f" ({found.name})")
    return f"{name_ranks(found.ranks)}{shared}"


def fix_of(rank: _Slow) -> str:
    """What to do about the cause."""
    if rank.detail.startswith(PAUSED_FOR):
        what = rank.detail.removeprefix(PAUSED_FOR)
        return (
            f"Take {what} out of the step: run it in the background or less often. If all ranks "
            "need it, run it on all of them in the same step."
        )
    if rank.detail == COLLECTIONS:
        return advice("garbage-collection-pauses")
    if rank.detail == MEMORY_CALLS:
        return advice("memory-calls")
    fix: str = words()["fix"].get(rank.detail) or words()["fix"][rank.cause]
    return fix


def sets_of_pattern(
    stragglers: StragglersResult, pattern: StragglerPattern, min_ratio: float
) -> list[StragglerSet]:
    """Return the sets of a pattern that cost at least ``min_ratio`` of the step each.

    Leave out ranks whose CPU is taken by other processes, because `cpu-contention` reports that
    cost, and ranks that are late only while they are traced.
    """
    return [
        one
        for one in stragglers.sets
        if one.pattern is pattern and one.share_of_step_ratio >= min_ratio and one.cause.is_own
    ]


OVERLOADED = 2.0
"""Load of an expert over the mean from which `overloaded-expert` reports it."""


def is_for_experts(found: StragglerSet, moe: MoeResult) -> bool:
    """Whether the extra work may be that of an overloaded expert, which has its own finding."""
    if found.cause is not StragglerCause.MORE_WORK:
        return False
    return any(layer.busiest_share_ratio * layer.num_experts >= OVERLOADED for layer in moe.layers)


def of_pattern(
    stragglers: StragglersResult,
    collectives: CollectivesResult,
    pattern: StragglerPattern,
    min_ratio: float,
) -> list[RankStraggler]:
    """Return the ranks of a pattern that together cost at least ``min_ratio`` of the step.

    The list is empty if nothing was communicated. It leaves out ranks whose cost another rule
    reports: ranks that sequences of different lengths make late in some steps
    (`sequence-length-imbalance`), ranks whose CPU is taken by other processes (`cpu-contention`),
    and ranks that are late only because of a slow link (`slow-link`). It also leaves out ranks that
    are late only while they are traced.

    Raises:
        InsufficientEvidenceError: If there were collectives but lateness could not be judged.
    """
    if not collectives.classes:
        return []
    if stragglers.num_judged == 0:
        if stragglers.sets:
            return []
        why = "; ".join(stragglers.unavailable) or "no collective was matched across ranks"
        raise InsufficientEvidenceError(why)
    in_sets = {rank for one in stragglers.sets for rank in one.ranks}
    transfers = [part for link in stragglers.links for part in link.transfers]
    on_slow_links = {rank for part in transfers for rank in part.ranks}
    found = [
        rank
        for rank in stragglers.ranks
        if rank.pattern is pattern
        and rank.rank not in in_sets
        and rank.cause.is_own
        and not (rank.cause is StragglerCause.UNKNOWN and rank.rank in on_slow_links)
    ]
    if pattern is not StragglerPattern.PERSISTENT and stragglers.sequences is not None:
        found = [rank for rank in found if rank.detail != "sequence_length"]
    return found if sum(rank.share_of_step_ratio for rank in found) >= min_ratio else []


@rule(
    "STR101",
    Severity.WARNING,
    min_step_ratio=Limit(0.015, "share of the step that waiting for the rank may take"),
    error_step_ratio=Limit(0.1, "share of the step from which it is an error"),
)
def persistent_straggler(
    stragglers: StragglersResult, collectives: CollectivesResult, moe: MoeResult, limits: Limits
) -> Iterator[Draft]:
    """The same rank (or few ranks) is last to arrive at the collectives of most steps, and the
    others wait for it.
    """
    pattern, least = StragglerPattern.PERSISTENT, limits["min_step_ratio"]
    sets = [
        one for one in sets_of_pattern(stragglers, pattern, least) if not is_for_experts(one, moe)
    ]
    found = of_pattern(stragglers, collectives, pattern, least)
    several: list[_Slow] = [*sets, *found]
    for one in several:
        share = one.share_of_step_ratio
        sure = one.cause is not StragglerCause.UNKNOWN and one.confidence >= 0.75
        yield _draft(
            one,
            *_who_waits(one),
            (*(("stragglers.sets",) if isinstance(one, StragglerSet) else ()), "stragglers.ranks"),
            confidence=Confidence.MEASURED if sure else Confidence.INFERRED,
            severity=Severity.ERROR if share >= limits["error_step_ratio"] else None,
        )


def _draft(
    found: _Slow,
    headline: str,
    message: str,
    evidence: tuple[str, ...],
    *,
    confidence: Confidence = Confidence.INFERRED,
    severity: Severity | None = None,
    steps: tuple[int, ...] = (),
    fix: str = "",
) -> Draft:
    """The finding on a slow rank or set, with its cause."""
    ranks, scenario = (
        (found.ranks, found.scenario)
        if isinstance(found, StragglerSet)
        else ((found.rank,), f"rank {found.rank}")
    )
    return Draft(
        headline=headline,
        message=f"{message} {because(found)}.",
        fix=fix or fix_of(found),
        cost_ns_per_step=found.lost_ns_per_step,
        confidence=confidence,
        ranks=ranks,
        steps=steps,
        evidence=evidence,
        without=scenario,
        severity=severity,
    )


def _who_waits(found: _Slow) -> tuple[str, str]:
    lost = format_duration(found.lost_ns_per_step)
    if isinstance(found, RankStraggler):
        return _holds_up(found), f"They wait {lost} of every step for it."
    each = "every step" if found.since_step is None else "the mean step"
    since = "" if found.since_step is None else f" from step {found.since_step} on"
    one = len(found.ranks) == 1
    if found.is_hidden:
        share = f"{format_ratio(found.share_of_step_ratio)} of each step"
        hidden = f"The others would wait {lost} of {each} for {_them(found)}{since}."
        return fitting(f"{who(found)} would be next: {share}", f"Next: {share}"), hidden
    whom = "it" if one and not found.name else "them" if not found.name else _them(found)
    return _holds_up(found), f"They wait {lost} of {each} for {whom}{since}."


def _holds_up(found: _Slow, how: str = "") -> str:
    """For example ``Rank 6 holds the others up: 33.6 % of each step``."""
    ranks = found.ranks if isinstance(found, StragglerSet) else (found.rank,)
    share = f"{format_ratio(found.share_of_step_ratio)} of each step"
    return f"{capitalized(few_ranks(ranks))} {verb(ranks, 'hold')} the others up{how}: {share}"


@rule(
    "STR102",
    Severity.WARNING,
    min_step_ratio=Limit(0.01, "share of the mean step that the stalls may take"),
)
def transient_straggler(
    stragglers: StragglersResult,
    collectives: CollectivesResult,
    step_time: StepTimeResult,
    limits: Limits,
) -> Iterator[Draft]:
    """One rank arrives far later than all others in a few steps, and is on time in the rest."""
    pattern, least = StragglerPattern.TRANSIENT, limits["min_step_ratio"]
    for one in sets_of_pattern(stragglers, pattern, least):
        text = f"They wait for {name_ranks(one.ranks)}{_how_long(one, one.steps)}."
        headline = _holds_up(one, " at times")
        yield _draft(one, headline, text, ("stragglers.sets", "stragglers.steps"), steps=one.steps)
    for rank in of_pattern(stragglers, collectives, pattern, least):
        # Steps in which the rank cost most, and more than its mean.
        steps = tuple(
            step.step
            for step in stragglers.steps
            if step_time.median_ns is not None
            and step.rank == rank.rank
            and step.rank_lost_ns >= max(rank.lost_ns_per_step, 1)
        )
        text = f"They wait for it{_how_long(rank, steps)}."
        headline = _holds_up(rank, " at times")
        yield _draft(rank, headline, text, ("stragglers.ranks", "stragglers.steps"), steps=steps)


def _how_long(rank: _Slow, steps: tuple[int, ...]) -> str:
    mean = format_duration(rank.lost_ns_per_step)
    if not steps:
        return f" for {mean} of the capture"
    plural = "s" if len(steps) > 1 else ""
    return f" in step{plural} {fold_ranks(steps)}: {mean} per step over all steps"


@rule(
    "STR103",
    Severity.WARNING,
    min_step_ratio=Limit(0.02, "share of the step that rotating stalls may take"),
)
def rotating_straggler(
    stragglers: StragglersResult, collectives: CollectivesResult, limits: Limits
) -> Iterator[Draft]:
    """In most steps one rank arrives far later than all others, and it is a different one each
    time.
    """
    pattern, least = StragglerPattern.ROTATING, limits["min_step_ratio"]
    for one in sets_of_pattern(stragglers, pattern, least):
        yield _draft(
            one,
            _holds_up(one, " in turn"),
            f"{who(one)} are slow alternately, each in different steps: the others wait "
            f"{format_duration(one.lost_ns_per_step)} of every step.",
            ("stragglers.sets", "stragglers.steps"),
            steps=one.steps,
            fix=advice("rotating-straggler", "each-alone"),
        )
    found = of_pattern(stragglers, collectives, pattern, least)
    if not found:
        return
    lost = sum(rank.lost_ns_per_step for rank in found)
    ratio = format_ratio(sum(rank.share_of_step_ratio for rank in found))
    ranks = tuple(sorted(rank.rank for rank in found))
    yield Draft(
        headline=(
            f"{capitalized(few_ranks(ranks))} hold the others up in turn: {ratio} of each step"
        ),
        message=(
            f"Ranks {fold_ranks(ranks)} alternately arrive far behind all others, which wait "
            f"{format_duration(lost)} of every step."
        ),
        fix=advice("rotating-straggler", "in-turn"),
        cost_ns_per_step=lost,
        confidence=Confidence.INFERRED,
        ranks=ranks,
        evidence=("stragglers.ranks", "stragglers.steps"),
        without="late ranks",
    )


@rule("STR114", Severity.WARNING, min_step_ratio=worth(0.02))
def unrecorded_straggler(
    stragglers: StragglersResult, times: StepTimes, capture: CaptureResult
) -> Iterator[Draft]:
    """Recorded ranks arrive late at collectives because they themselves waited in a collective with
    a rank that was not recorded. That rank, or the network to it, is slow.
    """
    cost = stragglers.unrecorded_ns_per_step
    step = times.mean_step_if_timed()
    if step is None:
        return
    yield Draft(
        headline=f"Ranks wait for some that were not recorded: {step.part(cost)}",
        message=(
            f"{step.amount(cost)} for {unrecorded(capture)}: late ranks had waited in a collective "
            "that lacks a member."
        ),
        cost_ns_per_step=cost,
        confidence=Confidence.INFERRED,
        ranks=capture.ranks_missing,
        evidence=("stragglers.unrecorded_ns_per_step",),
        explains=("COM103",),
        comes_first=True,
    )
