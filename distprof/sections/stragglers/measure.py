"""Who made the others wait, how long per step, in which pattern, and why.

Blame falls on the last member of a collective (:mod:`~distprof.sections.stragglers.arrivals`), or
on the rank that had made it wait before (:mod:`~distprof.sections.stragglers.inheritance`).
Patterns and their proof against chance are in :mod:`~distprof.sections.stragglers.patterns`,
causes in :mod:`~distprof.sections.stragglers.causes`.

Of sends and receives it is not known who came last. But a rank whose host stalls idles, and does
not wait, longer than its peers (:mod:`distprof.sections.own_time`), and the others wait for
messages meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import numpy as np
from msgspec.structs import replace

from distprof.run.run import Run
from distprof.sections.context import ProbeRecords, RankAnalyses, RankAnalysis
from distprof.sections.idle.measure import HostPauses
from distprof.sections.kernels.result import KernelsResult
from distprof.sections.own_time import COMPUTATION, HOST, OwnTime, held_stages
from distprof.sections.stragglers.arrivals import Blame, judge_arrivals
from distprof.sections.stragglers.causes import Cause, find_cause
from distprof.sections.stragglers.links import find_slow_links
from distprof.sections.stragglers.patterns import (
    Verdict,
    blame_of_pipelines,
    find_patterns,
    proven_by_own_time,
)
from distprof.sections.stragglers.result import (
    MessageRank,
    MessagesResult,
    RankStraggler,
    SequenceImbalance,
    StepBlame,
    StragglersResult,
)
from distprof.sections.stragglers.sequences import find_sequence_imbalance
from distprof.sections.telemetry.result import TelemetryResult
from distprof.sections.time.result import StepTimeResult
from distprof.terms import StragglerCause, StragglerPattern

__all__ = ["analyze_messages", "analyze_stragglers"]

NO_MESSAGES = "no rank waits in sends and receives"


def analyze_messages(analyses: RankAnalyses) -> MessagesResult:
    """Who idles while others wait for messages.

    Args:
        analyses: By global rank.

    Source:
        Formula sheet, "Measured from traces" (straggler).
    """
    own = OwnTime.of(analyses)
    spans = [step.span_ns for analysis in analyses.values() for step in analysis.steps]
    if not spans or not any(a.waterfall.exposed_p2p_wait_ns for a in analyses.values()):
        return MessagesResult(unavailable=(NO_MESSAGES,))
    excess, idle = own.excess[HOST], own.parts[HOST]
    chance = np.minimum(1.0, len(analyses) * own.chance(HOST))
    ranks = tuple(
        MessageRank(
            rank=analysis.rank,
            wait_ns_per_step=analysis.waterfall.exposed_p2p_wait_ns // max(len(analysis.steps), 1),
            idle_ns_per_step=int(idle[row].mean()),
            late_ns_per_step=max(0, int(excess[row].mean())),
            chance=float(chance[row]),
        )
        for row, analysis in enumerate(analyses.values())
    )
    return MessagesResult(ranks=ranks, step_ns=int(np.mean(spans)))


# Ranks that leave their device idle while others wait for their messages -------------------------

USUAL_SPREAD = 0.018
"""Share of the step by which equal devices differ in what they compute."""


class _Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What may tell why a rank is late."""

    analyses: Mapping[int, RankAnalysis]
    kernels: KernelsResult
    own_time: OwnTime
    pauses: Mapping[int, HostPauses]
    telemetry: TelemetryResult
    sequences: SequenceImbalance | None


def analyze_stragglers(
    run: Run,
    analyses: RankAnalyses,
    step_time: StepTimeResult,
    kernels: KernelsResult,
    records: ProbeRecords | None = None,
    telemetry: TelemetryResult | None = None,
) -> StragglersResult:
    """Blame, pattern and cause per rank.

    Args:
        run: The recording, with matches and clock alignment.
        analyses: Per-rank analyses by rank.
        step_time: For the typical step; without steps the capture stands for it.
        kernels: For telling a slow device from more work.
        records: What probes recorded of each rank's training thread, None without probes.
        telemetry: Sensors of the devices, for why one is slow.

    Returns:
        All analysed ranks, most expensive first. A rank not worth naming has pattern ``none``.
    """
    pauses = records.of(HostPauses) if records is not None else {}
    step_numbers = _step_numbers(analyses)
    blame = judge_arrivals(run, analyses, len(step_numbers))
    own_time = OwnTime.of(analyses, held_stages(analyses, run))
    mean_step = _mean_step(analyses)
    sequences = find_sequence_imbalance(analyses, own_time, pauses, mean_step)
    if blame.num_judged == 0:
        return replace(_nobody(_why_nothing(run, analyses, blame)), sequences=sequences)
    known = _Evidence(
        analyses=analyses,
        kernels=kernels,
        own_time=own_time,
        pauses=pauses,
        telemetry=telemetry or TelemetryResult(),
        sequences=sequences,
    )
    blame, verdicts = _verdicts(blame, run, own_time, _typical_step(analyses, step_time))
    ranks = [
        _straggler(position, blame, verdicts.get(position), known)
        for position in range(len(blame.ranks))
    ]
    return StragglersResult(
        ranks=tuple(sorted(ranks, key=lambda record: (-record.lost_ns_per_step, record.rank))),
        steps=_step_blame(blame, step_numbers),
        pattern=_overall(verdicts.values()),
        lost_ns_per_step=sum(record.lost_ns_per_step for record in ranks),
        num_judged=blame.num_judged,
        num_below_residual=blame.num_below_residual,
        links=find_slow_links(run, analyses, analyses.wait_ends, mean_step),
        sequences=sequences,
        unavailable=_unavailable(blame),
    )


def _verdicts(
    blame: Blame, run: Run, own_time: OwnTime, step_ns: float
) -> tuple[Blame, dict[int, Verdict]]:
    """Who is late by position, and the blame that says so: by pipelines where they prove it."""
    together = blame_of_pipelines(blame, own_time, run)
    found: tuple[Verdict, ...] = ()
    if together is not None:
        found = proven_by_own_time(together, step_ns, own_time)
        blame = together if found else blame
    return blame, {
        verdict.position: verdict
        for verdict in found or find_patterns(blame, step_ns, own_time)
        if not _is_usual(verdict, own_time, step_ns)
    }


def _is_usual(verdict: Verdict, own_time: OwnTime, step_ns: float) -> bool:
    """Whether the rank only computes a little longer than its peers, as equal devices do."""
    if verdict.pattern is not StragglerPattern.PERSISTENT or verdict.part not in ("", COMPUTATION):
        return False
    steps = list(verdict.steps)
    more = {part: own_time.excess[part][verdict.position, steps] for part in own_time.parts}
    computes = float(more[COMPUTATION].mean()) if steps else 0.0
    largest = max(float(excess.mean()) for excess in more.values()) if steps else 0.0
    return 0 < computes == largest < USUAL_SPREAD * step_ns


def _step_numbers(analyses: Mapping[int, RankAnalysis]) -> tuple[int, ...]:
    """Numbers of the analysed steps, as the rank with most of them has them."""
    longest = max(analyses.values(), key=lambda analysis: len(analysis.steps), default=None)
    return tuple(step.step for step in longest.steps) if longest else ()


def _typical_step(analyses: Mapping[int, RankAnalysis], step_time: StepTimeResult) -> float:
    if step_time.median_ns:
        return float(step_time.median_ns)
    spans = [step.span_ns for analysis in analyses.values() for step in analysis.steps]
    return max(float(np.median(spans)) if spans else 1.0, 1.0)


def _mean_step(analyses: Mapping[int, RankAnalysis]) -> float:
    """What all shares of a report are shares of."""
    spans = [step.span_ns for analysis in analyses.values() for step in analysis.steps]
    return max(sum(spans) / len(spans) if spans else 1.0, 1.0)


def _straggler(
    position: int,
    blame: Blame,
    verdict: Verdict | None,
    known: _Evidence,
) -> RankStraggler:
    lost = blame.lost_ns[position]
    judged = int(blame.judged[position])
    completeness = 1 - blame.num_incomplete / blame.num_judged
    cause = _cause(position, blame, verdict, known)
    evidence = () if verdict is None else (*verdict.why, *cause.evidence, *_lack(blame))
    return RankStraggler(
        rank=blame.ranks[position],
        lost_ns_per_step=int(lost.mean()),
        share_of_step_ratio=float(lost.mean()) / _mean_step(known.analyses),
        late_ratio=float(blame.late[position]) / judged if judged else None,
        pattern=StragglerPattern.NONE if verdict is None else verdict.pattern,
        cause=cause.cause,
        # A missing member may be the true last one, so what is incomplete counts half.
        confidence=0.0 if verdict is None else verdict.confidence * (0.5 + 0.5 * completeness),
        evidence=evidence,
        detail=cause.detail,
    )


def _cause(
    position: int,
    blame: Blame,
    verdict: Verdict | None,
    known: _Evidence,
) -> Cause:
    if verdict is None or not verdict.steps:
        return Cause(StragglerCause.UNKNOWN)
    steps = list(verdict.steps)
    lateness = float(blame.lost_ns[position, steps].mean())
    return find_cause(
        blame.ranks[position],
        steps,
        lateness,
        known.analyses,
        known.kernels,
        known.own_time,
        known.pauses,
        verdict.part,
        known.telemetry,
        known.sequences,
    )


def _lack(blame: Blame) -> tuple[str, ...]:
    if blame.num_incomplete == 0:
        return ()
    return (
        f"{blame.num_incomplete} of {blame.num_judged} collectives lack a member in this capture: "
        "a rank that is not recorded may have been later still",
    )


def _step_blame(blame: Blame, step_numbers: tuple[int, ...]) -> tuple[StepBlame, ...]:
    total, top = blame.lost_ns.sum(axis=0), blame.lost_ns.argmax(axis=0)
    return tuple(
        StepBlame(
            step=number,
            lost_ns=int(total[i]),
            rank=blame.ranks[int(top[i])] if total[i] > 0 else None,
            rank_lost_ns=int(blame.lost_ns[top[i], i]),
        )
        for i, number in enumerate(step_numbers)
    )


def _overall(verdicts: Iterable[Verdict]) -> StragglerPattern:
    """The run's pattern: the most lasting one that any rank shows."""
    found = {verdict.pattern for verdict in verdicts}
    order = (StragglerPattern.PERSISTENT, StragglerPattern.TRANSIENT, StragglerPattern.ROTATING)
    return next((pattern for pattern in order if pattern in found), StragglerPattern.NONE)


def _unavailable(blame: Blame) -> tuple[str, ...]:
    lacks = list(_lack(blame))
    if blame.num_incomparable:
        lacks.append(
            f"{blame.num_incomparable} collectives join ranks whose clocks cannot be compared"
        )
    if blame.num_across_stages:
        lacks.append(
            f"{blame.num_across_stages} collectives join ranks of unlike pipeline stages and blame "
            "no rank: stages wait for each other by design"
        )
    return tuple(lacks)


def _why_nothing(run: Run, analyses: Mapping[int, RankAnalysis], blame: Blame) -> str:
    if len(analyses) < 2:
        return "one rank alone cannot show who waits for whom"
    if blame.num_incomparable:
        return "the clocks of the ranks cannot be compared"
    if run.matches.count == 0:
        return "no collective could be matched across ranks"
    if blame.num_across_stages:
        return (
            "all matched collectives join ranks of unlike pipeline stages, which wait for each "
            "other by design"
        )
    return "no matched collective inside the analysed steps makes its members wait"


def _nobody(why: str) -> StragglersResult:
    return StragglersResult(
        ranks=(),
        steps=(),
        pattern=StragglerPattern.NONE,
        lost_ns_per_step=0,
        num_judged=0,
        num_below_residual=0,
        unavailable=(why,),
    )
