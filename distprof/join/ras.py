"""Ranks in trouble according to ncclras, including those behind others of their communicator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distprof.artefacts.ras import TroubledRank
from distprof.run.evidence import RasLaunches, RasRank, RasStatus

KINDS = ("dead", "unresponsive", "error", "behind", "status")
"""Kinds of trouble, the worst first. A dead rank is not listed again as unresponsive."""


def in_trouble(status: RasStatus) -> tuple[TroubledRank, ...]:
    """Ranks in trouble, once per communicator and kind, the worst kind first."""
    world, places = status.world_size, _places(status)
    found: dict[tuple[object, ...], TroubledRank] = {}
    for one in _every(status, world, places):
        key = one.rank if one.rank is not None else one.place
        is_process = one.kind in ("dead", "unresponsive")
        found.setdefault((key, "away" if is_process else (one.kind, one.communicator)), one)
    return tuple(found.values())


def num_behind(status: RasStatus) -> int:
    """Largest number of ranks behind in one operation of one communicator."""
    worst = 0
    for counts in _by_operation(status.launches):
        most = max(one.launched for one in counts)
        worst = max(worst, sum(one.num_ranks for one in counts if one.launched < most))
    return worst


def _every(
    status: RasStatus, world: int | None, places: dict[tuple[str, int | None], int]
) -> Iterator[TroubledRank]:
    for kind in KINDS:
        for one in (trouble for trouble in status.troubles if trouble.kind == kind):
            yield TroubledRank(
                kind=kind,
                rank=_rank(one.rank, one.size, world, places),
                place=_place(one.rank),
                communicator=one.communicator,
                size=one.size,
                text=one.text,
            )
        if kind == "behind":
            yield from _behind(status, world, places)


def _behind(
    status: RasStatus, world: int | None, places: dict[tuple[str, int | None], int]
) -> Iterator[TroubledRank]:
    for counts in _by_operation(status.launches):
        most = max(one.launched for one in counts)
        for one in sorted(counts, key=lambda one: one.launched):
            for rank in one.ranks if one.launched < most else ():
                yield TroubledRank(
                    kind="behind",
                    rank=_rank(rank, one.size, world, places),
                    place=_place(rank),
                    communicator=one.communicator,
                    size=one.size,
                    text=f"{one.launched:,} of {most:,} {one.operation} launched",
                )


def _by_operation(launches: Sequence[RasLaunches]) -> list[list[RasLaunches]]:
    groups: dict[tuple[str, str], list[RasLaunches]] = {}
    for one in launches:
        groups.setdefault((one.communicator, one.operation), []).append(one)
    return list(groups.values())


def _places(status: RasStatus) -> dict[tuple[str, int | None], int]:
    """Global rank by host and process, from communicators as large as the world."""
    world = status.world_size
    named = [(one.rank, one.size) for one in status.troubles]
    named += [(rank, one.size) for one in status.launches for rank in one.ranks]
    found: dict[tuple[str, int | None], set[int]] = {}
    for rank, size in named:
        if size == world and rank.rank is not None and rank.pid is not None:
            found.setdefault((rank.host, rank.pid), set()).add(rank.rank)
    return {key: ranks.pop() for key, ranks in found.items() if len(ranks) == 1}


def _rank(
    rank: RasRank,
    size: int | None,
    world: int | None,
    places: dict[tuple[str, int | None], int],
) -> int | None:
    """The global rank: the rank in a communicator as large as the world, if there is one."""
    if size is not None and size == world:
        return rank.rank
    return places.get((rank.host, rank.pid))


def _place(rank: RasRank) -> str:
    parts = []
    if rank.pid is not None:
        parts.append(f"process {rank.pid}")
    if rank.gpu is not None:
        parts.append(f"GPU {rank.gpu}")
    if rank.host:
        parts.append(f"node {rank.host}")
    return ", ".join(parts)
