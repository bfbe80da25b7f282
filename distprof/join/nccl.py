"""What NCCL's own tools say across ranks: durations of NCCL Inspector, and troubles of RAS.

Durations need no clock alignment: no member of an all-reduce (all-gather, reduce-scatter,
all-to-all, barrier) can finish before all have begun. So the duration is longest on the first
member to arrive and shortest on the last. Any time beyond the shortest duration is waiting for late
ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.artefacts.record import TroubledRank, grouped
from distprof.run.evidence import (
    CollectiveSummary,
    InspectorLog,
    RasLaunches,
    RasRank,
    RasStatus,
    RasTrouble,
    SummaryClass,
)
from distprof.run.tables import same_as_before
from distprof.schema import Int64Array


class Compared(msgspec.Struct, frozen=True):
    """Collectives with a record of every member; arrays of one entry each, ascending in time."""

    class_index: NDArray[np.int32]  # int32, index into the log's classes.
    t_ns: Int64Array  # int64, when the last member's record was written.
    # int64, duration on the last member to arrive, about the transfer time.
    shortest_ns: Int64Array
    total_ns: Int64Array  # int64, sum of the durations of all members.
    wait_ns: Int64Array  # int64, part of the sum that exceeds the shortest duration of each member.
    last_rank: Int64Array  # int64, global rank of the last member to arrive.
    rows: Int64Array  # Rows of the log's table that belong to these collectives.

    def __len__(self) -> int:
        return len(self.t_ns)


def compared(log: InspectorLog) -> Compared:
    """The collectives of a log whose members can be compared.

    If a member has several records of one collective, the first counts.
    """
    table, rows = log.table, np.zeros(0, np.int64)
    if len(table):  # comparable kinds, and members with a known rank
        fits = np.array([one.kind.is_symmetric and one.num_ranks > 1 for one in log.classes], bool)
        rows = np.flatnonzero(fits[table["class_index"]] & (_ranks(log)[table["member"]] >= 0))
    order = rows[
        np.lexsort((table["member"][rows], table["seq"][rows], table["class_index"][rows]))
    ]
    classes, seq, member = (table[name][order] for name in ("class_index", "seq", "member"))
    is_new = ~same_as_before(classes, seq)
    once = is_new | ~same_as_before(member)
    order, is_new = order[once], is_new[once]
    starts = np.flatnonzero(is_new)
    sizes = np.diff(starts, append=len(order))
    wanted = np.array([one.num_ranks for one in log.classes], np.int64)
    is_whole = sizes == wanted[table["class_index"][order[starts]]] if len(starts) else sizes > 0
    return _measured(log, order[np.repeat(is_whole, sizes)], sizes[is_whole])


def _ranks(log: InspectorLog) -> Int64Array:
    """Global rank of each member."""
    return np.array([member.rank for member in log.members], np.int64)


def _measured(log: InspectorLog, rows: Int64Array, sizes: Int64Array) -> Compared:
    if not len(sizes):
        none = np.zeros(0, np.int64)
        return Compared(none.astype(np.int32), none, none, none, none, none, none)
    table = log.table
    starts = np.cumsum(sizes) - sizes
    duration = table["duration_ns"][rows]
    shortest = np.minimum.reduceat(duration, starts)
    total = np.add.reduceat(duration, starts)
    at_shortest = np.flatnonzero(duration == np.repeat(shortest, sizes))
    owner = np.repeat(np.arange(len(sizes)), sizes)[at_shortest]
    last = at_shortest[np.unique(owner, return_index=True)[1]]
    t_ns = np.maximum.reduceat(table["t_ns"][rows], starts)
    order = np.argsort(t_ns, kind="stable")
    return Compared(
        class_index=table["class_index"][rows[starts]][order],
        t_ns=t_ns[order],
        shortest_ns=shortest[order],
        total_ns=total[order],
        wait_ns=(total - shortest * sizes)[order],
        last_rank=_ranks(log)[table["member"][rows[last]]][order],
        rows=rows,
    )


def summary_of(log: InspectorLog, found: Compared) -> CollectiveSummary | None:
    """Mean durations of the compared collectives by class and rank; None without any."""
    if not len(found):
        return None
    table, rows = log.table, found.rows
    ranks = _ranks(log)[table["member"][rows]]
    world = int(ranks.max()) + 1
    keys, place = np.unique(
        table["class_index"][rows].astype(np.int64) * world + ranks, return_inverse=True
    )
    calls = np.bincount(place)
    mean = np.bincount(place, weights=table["duration_ns"][rows].astype(np.float64)) / calls
    used, index = np.unique(keys // world, return_inverse=True)
    classes = [
        SummaryClass(
            group=log.classes[one].group,
            ranks=tuple((keys[keys // world == one] % world).tolist()),
            kind=log.classes[one].kind,
            dtype="",
            num_bytes=log.classes[one].num_bytes,
        )
        for one in used.tolist()
    ]
    return CollectiveSummary(
        classes=tuple(classes),
        class_index=index.astype(np.int64),
        rank=keys % world,
        num_calls=calls.astype(np.int64),
        mean_ns=np.rint(mean).astype(np.int64),
    )


KINDS = ("dead", "unresponsive", "error", "behind", "ahead", "status")
"""Kinds of trouble, the worst first. A dead rank is not listed again as unresponsive."""

_Named = tuple[RasRank, RasTrouble | RasLaunches, str]


def in_trouble(status: RasStatus) -> tuple[TroubledRank, ...]:
    """Ranks in trouble, once per communicator and kind, the worst kind first."""
    world, places = status.world_size, _places(status)
    unequal: list[tuple[str, _Named]] = [
        (
            "behind" if one.launched < most else "ahead",
            (rank, one, f"{one.launched:,} of {most:,} {one.operation} launched"),
        )
        for counts, most in _unequal(status.launches)
        for one in sorted(counts, key=lambda one: one.launched)
        for rank in one.ranks
        if one.launched < most or 2 * one.num_ranks < sum(other.num_ranks for other in counts)
    ]
    behind = any(kind == "behind" for kind, _ in unequal)
    found: dict[tuple[object, ...], TroubledRank] = {}
    for kind in KINDS:
        named: list[_Named] = [
            (one.rank, one, one.text) for one in status.troubles if one.kind == kind
        ]
        if kind != "ahead" or not behind:
            named += [one for which, one in unequal if which == kind]
        for rank, one, text in named:
            # its rank in a communicator as large as the world, if there is one
            is_global = one.size is not None and one.size == world
            number = rank.rank if is_global else places.get((rank.host, rank.pid))
            parts = []
            if rank.pid is not None:
                parts.append(f"process {rank.pid}")
            if rank.gpu is not None:
                parts.append(f"GPU {rank.gpu}")
            if rank.host:
                parts.append(f"node {rank.host}")
            place = ", ".join(parts)
            is_process = kind in ("dead", "unresponsive")
            key = number if number is not None else place
            found.setdefault(
                (key, "away" if is_process else (kind, one.communicator)),
                TroubledRank(
                    kind=kind,
                    rank=number,
                    place=place,
                    communicator=one.communicator,
                    size=one.size,
                    text=text,
                ),
            )
    return tuple(found.values())


def num_behind(status: RasStatus) -> int:
    """Largest number of ranks behind in one operation of one communicator."""
    return max(
        (
            sum(one.num_ranks for one in counts if one.launched < most)
            for counts, most in _unequal(status.launches)
        ),
        default=0,
    )


def _unequal(launches: Sequence[RasLaunches]) -> list[tuple[list[RasLaunches], int]]:
    """Launch counts of each operation of each communicator, with the largest."""
    groups = grouped([((one.communicator, one.operation), one) for one in launches])
    return [(counts, max(one.launched for one in counts)) for counts in groups.values()]


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
