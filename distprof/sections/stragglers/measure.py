"""Which ranks made the others wait, how long per step, in which pattern, and why.

The last member of a collective is blamed, or the rank that had made it wait before (arrivals). Own
time shows sets of slow ranks (slowness), their causes and their price (sets). Traces do not show
which rank came last in sends and receives, but a rank whose CPU stalls idles instead of waiting.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec.structs import replace

from distprof.run.run import Run
from distprof.sections.context import ProbeRecords, RankAnalyses, RankAnalysis
from distprof.sections.idle.measure import HostPauses
from distprof.sections.own_time import COMPUTATION, HOST, OwnTime, held_stages, mean_step_of
from distprof.sections.settings import SettingsResult
from distprof.sections.stragglers import (
    MessageRank,
    MessagesResult,
    RankStraggler,
    StepBlame,
    StragglerSet,
    StragglersResult,
)
from distprof.sections.stragglers.arrivals import Blame, judge_arrivals
from distprof.sections.stragglers.causes import cannot_run_ahead, find_cause
from distprof.sections.stragglers.evidence import Cause, Late
from distprof.sections.stragglers.links import find_slow_links
from distprof.sections.stragglers.patterns import (
    Verdict,
    blame_of_pipelines,
    find_patterns,
    proven_by_own_time,
)
from distprof.sections.stragglers.sets import JobEvidence, find_sets
from distprof.sections.stragglers.slowness import EQUAL_DEVICES, find_slowness
from distprof.sections.stragglers.workload import (
    carried,
    find_sequence_imbalance,
    rank_attention_ns,
)
from distprof.sections.telemetry import TelemetryResult
from distprof.sections.time import StepTimeResult
from distprof.terms import StragglerCause, StragglerPattern

__all__ = ["analyze_messages", "analyze_stragglers", "rank_attention_ns"]
NO_MESSAGES = "no rank waits in sends and receives"


def analyze_messages(run: Run, analyses: RankAnalyses) -> MessagesResult:
    """Ranks that idle while others wait for messages."""
    own = OwnTime.of(analyses, held_stages(analyses, run))
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


# Ranks that others wait for in collectives --------------------------------------------------------


def analyze_stragglers(
    run: Run,
    analyses: RankAnalyses,
    step_time: StepTimeResult,
    records: ProbeRecords | None = None,
    telemetry: TelemetryResult | None = None,
    settings: SettingsResult | None = None,
) -> StragglersResult:
    """Blame, pattern and cause of all analysed ranks, most expensive first.

    A rank that is not worth naming has the pattern ``none``.
    """
    evidence = _evidence(run, analyses, records, telemetry, settings)
    own_time, numbers = evidence.own_time, evidence.step_numbers
    blame = judge_arrivals(run, analyses, len(numbers))
    held = [{*ranks} for ranks in run.topology.nodes.values()]
    slow = find_slowness(
        analyses,
        own_time,
        evidence.stages,
        evidence.mean_step,
        computes_unevenly=evidence.sequences is not None,
        nodes=[tuple(i for i, r in enumerate(own_time.ranks) if r in node) for node in held],
    )
    sets = find_sets(slow, blame, evidence)
    if blame.num_judged == 0 and not sets:
        return StragglersResult(
            ranks=(),
            steps=(),
            pattern=StragglerPattern.NONE,
            lost_ns_per_step=0,
            num_judged=0,
            num_below_residual=0,
            sequences=evidence.sequences,
            unavailable=(_why_nothing(run, analyses, blame),),
        )
    verdicts: dict[int, Verdict] = {}
    if not sets:
        blame, verdicts = _verdicts(blame, run, own_time, _typical_step(analyses, step_time))
    by_rank = {rank: one for one in reversed(sets) for rank in one.ranks}
    ranks = [
        _straggler(position, blame, verdicts.get(position), by_rank.get(rank), evidence)
        for position, rank in enumerate(blame.ranks)
    ]
    total, top = blame.lost_ns.sum(axis=0), blame.lost_ns.argmax(axis=0).tolist()
    patterns = {record.pattern for record in ranks}
    return StragglersResult(
        ranks=tuple(sorted(ranks, key=lambda record: (-record.lost_ns_per_step, record.rank))),
        steps=tuple(
            StepBlame(
                step=number,
                lost_ns=int(total[i]),
                rank=blame.ranks[top[i]] if total[i] > 0 else None,
                rank_lost_ns=int(blame.lost_ns[top[i], i]),
            )
            for i, number in enumerate(numbers)
        ),
        pattern=next((one for one in _LASTING_FIRST if one in patterns), StragglerPattern.NONE),
        lost_ns_per_step=sum(record.lost_ns_per_step for record in ranks),
        num_judged=blame.num_judged,
        num_below_residual=blame.num_below_residual,
        links=find_slow_links(run, analyses, analyses.wait_ends, evidence.mean_step),
        sequences=evidence.sequences,
        sets=sets,
        unrecorded_ns_per_step=blame.unrecorded_ns // max(len(numbers), 1),
        unavailable=_unavailable(blame),
    )


def _evidence(
    run: Run,
    analyses: RankAnalyses,
    records: ProbeRecords | None,
    telemetry: TelemetryResult | None,
    settings: SettingsResult | None,
) -> JobEvidence:
    """What may show why a rank is late."""
    pauses = records.of(HostPauses) if records is not None else {}
    stages = held_stages(analyses, run)
    own_time, mean_step = OwnTime.of(analyses, stages), mean_step_of(analyses)
    return JobEvidence(
        run=run,
        analyses=analyses,
        stages=stages,
        mean_step=mean_step,
        own_time=own_time,
        pauses=pauses,
        telemetry=telemetry,
        sequences=find_sequence_imbalance(analyses, own_time, pauses, mean_step),
        exchanged=_exchanged(run, analyses),
        even=_exchanged(run, analyses, both_ways=True),
        hidden={rank: gap.message for gap in run.gaps if gap.hides_cause for rank in gap.ranks},
        wait_ends=analyses.wait_ends,
        crowded=settings.crowded if settings else (),
    )


_LASTING_FIRST = (
    StragglerPattern.PERSISTENT,
    StragglerPattern.TRANSIENT,
    StragglerPattern.ROTATING,
)


def _exchanged(run: Run, analyses: RankAnalyses, *, both_ways: bool = False) -> dict[int, float]:
    """Amount that the all-to-alls of each rank carry: tokens from their splits, else bytes."""
    measured = (rank for rank in run.ranks if rank.rank in analyses)
    amounts = {one.rank: carried(one.collectives, both_ways=both_ways) for one in measured}
    return {rank: amount for rank, amount in amounts.items() if amount is not None}


def _straggler(
    position: int,
    blame: Blame,
    verdict: Verdict | None,
    own: StragglerSet | None,
    evidence: JobEvidence,
) -> RankStraggler:
    """A rank's record, from the verdict on its arrivals or the most expensive set that holds it."""
    rank, judged = blame.ranks[position], int(blame.judged[position])
    lost = float(blame.lost_ns[position].mean())
    plain = RankStraggler(
        rank=rank,
        lost_ns_per_step=int(lost),
        share_of_step_ratio=lost / evidence.mean_step,
        late_ratio=float(blame.late[position]) / judged if judged else None,
        pattern=StragglerPattern.NONE,
        cause=StragglerCause.UNKNOWN,
        confidence=0.0,
    )
    if own is not None:
        number = len(own.ranks)
        return replace(
            plain,
            lost_ns_per_step=max(plain.lost_ns_per_step, own.lost_ns_per_step // number),
            share_of_step_ratio=max(plain.share_of_step_ratio, own.share_of_step_ratio / number),
            **{name: getattr(own, name) for name in _OF_SET},
        )
    if verdict is None:
        return plain
    cause = _cause(position, blame, verdict, evidence)
    return replace(
        plain,
        pattern=verdict.pattern,
        cause=cause.cause,
        confidence=verdict.confidence * blame.confidence * evidence.trust([rank]),
        evidence=(*verdict.why, *cause.evidence, *blame.lacks),
        detail=cause.detail,
        cause_confidence=cause.confidence,
    )


_OF_SET = ("pattern", "cause", "confidence", "cause_confidence", "evidence", "detail")
"""What the record of a rank takes from its set."""


def _cause(position: int, blame: Blame, verdict: Verdict, evidence: JobEvidence) -> Cause:
    rank, steps = blame.ranks[position], list(verdict.steps)
    if rank in evidence.hidden:
        return Cause(StragglerCause.UNKNOWN, (evidence.hidden[rank],))
    if not steps:
        return Cause(StragglerCause.UNKNOWN)
    lost_ns = float(blame.lost_ns[position, steps].mean())
    at = evidence.own_time.ranks.index(rank)
    found = find_cause(Late(at, steps, lost_ns), evidence, verdict.part)
    if found.cause is not StragglerCause.UNKNOWN:
        return found
    return cannot_run_ahead(rank, evidence.leads) or found


def _verdicts(
    blame: Blame, run: Run, own_time: OwnTime, step_ns: float
) -> tuple[Blame, dict[int, Verdict]]:
    """Late ranks by position, and the blame that shows them: by pipeline if that proves it."""
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
    return 0 < computes == largest < EQUAL_DEVICES * step_ns


def _typical_step(analyses: Mapping[int, RankAnalysis], step_time: StepTimeResult) -> float:
    if step_time.median_ns:
        return float(step_time.median_ns)
    spans = [step.span_ns for analysis in analyses.values() for step in analysis.steps]
    return max(float(np.median(spans)) if spans else 1.0, 1.0)


def _unavailable(blame: Blame) -> tuple[str, ...]:
    lacks = [*blame.lacks]
    if blame.num_incomparable:
        lacks.append(
            f"{blame.num_incomparable} collectives join ranks whose clocks cannot be compared"
        )
    if blame.num_across_stages:
        lacks.append(
            f"{blame.num_across_stages} collectives join ranks of different pipeline stages and "
            "are not judged: stages wait for each other by design"
        )
    return tuple(lacks)


def _why_nothing(run: Run, analyses: Mapping[int, RankAnalysis], blame: Blame) -> str:
    if not analyses:
        return "no rank has a trace, which would show who waits for whom"
    if len(analyses) < 2:
        return "one rank alone cannot show who waits for whom"
    if blame.num_incomparable:
        return "the clocks of the ranks cannot be compared"
    if run.matches.count == 0:
        return "no collective could be matched across ranks"
    if blame.num_across_stages:
        return (
            "all matched collectives join ranks of different pipeline stages, which wait for each "
            "other by design"
        )
    return "no matched collective inside the analysed steps makes its members wait"
