"""Which ranks made the others wait, how long per step, in which pattern, and why.

The last member of a collective is blamed (:mod:`~distprof.sections.stragglers.arrivals`), or the
rank that had made it wait before (:mod:`~distprof.sections.stragglers.inheritance`). Patterns and
their tests against chance are in :mod:`~distprof.sections.stragglers.patterns`, causes in
:mod:`~distprof.sections.stragglers.causes`.

Traces do not show which rank came last in sends and receives. But a rank whose CPU stalls idles
longer than its peers, instead of waiting (:mod:`distprof.sections.own_time`), while the others wait
for its messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
from msgspec.structs import replace

from distprof.run.run import Run
from distprof.schema import Int64Array
from distprof.sections.context import ProbeRecords, RankAnalyses, RankAnalysis
from distprof.sections.idle.measure import HostPauses
from distprof.sections.own_time import COMPUTATION, HOST, OwnTime, held_stages, mean_step_of
from distprof.sections.settings.result import SettingsResult
from distprof.sections.stragglers.arrivals import Blame, judge_arrivals
from distprof.sections.stragglers.causes import (
    Cause,
    Evidence,
    Late,
    cpu_taken,
    find_cause,
    idles_for_a_cpu,
    only_traced,
)
from distprof.sections.stragglers.computing import EXPERTS
from distprof.sections.stragglers.episodes import Episode
from distprof.sections.stragglers.exchanged import carried, elasticity
from distprof.sections.stragglers.leads import cannot_run_ahead, launch_leads
from distprof.sections.stragglers.links import find_slow_links
from distprof.sections.stragglers.pace import SLOW_DEVICE_SHARE
from distprof.sections.stragglers.patterns import (
    Verdict,
    blame_of_pipelines,
    find_patterns,
    proven_by_own_time,
)
from distprof.sections.stragglers.replicas import joined_by_pipelines
from distprof.sections.stragglers.result import (
    MessageRank,
    MessagesResult,
    RankStraggler,
    StepBlame,
    StragglerSet,
    StragglersResult,
)
from distprof.sections.stragglers.sequences import find_sequence_imbalance, rank_attention_ns
from distprof.sections.stragglers.sharing import set_key, what_they_share
from distprof.sections.stragglers.slowness import (
    COUNTS,
    EQUAL_DEVICES,
    PACE,
    Slowness,
    find_slowness,
    own_part,
)
from distprof.sections.telemetry.result import TelemetryResult
from distprof.sections.time.result import StepTimeResult
from distprof.terms import MeshAxis, StragglerCause, StragglerPattern
from distprof.units import fold_ranks

__all__ = [
    "analyze_messages",
    "analyze_stragglers",
    "rank_attention_ns",
]

MOST_EXAMINED = 64
"""Most ranks of a set of slow ranks whose causes are examined."""

NO_MESSAGES = "no rank waits in sends and receives"

TRUST_IN_DAMAGED = 0.7
"""Factor on the confidence in a rank whose recording is damaged: below the confidence that counts
as measured."""


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


class _Evidence(Evidence, frozen=True, kw_only=True, dict=True):
    """The evidence for causes, with the run, its stages and the mean of what ranks exchange.

    ``hidden`` says why the cause of a rank cannot be known, if its recording is damaged.
    """

    run: Run
    stages: Mapping[int, tuple[int, ...]]
    even: Mapping[int, float]
    hidden: Mapping[int, str]
    wait_ends: Mapping[int, Int64Array]

    def trust(self, ranks: Iterable[int]) -> float:
        """Factor on the confidence in what is said of these ranks: below 1 if damage affects it."""
        named = {*ranks}
        doubtful = any(
            gap.fact and (not gap.ranks or named.intersection(gap.ranks)) for gap in self.run.gaps
        )
        return TRUST_IN_DAMAGED if doubtful else 1.0

    @cached_property
    def leads(self) -> dict[int, float]:
        """How far each rank's CPU runs ahead, ns."""
        return launch_leads(self.run)

    @cached_property
    def elasticity(self) -> float:
        """How much longer an all-to-all takes whose busiest member carries more."""
        return elasticity(self.run, self.analyses, self.wait_ends)


def analyze_stragglers(
    run: Run,
    analyses: RankAnalyses,
    step_time: StepTimeResult,
    records: ProbeRecords | None = None,
    telemetry: TelemetryResult | None = None,
    settings: SettingsResult | None = None,
) -> StragglersResult:
    """Blame, pattern and cause per rank.

    Args:
        run: The recording, with matches and clock alignment.
        analyses: Per-rank analyses by rank.
        step_time: The typical step; without steps, the whole capture counts as one.
        records: Probe records of each rank's training thread, None without probes.
        telemetry: GPU sensors, which may show why a GPU is slow.
        settings: Ranks that share busy CPUs.

    Returns:
        All analysed ranks, most expensive first. A rank not worth naming has pattern ``none``.
    """
    pauses = records.of(HostPauses) if records is not None else {}
    step_numbers = _step_numbers(analyses)
    blame = judge_arrivals(run, analyses, len(step_numbers))
    stages = held_stages(analyses, run)
    own_time = OwnTime.of(analyses, stages)
    mean_step = mean_step_of(analyses)
    sequences = find_sequence_imbalance(analyses, own_time, pauses, mean_step)
    evidence = _Evidence(
        run=run,
        analyses=analyses,
        stages=stages,
        mean_step=mean_step,
        own_time=own_time,
        pauses=pauses,
        telemetry=telemetry,
        sequences=sequences,
        exchanged=_exchanged(run, analyses),
        even=_exchanged(run, analyses, both_ways=True),
        hidden={rank: gap.message for gap in run.gaps if gap.hides_cause for rank in gap.ranks},
        wait_ends=analyses.wait_ends,
        crowded=settings.crowded if settings else (),
    )
    slow = find_slowness(
        analyses,
        own_time,
        stages,
        mean_step,
        computes_unevenly=sequences is not None,
        nodes=_positions_of_nodes(run, own_time.ranks),
    )
    sets = joined_by_pipelines(
        _once(_merged([made for one in slow for made in _sets(one, blame, evidence)]), evidence),
        run,
        own_time.ranks,
        stages,
    )
    if blame.num_judged == 0 and not sets:
        return replace(_no_stragglers(_why_nothing(run, analyses, blame)), sequences=sequences)
    verdicts: dict[int, Verdict] = {}
    if not sets:
        blame, verdicts = _verdicts(blame, run, own_time, _typical_step(analyses, step_time))
    by_rank = {rank: one for one in reversed(sets) for rank in one.ranks}
    ranks = [
        _of_set(position, blame, by_rank, evidence)
        if sets
        else _straggler(position, blame, verdicts.get(position), evidence)
        for position in range(len(blame.ranks))
    ]
    return StragglersResult(
        ranks=tuple(sorted(ranks, key=lambda record: (-record.lost_ns_per_step, record.rank))),
        steps=_step_blame(blame, step_numbers),
        pattern=_overall({record.pattern for record in ranks}),
        lost_ns_per_step=sum(record.lost_ns_per_step for record in ranks),
        num_judged=blame.num_judged,
        num_below_residual=blame.num_below_residual,
        links=find_slow_links(run, analyses, analyses.wait_ends, mean_step),
        sequences=sequences,
        sets=sets,
        unrecorded_ns_per_step=blame.unrecorded_ns // max(len(step_numbers), 1),
        unavailable=_unavailable(blame),
    )


def _positions_of_nodes(run: Run, ranks: Sequence[int]) -> list[tuple[int, ...]]:
    """Positions of the ranks of each node among these ranks."""
    nodes = [{*held} for held in run.topology.nodes.values()]
    return [tuple(at for at, rank in enumerate(ranks) if rank in held) for held in nodes]


def _exchanged(
    run: Run, analyses: Mapping[int, RankAnalysis], *, both_ways: bool = False
) -> dict[int, float]:
    """Amount that the all-to-alls of each rank carry: tokens from their splits, else bytes."""
    amounts = {
        rank.rank: carried(rank.collectives, both_ways=both_ways)
        for rank in run.ranks
        if rank.rank in analyses
    }
    return {rank: amount for rank, amount in amounts.items() if amount is not None}


# Sets of ranks that are slow for one reason -------------------------------------------------------


def _sets(slow: Slowness, blame: Blame, evidence: _Evidence) -> Iterator[StragglerSet]:
    """The set, or two sets if some of its ranks are not to blame, such as for CPU contention.

    If most of the ranks are not to blame, none is: the others show another cause by chance.
    """
    causes = _causes_of(slow, evidence)
    excused = [at for at, cause in causes.items() if not cause.cause.is_own]
    are_all_examined = len(causes) == len(slow.episode.positions)
    if not excused or 2 * len(excused) > len(causes) or not are_all_examined:
        yield _set(slow, _most_common(causes.values()), blame, evidence)
        return
    blamed = [at for at in causes if at not in excused]
    for positions in (blamed, excused):
        part = _part_of(slow, positions)
        yield _set(part, _most_common([causes[at] for at in positions]), blame, evidence)


def _part_of(slow: Slowness, positions: Sequence[int]) -> Slowness:
    """The part of the slowness that belongs to these ranks."""
    excess = np.zeros_like(slow.episode.excess_ns)
    excess[list(positions)] = slow.episode.excess_ns[list(positions)]
    episode = replace(slow.episode, excess_ns=excess)
    return replace(slow, episode=episode, lost_ns=min(slow.lost_ns, episode.per_step_ns))


def _set(slow: Slowness, cause: Cause, blame: Blame, evidence: _Evidence) -> StragglerSet:
    step_numbers = _step_numbers(evidence.analyses)
    episode, own_time = slow.episode, evidence.own_time
    ranks = tuple(own_time.ranks[position] for position in episode.positions)
    shared = what_they_share(evidence.run, ranks, own_time.ranks, evidence.stages)
    in_all = episode.pattern is StragglerPattern.PERSISTENT
    since = None if episode.since is None else step_numbers[episode.since]
    alone = len(ranks) == 1 and not slow.is_alone and in_all and since is None
    alone = alone and cause.detail != EXPERTS  # even tokens would also shorten the exchanges
    # For a single rank, collectives show best how long the others wait for it.
    blamed = float(blame.lost_ns[episode.positions[0]].mean()) if alone else 0.0
    if slow.part == COUNTS:  # times may be noisy, so it may also be last by chance
        blamed = min(blamed, episode.per_step_ns)
    lost_ns = max(slow.lost_ns, blamed)
    return StragglerSet(
        ranks=ranks,
        shares=shared.kind,
        name=shared.name,
        pattern=episode.pattern,
        steps=() if in_all else tuple(step_numbers[step] for step in episode.steps),
        steps_by_rank=() if in_all else _steps_by_rank(episode, step_numbers),
        since_step=since,
        cause=cause.cause,
        detail=cause.detail,
        exchange_ratio=_exchange_ratio(ranks, evidence),
        is_hidden=slow.is_hidden,
        lost_ns_per_step=int(lost_ns),
        share_of_step_ratio=lost_ns / evidence.mean_step,
        confidence=min(0.99, 1 - episode.chance) * _seen(blame) * evidence.trust(ranks),
        cause_confidence=cause.confidence,
        evidence=(*_evidence_of(slow, step_numbers, since), *cause.evidence, *_lack(blame)),
        scenario=f"rank {ranks[0]}" if alone else set_key(ranks, episode.pattern),
    )


def _merged(sets: Sequence[StragglerSet]) -> tuple[StragglerSet, ...]:
    """The sets, with those that name the same ranks for the same cause merged.

    Larger inputs slow some kernels down more than others, so both pace and work show them.
    """
    merged: dict[tuple[object, ...], StragglerSet] = {}
    for one in sets:
        key = (one.ranks, one.pattern, one.steps, one.since_step, one.cause, one.detail)
        first = merged.get(key)
        merged[key] = one if first is None else _sum(first, one)
    return tuple(merged.values())


def _once(sets: Sequence[StragglerSet], evidence: _Evidence) -> tuple[StragglerSet, ...]:
    """The sets, but only the costliest one of a rank whose cause damage hides.

    What is missing from its recording differs between steps, and so does its own time.
    """
    first: dict[tuple[int, ...], StragglerSet] = {}
    for one in sets:
        if evidence.hidden.keys() >= {*one.ranks}:
            known = first.setdefault(one.ranks, one)
            if one.lost_ns_per_step > known.lost_ns_per_step:
                first[one.ranks] = one
    return tuple(one for one in sets if first.get(one.ranks, one) is one)


def _sum(first: StragglerSet, other: StragglerSet) -> StragglerSet:
    """The first set with the cost of both; for one rank, each part holds the others' whole wait."""
    add = max if len(first.ranks) == 1 else sum
    return replace(
        first,
        lost_ns_per_step=add((first.lost_ns_per_step, other.lost_ns_per_step)),
        share_of_step_ratio=add((first.share_of_step_ratio, other.share_of_step_ratio)),
    )


def _exchange_ratio(ranks: Sequence[int], evidence: _Evidence) -> float | None:
    """How much longer exchanges take than even ones: their busiest of these ranks decides."""
    ratios = []
    for rank in ranks:
        peers = _exchanges_with(rank, evidence.run) or evidence.even.keys()
        even = [evidence.even[peer] for peer in evidence.even if peer in peers]
        if rank in evidence.exchanged and sum(even) > 0:
            ratios.append(evidence.exchanged[rank] * len(even) / sum(even))
    return max(ratios) ** evidence.elasticity if ratios else None


def _exchanges_with(rank: int, run: Run) -> frozenset[int]:
    """Members of the rank's expert-parallel groups; empty if none is known."""
    groups = [g.ranks for g in run.topology.groups if g.axis is MeshAxis.EP and rank in g.ranks]
    return frozenset().union(*groups)


def _steps_by_rank(episode: Episode, step_numbers: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    return tuple(
        tuple(
            step_numbers[step] for step in np.flatnonzero(episode.excess_ns[position] > 0).tolist()
        )
        for position in episode.positions
    )


def _evidence_of(slow: Slowness, step_numbers: Sequence[int], since: int | None) -> tuple[str, ...]:
    steps = slow.episode.steps
    if since is not None:
        return (f"slower from step {since} on",)
    if slow.episode.pattern is StragglerPattern.PERSISTENT:
        return ("slower than the other ranks by its own time, in most steps",)
    numbers = fold_ranks([step_numbers[step] for step in steps])
    return (f"slower than the other ranks in step{'s' if len(steps) > 1 else ''} {numbers}",)


def _causes_of(slow: Slowness, evidence: _Evidence) -> dict[int, Cause]:
    """Cause of each slow rank by position, from a comparison with ranks that are not slow.

    In a large set, only :data:`MOST_EXAMINED` ranks, spread evenly over it, are examined, because
    each is compared with all others.
    """
    positions = slow.episode.positions
    examined = positions[:: -(-len(positions) // MOST_EXAMINED)]
    own_time = evidence.own_time.without(positions, examined)
    compared = replace(evidence, own_time=own_time)
    return {position: _cause_in(slow, position, compared) for position in examined}


def _most_common(causes: Iterable[Cause]) -> Cause:
    """The cause that most ranks show, with the evidence of the first of them."""
    all_causes = list(causes)
    order = Counter((cause.cause, cause.detail) for cause in all_causes)
    most = order.most_common(1)[0][0]
    return next(cause for cause in all_causes if (cause.cause, cause.detail) == most)


def _cause_in(slow: Slowness, position: int, evidence: _Evidence) -> Cause:
    excess = slow.episode.excess_ns[position]
    steps = np.flatnonzero(excess > 0).tolist()
    late = Late(position, steps, float(excess[steps].mean()))
    if (damaged := evidence.hidden.get(evidence.own_time.ranks[position])) is not None:
        return Cause(StragglerCause.UNKNOWN, (damaged,))
    if slow.is_alone and slow.part == PACE:
        excused = cpu_taken(late, evidence) or only_traced(late, evidence)
        if excused is not None:
            return excused
        text = "it runs the same kernels slower than ranks of other stages"
        return Cause(StragglerCause.SLOW_DEVICE, (text,), confidence=SLOW_DEVICE_SHARE)
    found = find_cause(late, evidence, own_part(slow.part))
    if slow.is_alone and found.cause is StragglerCause.LATE_HOST:
        return idles_for_a_cpu(late, evidence) or found
    if slow.part == COUNTS and found.cause is not StragglerCause.MORE_WORK:
        return Cause(StragglerCause.MORE_WORK, (COUNTED,), confidence=0.95)
    return found


COUNTED = "it launches more kernels than its peers in these steps, regardless of their durations"


def _of_set(
    position: int, blame: Blame, sets: Mapping[int, StragglerSet], evidence: _Evidence
) -> RankStraggler:
    """A rank's record if there are sets of slow ranks: from the first set that contains it."""
    own = sets.get(blame.ranks[position])
    plain = _straggler(position, blame, None, evidence)
    if own is None:
        return plain
    return replace(
        plain,
        lost_ns_per_step=max(plain.lost_ns_per_step, own.lost_ns_per_step // len(own.ranks)),
        share_of_step_ratio=max(
            plain.share_of_step_ratio, own.share_of_step_ratio / len(own.ranks)
        ),
        pattern=own.pattern,
        cause=own.cause,
        confidence=own.confidence,
        cause_confidence=own.cause_confidence,
        evidence=own.evidence,
        detail=own.detail,
    )


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


def _step_numbers(analyses: Mapping[int, RankAnalysis]) -> tuple[int, ...]:
    """Numbers of the analysed steps, from the rank with the most of them."""
    longest = max(analyses.values(), key=lambda analysis: len(analysis.steps), default=None)
    return tuple(step.step for step in longest.steps) if longest else ()


def _typical_step(analyses: Mapping[int, RankAnalysis], step_time: StepTimeResult) -> float:
    if step_time.median_ns:
        return float(step_time.median_ns)
    spans = [step.span_ns for analysis in analyses.values() for step in analysis.steps]
    return max(float(np.median(spans)) if spans else 1.0, 1.0)


def _straggler(
    position: int,
    blame: Blame,
    verdict: Verdict | None,
    evidence: _Evidence,
) -> RankStraggler:
    lost = blame.lost_ns[position]
    judged = int(blame.judged[position])
    cause = _cause(position, blame, verdict, evidence)
    rank = blame.ranks[position]
    if verdict is not None and rank in evidence.hidden:
        cause = Cause(StragglerCause.UNKNOWN, (evidence.hidden[rank],))
    sentences = () if verdict is None else (*verdict.why, *cause.evidence, *_lack(blame))
    return RankStraggler(
        rank=rank,
        lost_ns_per_step=int(lost.mean()),
        share_of_step_ratio=float(lost.mean()) / evidence.mean_step,
        late_ratio=float(blame.late[position]) / judged if judged else None,
        pattern=StragglerPattern.NONE if verdict is None else verdict.pattern,
        cause=cause.cause,
        confidence=(
            0.0 if verdict is None else verdict.confidence * _seen(blame) * evidence.trust([rank])
        ),
        evidence=sentences,
        detail=cause.detail,
        cause_confidence=cause.confidence if verdict is not None else 0.0,
    )


def _seen(blame: Blame) -> float:
    """Factor on confidence. Incomplete collectives count half: a missing member may be the last."""
    return 1 - 0.5 * blame.num_incomplete / max(blame.num_judged, 1)


def _cause(
    position: int,
    blame: Blame,
    verdict: Verdict | None,
    evidence: _Evidence,
) -> Cause:
    if verdict is None or not verdict.steps:
        return Cause(StragglerCause.UNKNOWN)
    steps = list(verdict.steps)
    lost_ns = float(blame.lost_ns[position, steps].mean())
    at = evidence.own_time.ranks.index(blame.ranks[position])
    found = find_cause(Late(at, steps, lost_ns), evidence, verdict.part)
    if found.cause is not StragglerCause.UNKNOWN:
        return found
    return cannot_run_ahead(blame.ranks[position], evidence.leads) or found


def _lack(blame: Blame) -> tuple[str, ...]:
    if blame.num_incomplete == 0:
        return ()
    return (
        f"{blame.num_incomplete} of {blame.num_judged} collectives lack a member in this capture: "
        "an unrecorded rank may have been even later",
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


def _overall(found: Collection[StragglerPattern]) -> StragglerPattern:
    """The run's pattern: the most persistent one that any rank shows."""
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


def _no_stragglers(why: str) -> StragglersResult:
    return StragglersResult(
        ranks=(),
        steps=(),
        pattern=StragglerPattern.NONE,
        lost_ns_per_step=0,
        num_judged=0,
        num_below_residual=0,
        unavailable=(why,),
    )
