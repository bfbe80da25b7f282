"""Collectives with a duration recorded by every member, matched by sequence number.

This needs no clock alignment: no member of an all-reduce (all-gather, reduce-scatter, all-to-all,
barrier) can finish before all have begun. So the duration is longest on the first member to arrive
and shortest on the last. Any time beyond the shortest duration is waiting for late ranks.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.run.evidence import CollectiveSummary, InspectorLog, SummaryClass
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
    rows = _candidates(log)
    table = log.table
    order = rows[
        np.lexsort((table["member"][rows], table["seq"][rows], table["class_index"][rows]))
    ]
    classes, seq, member = (table[name][order] for name in ("class_index", "seq", "member"))
    is_new = np.ones(len(order), bool)
    is_new[1:] = (np.diff(classes) != 0) | (np.diff(seq) != 0)
    once = is_new.copy()
    once[1:] |= np.diff(member) != 0
    order, is_new = order[once], is_new[once]
    starts = np.flatnonzero(is_new)
    sizes = np.diff(np.append(starts, len(order)))
    wanted = np.array([one.num_ranks for one in log.classes], np.int64)
    is_whole = sizes == wanted[table["class_index"][order[starts]]] if len(starts) else sizes > 0
    kept = order[np.repeat(is_whole, sizes)]
    return _measured(log, kept, sizes[is_whole])


def _candidates(log: InspectorLog) -> Int64Array:
    """Rows of comparable kinds from members with a known rank."""
    fits = np.array([one.kind.is_symmetric and one.num_ranks > 1 for one in log.classes], bool)
    ranks = np.array([member.rank for member in log.members], np.int64)
    if not len(log.table):
        return np.zeros(0, np.int64)
    chosen = fits[log.table["class_index"]] & (ranks[log.table["member"]] >= 0)
    return np.flatnonzero(chosen)


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
    ranks = np.array([member.rank for member in log.members], np.int64)
    t_ns = np.maximum.reduceat(table["t_ns"][rows], starts)
    order = np.argsort(t_ns, kind="stable")
    columns: dict[str, Any] = {
        "class_index": table["class_index"][rows[starts]],
        "t_ns": t_ns,
        "shortest_ns": shortest,
        "total_ns": total,
        "wait_ns": total - shortest * sizes,
        "last_rank": ranks[table["member"][rows[last]]],
    }
    return Compared(**{name: column[order] for name, column in columns.items()}, rows=rows)


def summary_of(log: InspectorLog, found: Compared) -> CollectiveSummary | None:
    """Mean durations of the compared collectives by class and rank; None without any."""
    if not len(found):
        return None
    table, rows = log.table, found.rows
    ranks = np.array([member.rank for member in log.members], np.int64)[table["member"][rows]]
    classes = table["class_index"][rows].astype(np.int64)
    world = int(ranks.max()) + 1
    keys, place = np.unique(classes * world + ranks, return_inverse=True)
    calls = np.bincount(place)
    mean = np.bincount(place, weights=table["duration_ns"][rows].astype(np.float64)) / calls
    used, index = np.unique(keys // world, return_inverse=True)
    return CollectiveSummary(
        classes=tuple(_class(log, one, keys, world) for one in used.tolist()),
        class_index=index.astype(np.int64),
        rank=keys % world,
        num_calls=calls.astype(np.int64),
        mean_ns=np.rint(mean).astype(np.int64),
    )


def _class(log: InspectorLog, index: int, keys: Int64Array, world: int) -> SummaryClass:
    collective_class = log.classes[index]
    first, last = np.searchsorted(keys, [index * world, (index + 1) * world])
    return SummaryClass(
        group=collective_class.group,
        ranks=tuple((keys[first:last] % world).tolist()),
        kind=collective_class.kind,
        dtype="",
        num_bytes=collective_class.num_bytes,
    )
