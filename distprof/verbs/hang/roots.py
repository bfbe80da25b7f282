"""Independent causes of a hang: each set of ranks connected by waits has at least one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from distprof.verbs.hang import HangKind
from distprof.verbs.hang.divergence import Point, reached_from, roots_of, waits


class Root(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks that others wait for and that wait for no rank themselves."""

    point: Point  # The first operation in which others wait for them.
    # The ranks; empty if all ranks launched the operation and none finished it.
    ranks: tuple[int, ...]
    in_circle: bool = False  # Whether they wait for each other.

    @property
    def kind(self) -> HangKind:
        """How ranks diverge."""
        return HangKind.MUTUAL_WAIT if self.in_circle else self.point.kind

    @property
    def has_dump(self) -> bool:
        """Whether the ranks left dumps."""
        return not set(self.ranks) & set(self.point.silent)


def when(point: Point) -> tuple[int, bool, str, tuple[int, ...]]:
    """Sort key: time of launch, then mismatches before their consequences."""
    return point.first_ns, point.kind is HangKind.NEVER_LAUNCHED, point.group.name, point.missing


def independent_roots(
    points: Sequence[Point], mismatches: Sequence[Point], messages: Sequence[Point] = ()
) -> list[Root]:
    """Every root, the earliest first."""
    roots = [root for web in _webs(points) for root in _roots_in(web, mismatches)]
    graph = waits([*points, *messages])
    kept = [root for root in roots if not _waits_for_another(root, roots, graph)]
    return sorted(kept or roots, key=lambda root: when(root.point))


def _waits_for_another(root: Root, roots: Sequence[Root], graph: Mapping[int, set[int]]) -> bool:
    others = {rank for other in roots if other is not root for rank in other.ranks}
    others -= set(root.ranks)
    return bool(root.ranks) and all(reached_from(graph, rank) & others for rank in root.ranks)


def _webs(points: Iterable[Point]) -> list[list[Point]]:
    """Points grouped into connected components: those that share a rank are in one web."""
    webs: list[tuple[set[int], list[Point]]] = []
    for point in points:
        ranks, joined = {*point.waiting, *point.blamed}, [point]
        apart = []
        for others, members in webs:
            if others & ranks:
                ranks |= others
                joined = [*members, *joined]
            else:
                apart.append((others, members))
        webs = [*apart, (ranks, joined)]
    return [joined for _, joined in webs]


def _roots_in(web: Sequence[Point], mismatches: Sequence[Point]) -> list[Root]:
    """The first root of one web, then the roots that it does not explain."""
    differing = [point for point in web if point in mismatches]
    roots, in_circle = roots_of([point for point in web if point not in differing])
    first = _first_root(web, differing, roots, in_circle=in_circle)
    if first.in_circle:
        return [first]
    stuck = set(first.ranks)
    if first.point in differing:
        stuck |= {*first.point.waiting, *first.point.missing}
    # other ranks that wait for no rank, at the first operation in which others wait for them
    ranks_at: dict[int, list[int]] = {}
    at = sorted((point for point in web if point not in differing), key=when)
    for rank in roots:
        index = next((i for i, point in enumerate(at) if rank in point.blamed), None)
        if index is not None and rank not in stuck:
            ranks_at.setdefault(index, []).append(rank)
    further = [Root(point=at[i], ranks=tuple(sorted(ranks))) for i, ranks in ranks_at.items()]
    return [first, *further]


def _first_root(
    web: Sequence[Point], differing: Sequence[Point], roots: tuple[int, ...], *, in_circle: bool
) -> Root:
    mismatch = min(differing, key=when, default=None)
    blaming = [point for point in web if set(point.blamed) & set(roots)] or list(web)
    point = min(blaming, key=when)
    if mismatch is not None and when(mismatch) <= when(point):
        return Root(point=mismatch, ranks=mismatch.missing)
    ranks = tuple(rank for rank in roots if in_circle or rank in point.blamed)
    return Root(point=point, ranks=ranks or point.blamed, in_circle=in_circle)
