"""Pipelines in which every stage works longer than its copies: one replica with more work.

The data of a replica passes through all stages of its pipeline. Ranks are compared stage by stage,
so larger data shows as one slow rank per stage. Fixing one of them leaves the others, so they are
one set.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from distprof.run.run import Run
from distprof.sections.stragglers.result import StragglerSet
from distprof.sections.stragglers.sharing import set_key, what_they_share
from distprof.terms import MeshAxis, StragglerCause


def joined_by_pipelines(
    sets: Sequence[StragglerSet],
    run: Run,
    present: Sequence[int],
    stages: Mapping[int, tuple[int, ...]],
) -> tuple[StragglerSet, ...]:
    """The sets, joined if they have more work and together cover all ranks of some pipelines.

    Args:
        sets: Ranks that are slow for one reason.
        run: The recording, for its pipelines.
        present: Ranks that were compared.
        stages: Pipeline stages that each rank holds; empty tuples if none are known.

    Returns:
        The sets, most expensive first.
    """
    similar: dict[tuple[object, ...], list[StragglerSet]] = defaultdict(list)
    for one in sets:
        key = (one.cause, one.pattern, one.steps, one.since_step)
        similar[key if one.cause is StragglerCause.MORE_WORK else (id(one),)].append(one)
    pipelines = tuple(_pipelines(run, frozenset(present)))
    found: list[StragglerSet] = []
    for several in similar.values():
        whole, rest = _whole(several, pipelines)
        found += rest
        if len(whole) > 1:
            joint = _joint(whole)
            shared = what_they_share(run, joint.ranks, present, stages)
            found.append(replace(joint, shares=shared.kind, name=shared.name))
        else:
            found += whole
    return tuple(sorted(found, key=lambda one: -one.lost_ns_per_step))


def _pipelines(run: Run, present: frozenset[int]) -> Iterator[frozenset[int]]:
    """Ranks of each pipeline, as far as they were compared."""
    for group in run.topology.groups:
        held = frozenset(group.ranks) & present
        if group.axis is MeshAxis.PP and len(held) > 1:
            yield held


def _whole(
    sets: Sequence[StragglerSet], pipelines: Sequence[frozenset[int]]
) -> tuple[list[StragglerSet], list[StragglerSet]]:
    """Sets inside pipelines all of whose ranks are in a set, and the other sets."""
    slow = frozenset(rank for one in sets for rank in one.ranks)
    covered = frozenset[int]().union(*(held for held in pipelines if held <= slow))
    inside = [one for one in sets if set(one.ranks) <= covered]
    return inside, [one for one in sets if one not in inside]


def _joint(sets: Sequence[StragglerSet]) -> StragglerSet:
    """One set of all ranks, as slow as the slowest: stages wait for each other at the same time."""
    slowest = max(sets, key=lambda one: one.lost_ns_per_step)
    ranks = tuple(sorted({rank for one in sets for rank in one.ranks}))
    steps = {
        rank: own for one in sets for rank, own in zip(one.ranks, one.steps_by_rank, strict=False)
    }
    return replace(
        slowest,
        ranks=ranks,
        steps_by_rank=tuple(steps[rank] for rank in ranks) if len(steps) == len(ranks) else (),
        confidence=min(one.confidence for one in sets),
        cause_confidence=min(one.cause_confidence for one in sets),
        scenario=set_key(ranks, slowest.pattern),
    )
