"""How often equal collectives come: what a recorder tells of a healthy job."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distprof.analyzers.hang.groups import JobGroup, Member
from distprof.analyzers.hang.result import Cadence
from distprof.schema import Int64Array

__all__ = ["cadence"]

_MOST_GROUPS = 200
_LEAST = 3  # two intervals


def cadence(groups: Sequence[JobGroup]) -> tuple[Cadence, ...]:
    """For each group, the collective that comes most often, and the time from one to the next."""
    found = (_of_group(group) for group in groups[:_MOST_GROUPS])
    return tuple(item for item in found if item is not None)


def _of_group(group: JobGroup) -> Cadence | None:
    counts: dict[tuple[str, str], int] = {}
    for member in group.members.values():
        for spelling, rows in _classes(member).items():
            counts[spelling] = counts.get(spelling, 0) + len(rows)
    if not counts:
        return None
    name, shape = max(counts, key=lambda key: (counts[key], key))
    gaps = [_gaps(member, (name, shape)) for member in group.members.values()]
    joined = np.concatenate(gaps)
    if counts[name, shape] < _LEAST or len(joined) < _LEAST - 1:
        return None
    return Cadence(
        group=group.name,
        description=group.description,
        name=name,
        shape=shape,
        count=counts[name, shape],
        period_ns=int(np.median(joined)),
        longest_ns=int(joined.max()),
    )


def _classes(member: Member) -> dict[tuple[str, str], Int64Array]:
    """Equal collectives of one rank: name and sizes to their rows."""
    entries, rows = member.dump.entries, member.collectives
    names, shapes = entries.coded("name"), entries.coded("shape")
    keys = names.codes[rows].astype(np.int64) * (len(shapes.values) + 1) + shapes.codes[rows]
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.diff(keys[order]) != 0) + 1
    parts = np.split(rows[order], starts)
    return {
        (names.values[names.codes[part[0]]], shapes.values[shapes.codes[part[0]]]): part
        for part in parts
        if len(part)
    }


def _gaps(member: Member, spelling: tuple[str, str]) -> Int64Array:
    """Times between one launch and the next, where both are known and in the ring."""
    rows = _classes(member).get(spelling, np.empty(0, np.int64))
    created = np.sort(member.dump.entries["created_ns"][rows])
    return np.diff(created[created > 0])
