"""What only the slow ranks have in common: a node, a pipeline stage, a group, a rail."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec

from distprof.run.run import Run
from distprof.terms import MeshAxis, StragglerPattern
from distprof.units import fold_ranks


class Shared(msgspec.Struct, frozen=True):
    """Kind and name, for example ``node`` and ``node1``; both empty if nothing is shared."""

    kind: str = ""
    name: str = ""


def set_key(ranks: Collection[int], pattern: StragglerPattern) -> str:
    """Key of the simulation in which these ranks keep up."""
    what = "ranks in turn" if pattern is StragglerPattern.ROTATING else "ranks"
    return f"{what} {fold_ranks(sorted(ranks))}"


def what_they_share(
    run: Run,
    ranks: Collection[int],
    present: Collection[int],
    stages: Mapping[int, tuple[int, ...]],
) -> Shared:
    """What all of these ranks and no others have in common.

    Args:
        run: The recording, for its nodes and groups.
        ranks: The slow ranks, fewer than all.
        present: Ranks that were compared.
        stages: Pipeline stages that each rank holds; empty tuples if none are known.
    """
    wanted = frozenset(ranks)
    if len(wanted) < 2:
        return Shared()
    candidates = (*_nodes(run), *_stages(stages), *_groups(run), *_rails(run))
    known = frozenset(present)
    return next((shared for shared, held in candidates if held & known == wanted), Shared())


def _nodes(run: Run) -> Iterator[tuple[Shared, frozenset[int]]]:
    if len(run.topology.nodes) > 1:
        for name, ranks in run.topology.nodes.items():
            yield Shared("node", name), frozenset(ranks)


def _stages(stages: Mapping[int, tuple[int, ...]]) -> Iterator[tuple[Shared, frozenset[int]]]:
    for held in dict.fromkeys(stages.values()):
        if held:
            name = f"stage {', '.join(map(str, held))}"
            yield Shared("stage", name), frozenset(r for r, own in stages.items() if own == held)


def _groups(run: Run) -> Iterator[tuple[Shared, frozenset[int]]]:
    for group in run.topology.groups:
        if group.ranks and group.axis is not MeshAxis.WORLD:
            axis = group.axis.value if group.axis is not None else group.description
            yield Shared("group", f"one {axis} group"), frozenset(group.ranks)


def _rails(run: Run) -> Iterator[tuple[Shared, frozenset[int]]]:
    """Ranks at the same place in every node, which often have a separate switch."""
    nodes = [sorted(ranks) for ranks in run.topology.nodes.values()]
    if len(nodes) > 1 and len({len(ranks) for ranks in nodes}) == 1:
        for place in range(len(nodes[0])):
            name = f"local rank {place} of each node: one rail"
            yield Shared("rail", name), frozenset(ranks[place] for ranks in nodes)
