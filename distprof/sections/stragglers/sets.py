"""Ranks that are slow for one reason: their cause, what they have in common, what they cost."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
from msgspec.structs import replace

from distprof.run.run import Run
from distprof.run.topology import ProcessGroup
from distprof.schema import Int64Array
from distprof.sections.stragglers import StragglerSet
from distprof.sections.stragglers.arrivals import Blame
from distprof.sections.stragglers.causes import find_cause, launch_leads
from distprof.sections.stragglers.computing import EXPERTS, SLOW_DEVICE_SHARE
from distprof.sections.stragglers.contention import cpu_taken, idles_for_a_cpu, only_traced
from distprof.sections.stragglers.evidence import Cause, Evidence, Late
from distprof.sections.stragglers.slowness import COUNTS, PACE, Slowness, own_part
from distprof.sections.stragglers.workload import elasticity
from distprof.terms import MeshAxis, StragglerCause, StragglerPattern
from distprof.units import fold_ranks

MOST_EXAMINED = 64
"""Most ranks of a set of slow ranks whose causes are examined."""

TRUST_IN_DAMAGED = 0.7
"""Factor on the confidence in a rank whose recording is damaged: below the confidence that counts
as measured."""

COUNTED = "it launches more kernels than its peers in these steps, regardless of their durations"


class JobEvidence(Evidence, frozen=True, kw_only=True, dict=True):
    """The evidence for causes, with what is known of the job as a whole."""

    run: Run
    stages: Mapping[int, tuple[int, ...]]  # Pipeline stages that each rank holds.
    even: Mapping[int, float]  # Mean of what each rank sends and receives in all-to-alls.
    hidden: Mapping[int, str]  # Why the cause of a rank cannot be known: its recording is damaged.
    wait_ends: Mapping[int, Int64Array]

    def trust(self, ranks: Iterable[int]) -> float:
        """Factor on the confidence in what is said of these ranks: below 1 if damage affects it."""
        named = {*ranks}
        doubtful = any(
            gap.fact and (not gap.ranks or named.intersection(gap.ranks)) for gap in self.run.gaps
        )
        return TRUST_IN_DAMAGED if doubtful else 1.0

    @cached_property
    def step_numbers(self) -> tuple[int, ...]:
        """Numbers of the analysed steps, from the rank with the most of them."""
        steps = (analysis.steps for analysis in self.analyses.values())
        return tuple(step.step for step in max(steps, key=len, default=()))

    @cached_property
    def leads(self) -> dict[int, float]:
        """How far each rank's CPU runs ahead, ns."""
        return launch_leads(self.run)

    @cached_property
    def elasticity(self) -> float:
        """How much longer an all-to-all takes whose busiest member carries more."""
        return elasticity(self.run, self.analyses, self.wait_ends)


def find_sets(
    slow: Sequence[Slowness], blame: Blame, evidence: JobEvidence
) -> tuple[StragglerSet, ...]:
    """Sets of ranks that are slow for one reason, most expensive first."""
    made = [one for each in slow for one in _sets(each, blame, evidence)]
    return _joined_by_pipelines(_once(made, evidence.hidden), evidence)


def _sets(slow: Slowness, blame: Blame, evidence: JobEvidence) -> Iterator[StragglerSet]:
    """The set, or two sets if some of its ranks are not to blame, such as for CPU contention."""
    # In a large set, only :data:`MOST_EXAMINED` ranks, spread evenly over it, are examined, because
    # each is compared with all others that are not slow.
    positions = slow.episode.positions
    examined = positions[:: -(-len(positions) // MOST_EXAMINED)]
    own_time = evidence.own_time.without(positions, examined)
    compared = replace(evidence, own_time=own_time)
    causes = {position: _cause_in(slow, position, compared) for position in examined}
    # If most of the ranks are not to blame, none is: the others show another cause by chance.
    excused = [at for at, cause in causes.items() if not cause.cause.is_own]
    if not excused or 2 * len(excused) > len(causes) or len(causes) < len(positions):
        yield _set(slow, list(causes.values()), blame, evidence)
        return
    for chosen in ([at for at in causes if at not in excused], excused):
        excess = np.zeros_like(slow.episode.excess_ns)
        excess[chosen] = slow.episode.excess_ns[chosen]
        episode = replace(slow.episode, excess_ns=excess)
        part = replace(slow, episode=episode, lost_ns=min(slow.lost_ns, episode.per_step_ns))
        yield _set(part, [causes[at] for at in chosen], blame, evidence)


def _set(
    slow: Slowness, causes: Sequence[Cause], blame: Blame, evidence: JobEvidence
) -> StragglerSet:
    episode, numbers = slow.episode, evidence.step_numbers
    ranks = tuple(evidence.own_time.ranks[position] for position in episode.positions)
    shares, name = _what_they_share(ranks, evidence)
    # The cause that most ranks show, with the evidence of the first of them.
    most, _ = Counter((one.cause, one.detail) for one in causes).most_common(1)[0]
    cause = next(one for one in causes if (one.cause, one.detail) == most)
    in_all = episode.pattern is StragglerPattern.PERSISTENT
    since = None if episode.since is None else numbers[episode.since]
    key = set_key(ranks, episode.pattern)
    # even tokens would also shorten the exchanges
    is_one = len(ranks) == 1 and not slow.is_alone and in_all and cause.detail != EXPERTS
    # For a single rank, collectives show best how long the others wait for it.
    waits_ns = blame.lost_ns[episode.positions[0]]
    blamed = float(waits_ns[episode.since :].sum() / len(waits_ns)) if is_one else 0.0
    if slow.part == COUNTS:  # times may be noisy, so it may also be last by chance
        blamed = min(blamed, episode.per_step_ns)
    lost_ns = max(slow.lost_ns, blamed)
    steps = tuple(numbers[step] for step in episode.steps)
    in_steps = f"{'steps' if len(steps) > 1 else 'step'} {fold_ranks(steps)}"
    if since is not None:
        how = f"slower from step {since} on"
    elif in_all:
        how = "slower than the other ranks by its own time, in most steps"
    else:
        how = f"slower than the other ranks in {in_steps}"
    late = (np.flatnonzero(episode.excess_ns[at] > 0).tolist() for at in episode.positions)
    return StragglerSet(
        ranks=ranks,
        shares=shares,
        name=name,
        pattern=episode.pattern,
        steps=() if in_all else steps,
        steps_by_rank=() if in_all else tuple(tuple(numbers[at] for at in own) for own in late),
        since_step=since,
        cause=cause.cause,
        detail=cause.detail,
        exchange_ratio=_exchange_ratio(ranks, evidence),
        is_hidden=slow.is_hidden,
        lost_ns_per_step=int(lost_ns),
        share_of_step_ratio=lost_ns / evidence.mean_step,
        confidence=min(0.99, 1 - episode.chance) * blame.confidence * evidence.trust(ranks),
        cause_confidence=cause.confidence,
        evidence=(how, *cause.evidence, *blame.lacks),
        scenario=f"rank {ranks[0]}" if is_one and since is None else key,
    )


def set_key(ranks: Collection[int], pattern: StragglerPattern) -> str:
    """Key of the simulation in which these ranks keep up."""
    what = "ranks in turn" if pattern is StragglerPattern.ROTATING else "ranks"
    return f"{what} {fold_ranks(sorted(ranks))}"


def _exchange_ratio(ranks: Sequence[int], evidence: JobEvidence) -> float | None:
    """How much longer exchanges take than even ones: their busiest of these ranks decides."""
    groups = [g.ranks for g in evidence.run.topology.groups if g.axis is MeshAxis.EP]
    ratios = []
    for rank in ranks:
        peers = frozenset[int]().union(*(held for held in groups if rank in held))
        even = [amount for peer, amount in evidence.even.items() if not peers or peer in peers]
        if rank in evidence.exchanged and sum(even) > 0:
            ratios.append(evidence.exchanged[rank] * len(even) / sum(even))
    return max(ratios) ** evidence.elasticity if ratios else None


def _once(sets: Sequence[StragglerSet], hidden: Mapping[int, str]) -> list[StragglerSet]:
    """The sets, with those that name the same ranks for the same cause merged."""
    # Larger inputs slow some kernels down more than others, so both pace and work show them. What
    # is missing from a damaged recording differs between steps, and so does the rank's own time: if
    # damage hides its cause, only its costliest set counts.
    merged: dict[tuple[object, ...], StragglerSet] = {}
    for one in sets:
        key = (one.ranks, one.pattern, one.steps, one.since_step, one.cause, one.detail)
        if (first := merged.get(key)) is None:
            merged[key] = one
            continue
        add = max if len(one.ranks) == 1 else sum  # each part holds the others' whole wait
        merged[key] = replace(
            first,
            lost_ns_per_step=add((first.lost_ns_per_step, one.lost_ns_per_step)),
            share_of_step_ratio=add((first.share_of_step_ratio, one.share_of_step_ratio)),
        )
    best: dict[tuple[int, ...], StragglerSet] = {}
    for one in merged.values():
        if hidden.keys() >= {*one.ranks}:
            known = best.get(one.ranks, one)
            best[one.ranks] = max(known, one, key=lambda each: each.lost_ns_per_step)
    return [one for one in merged.values() if best.get(one.ranks, one) is one]


# Causes -------------------------------------------------------------------------------------------


def _cause_in(slow: Slowness, position: int, evidence: JobEvidence) -> Cause:
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


# What ranks have in common ------------------------------------------------------------------------


def _what_they_share(ranks: Collection[int], evidence: JobEvidence) -> tuple[str, str]:
    """Kind and name of what all of these ranks have in common, and no others that were compared."""
    wanted, known = frozenset(ranks), frozenset(evidence.own_time.ranks)
    for kind, name, held in _in_common(evidence) if len(wanted) > 1 else ():
        if known.intersection(held) == wanted:
            return kind, name
    return "", ""


def _in_common(evidence: JobEvidence) -> Iterator[tuple[str, str, Collection[int]]]:
    """Kind and name of each node, stage, group and rail, and its ranks."""
    nodes, stages = evidence.run.topology.nodes, evidence.stages
    if len(nodes) > 1:
        yield from (("node", name, ranks) for name, ranks in nodes.items())
    for held in filter(None, dict.fromkeys(stages.values())):
        name = f"stage {', '.join(map(str, held))}"
        yield "stage", name, [rank for rank, own in stages.items() if own == held]
    for group in evidence.run.topology.groups:
        if group.ranks and group.axis is not MeshAxis.WORLD:
            yield "group", f"one {axis_of(group)} group", group.ranks
    # Ranks at the same place in every node often have a separate switch.
    if len(nodes) > 1 and len({len(ranks) for ranks in nodes.values()}) == 1:
        for place, rail in enumerate(zip(*map(sorted, nodes.values()), strict=True)):
            yield "rail", f"local rank {place} of each node: one rail", rail


def axis_of(group: ProcessGroup) -> str:
    """The group's mesh axis, else its description."""
    return group.axis.value if group.axis is not None else group.description


def _joined_by_pipelines(
    sets: Sequence[StragglerSet], evidence: JobEvidence
) -> tuple[StragglerSet, ...]:
    """The sets, joined if they have more work and together cover all ranks of some pipelines."""
    # The data of a replica passes through all stages of its pipeline. Ranks are compared stage by
    # stage, so larger data shows as one slow rank per stage. Fixing one of them leaves the others.
    present = frozenset(evidence.own_time.ranks)
    groups = evidence.run.topology.groups
    pipelines = [present.intersection(g.ranks) for g in groups if g.axis is MeshAxis.PP]
    similar: dict[tuple[object, ...], list[StragglerSet]] = defaultdict(list)
    for one in sets:
        key = (one.cause, one.pattern, one.steps, one.since_step)
        similar[key if one.cause is StragglerCause.MORE_WORK else (id(one),)].append(one)
    found: list[StragglerSet] = []
    for several in similar.values():
        slow = frozenset(rank for one in several for rank in one.ranks)
        covered = frozenset[int]().union(*(p for p in pipelines if len(p) > 1 and p <= slow))
        whole = [one for one in several if covered >= {*one.ranks}]
        found += [one for one in several if one not in whole]
        found += [_joint(whole, evidence)] if len(whole) > 1 else whole
    return tuple(sorted(found, key=lambda one: -one.lost_ns_per_step))


def _joint(sets: Sequence[StragglerSet], evidence: JobEvidence) -> StragglerSet:
    """One set of all ranks, as slow as the slowest: stages wait for each other at the same time."""
    slowest = max(sets, key=lambda one: one.lost_ns_per_step)
    ranks = tuple(sorted({rank for one in sets for rank in one.ranks}))
    shares, name = _what_they_share(ranks, evidence)
    steps = {
        rank: own for one in sets for rank, own in zip(one.ranks, one.steps_by_rank, strict=False)
    }
    return replace(
        slowest,
        ranks=ranks,
        shares=shares,
        name=name,
        steps_by_rank=tuple(steps[rank] for rank in ranks) if len(steps) == len(ranks) else (),
        confidence=min(one.confidence for one in sets),
        cause_confidence=min(one.cause_confidence for one in sets),
        scenario=set_key(ranks, slowest.pattern),
    )
