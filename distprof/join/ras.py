"""Ranks in trouble by the output of ncclras: who they are, and who is behind whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from distprof.run.evidence import RasLaunches, RasRank, RasStatus

__all__ = ["KINDS", "InTrouble", "in_trouble", "num_behind"]

KINDS = ("dead", "unresponsive", "error", "behind", "status")
"""The worst first. A rank that is dead is not told again as one that does not answer."""


class InTrouble(msgspec.Struct, frozen=True, kw_only=True):
    """A rank with which something is wrong.

    Args:
        kind: Of :data:`KINDS`.
        rank: Global rank, None where it is not known.
        place: For people: process, GPU and node.
        communicator: Hash, empty for a process of the job.
        size: Ranks of the communicator, None where not told.
        text: Error, status, or what it has launched of how much.
    """

    kind: str
    rank: int | None
    place: str
    communicator: str
    size: int | None
    text: str


def in_trouble(status: RasStatus) -> tuple[InTrouble, ...]:
    """Every rank in trouble once for each communicator and kind, the worst kind first."""
    world, places = status.world_size, _places(status)
    found: dict[tuple[object, ...], InTrouble] = {}
    for one in _every(status, world, places):
        key = one.rank if one.rank is not None else one.place
        is_process = one.kind in ("dead", "unresponsive")
        found.setdefault((key, "away" if is_process else (one.kind, one.communicator)), one)
    return tuple(found.values())


def num_behind(status: RasStatus) -> int:
    """Ranks that have launched fewer operations than others of their communicator."""
    worst = 0
    for counts in _by_operation(status.launches):
        most = max(one.launched for one in counts)
        worst = max(worst, sum(one.num_ranks for one in counts if one.launched < most))
    return worst


def _every(
    status: RasStatus, world: int | None, places: dict[tuple[str, int | None], int]
) -> Iterator[InTrouble]:
    for kind in KINDS:
        for one in (trouble for trouble in status.troubles if trouble.kind == kind):
            yield InTrouble(
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
) -> Iterator[InTrouble]:
    for counts in _by_operation(status.launches):
        most = max(one.launched for one in counts)
        for one in sorted(counts, key=lambda one: one.launched):
            for rank in one.ranks if one.launched < most else ():
                yield InTrouble(
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
    """Host and process to the global rank, as far as the largest communicator tells."""
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
    """The rank of the job: that in the largest communicator."""
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
