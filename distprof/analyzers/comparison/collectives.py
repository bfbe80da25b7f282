"""Collectives that are exposed for longer, for shorter, appeared or vanished."""

from __future__ import annotations

from collections.abc import Sequence

from distprof.analyzers.collectives import CollectiveClass, CollectivesResult
from distprof.analyzers.comparison.kernels import state_of
from distprof.analyzers.comparison.result import CollectiveChange

__all__ = ["compare_collectives"]

_Key = tuple[str, str, int | None]


def compare_collectives(
    first: CollectivesResult, second: CollectivesResult
) -> tuple[CollectiveChange, ...]:
    """Every class of either run, largest change of exposed time first.

    Where groups of an axis have unlike sizes in the two runs, its classes of all sizes are added
    up: shards of other groups have other sizes.
    """
    resized = _resized(first, second)
    mine, theirs = _by_key(first, resized), _by_key(second, resized)
    changes = [
        _change(key, mine.get(key, ()), theirs.get(key, ()), first, second)
        for key in dict.fromkeys((*mine, *theirs))
    ]
    return tuple(sorted(changes, key=lambda change: (-abs(change.change_ns), change.kind)))


def _axis(row: CollectiveClass) -> str:
    return row.axis or row.group


def _resized(first: CollectivesResult, second: CollectivesResult) -> frozenset[str]:
    """Axes of which the two runs have groups of unlike sizes."""
    sizes: list[dict[str, set[int | None]]] = [{}, {}]
    for place, result in enumerate((first, second)):
        for row in result.classes:
            sizes[place].setdefault(_axis(row), set()).add(row.group_size)
    shared = set(sizes[0]) & set(sizes[1])
    return frozenset(axis for axis in shared if sizes[0][axis] != sizes[1][axis])


def _by_key(
    result: CollectivesResult, resized: frozenset[str]
) -> dict[_Key, list[CollectiveClass]]:
    found: dict[_Key, list[CollectiveClass]] = {}
    for row in result.classes:
        axis = _axis(row)
        size = None if axis in resized else row.bytes
        found.setdefault((row.kind, axis, size), []).append(row)
    return found


def _change(
    key: _Key,
    mine: Sequence[CollectiveClass],
    theirs: Sequence[CollectiveClass],
    first: CollectivesResult,
    second: CollectivesResult,
) -> CollectiveChange:
    kind, axis, size = key
    first_ns, second_ns = _total(mine, "exposed_ns"), _total(theirs, "exposed_ns")
    known = (not mine or first_ns is not None) and (not theirs or second_ns is not None)
    return CollectiveChange(
        kind=kind,
        axis=axis,
        bytes=size,
        state=state_of(
            (first_ns or 0) if mine else None,
            (second_ns or 0) if theirs else None,
        )
        if known
        else "unlisted",
        first_exposed_ns=first_ns,
        second_exposed_ns=second_ns,
        first_wait_ns=_total(mine, "exposed_wait_ns"),
        second_wait_ns=_total(theirs, "exposed_wait_ns"),
        first_count=_count(mine, first),
        second_count=_count(theirs, second),
        first_busbw_bytes_per_s=_bandwidth(mine),
        second_busbw_bytes_per_s=_bandwidth(theirs),
        change_ns=(second_ns or 0) - (first_ns or 0) if known else 0,
    )


def _total(rows: Sequence[CollectiveClass], field: str) -> int | None:
    """Sum per step; None where any class does not know it."""
    values = [getattr(row, f"{field}_per_step") for row in rows]
    return None if not values or None in values else sum(values)


def _count(rows: Sequence[CollectiveClass], result: CollectivesResult) -> float | None:
    return sum(row.count for row in rows) / max(1, result.num_steps) if rows else None


def _bandwidth(rows: Sequence[CollectiveClass]) -> float | None:
    return rows[0].busbw_bytes_per_s if len(rows) == 1 else None
