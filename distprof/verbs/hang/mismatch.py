"""Members of a group that launched different things under one sequence number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distprof.schema import ABSENT, Int64Array
from distprof.terms import CollectiveKind
from distprof.units import name_ranks
from distprof.verbs.hang.groups import JobGroup, Member
from distprof.verbs.hang.points import Point
from distprof.verbs.hang.result import HangKind

__all__ = ["mismatch_point"]

_EQUAL_SIZES = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE, CollectiveKind.BROADCAST)
_EQUAL_IN_ONE_TENSOR = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
_ONE_TENSOR = ("_base", "tensor", "single")
_GLOO_LOOKS_BACK = 64  # it fails soon after, but tells nothing of completion
_MOST_TOLD = 3


def mismatch_point(group: JobGroup) -> Point | None:
    """The first collective under way in whose kind, size or data type members differ.

    Sizes are compared only where they must agree: not in all-to-all, gather and scatter, nor in
    gathers of lists, whose parts may be uneven.
    """
    members = [member for member in group.members.values() if len(member.seq)]
    if len(members) < 2:
        return None
    rows = _Rows(members)
    for kind, values in (
        (HangKind.KIND_MISMATCH, rows.kind),
        (HangKind.SIZE_MISMATCH, rows.elements),
        (HangKind.DTYPE_MISMATCH, rows.dtype),
    ):
        seq = rows.first_difference(values)
        if seq is not None:
            return _point(group, kind, seq, rows.at(seq, values))
    return None


class _Rows:
    """Collectives of all members, the first of each rank and number, sorted by number."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = members
        which = np.repeat(np.arange(len(members)), [len(m.seq) for m in members])
        seq = np.concatenate([member.seq for member in members])
        pending = np.concatenate([member.pending for member in members])
        order = np.lexsort((which, seq))
        keep = np.ones(len(order), dtype=np.bool_)
        keep[1:] = (np.diff(seq[order]) != 0) | (np.diff(which[order]) != 0)
        chosen = order[keep]
        self.which, self.seq, self.pending = which[chosen], seq[chosen], pending[chosen]
        self.kind = _column(members, _kinds)[chosen]
        self.elements = _column(members, _elements)[chosen]
        self.dtype = _dtypes(members)[chosen]
        self.starts = np.flatnonzero(np.r_[True, np.diff(self.seq) != 0])

    def first_difference(self, values: Int64Array) -> int | None:
        """The first number under way at which known values differ."""
        known = values != ABSENT
        low = np.minimum.reduceat(np.where(known, values, np.iinfo(np.int64).max), self.starts)
        high = np.maximum.reduceat(np.where(known, values, ABSENT), self.starts)
        pending = np.logical_or.reduceat(self._may_be_pending(), self.starts)
        differs = np.flatnonzero((high > low) & pending)
        return int(self.seq[self.starts[differs[0]]]) if len(differs) else None

    def _may_be_pending(self) -> NDArray[np.bool_]:
        tells = np.array([member.tells_completion for member in self.members])[self.which]
        recent = self.seq >= self.seq.max() - _GLOO_LOOKS_BACK
        may: NDArray[np.bool_] = self.pending & (tells | recent)
        return may

    def at(self, seq: int, values: Int64Array) -> list[tuple[Member, int]]:
        """Members that launched number ``seq``, with their values."""
        found = np.flatnonzero((self.seq == seq) & (values != ABSENT))
        return [(self.members[self.which[i]], int(values[i])) for i in found]


def _column(members: Sequence[Member], of: Any) -> Int64Array:
    found: Int64Array = np.concatenate([of(member) for member in members])
    return found


def _kinds(member: Member) -> Int64Array:
    kind = member.dump.entries["kind"][member.collectives].astype(np.int64)
    return np.where(kind == CollectiveKind.UNKNOWN, ABSENT, kind)


def _elements(member: Member) -> Int64Array:
    entries, rows = member.dump.entries, member.collectives
    kind = entries["kind"][rows]
    names = entries.coded("name")
    one = names.take(rows).where([any(w in v for w in _ONE_TENSOR) for v in names.values])
    compared = np.isin(kind, _EQUAL_SIZES) | (np.isin(kind, _EQUAL_IN_ONE_TENSOR) & one)
    return np.where(compared, entries["in_elements"][rows], ABSENT)


def _dtypes(members: Sequence[Member]) -> Int64Array:
    """Codes of data types that mean the same in every dump."""
    codes: dict[str, int] = {"": ABSENT}
    parts = []
    for member in members:
        told = member.dump.entries.coded("in_dtype").take(member.collectives)
        table = [codes.setdefault(value, len(codes)) for value in told.values]
        parts.append(np.array(table or [0], dtype=np.int64)[told.codes])
    joined: Int64Array = np.concatenate(parts)
    return joined


def _point(group: JobGroup, kind: HangKind, seq: int, found: list[tuple[Member, int]]) -> Point:
    counts = Counter(value for _, value in found)
    usual, number = counts.most_common(1)[0]
    is_majority = 2 * number > len(found)
    odd = [m for m, value in found if value != usual] if is_majority else [m for m, _ in found]
    example = next(member for member, value in found if value == usual)
    row = example.row_of(seq)
    return Point(
        group=group,
        kind=kind,
        seq=seq,
        waiting=tuple(m.rank for m, value in found if value == usual) if is_majority else (),
        missing=tuple(sorted(member.rank for member in odd)),
        silent=group.silent,
        example=None if row is None else (example, row),
        first_ns=0 if row is None else int(example.dump.entries["created_ns"][row]),
        others=tuple(_told(odd, seq)),
    )


def _told(odd: Sequence[Member], seq: int) -> list[str]:
    """What the odd ones launched under that number, alike ones together."""
    alike: dict[str, list[int]] = {}
    for member in odd:
        row = member.row_of(seq)
        if row is not None:
            alike.setdefault(described(member, row), []).append(member.rank)
    sentences = [f"{name_ranks(ranks)} launched {what}" for what, ranks in alike.items()]
    more = len(sentences) - _MOST_TOLD
    return sentences[:_MOST_TOLD] + ([f"and {more} more spellings"] if more > 0 else [])


def described(member: Member, row: int) -> str:
    """An operation in a few words: name, sizes and data type."""
    entries = member.dump.entries
    name, shape, dtype = (
        (column := entries.coded(of)).values[column.codes[row]]
        for of in ("name", "shape", "in_dtype")
    )
    inside = " ".join(part for part in (shape, dtype) if part)
    return f"{name} of {inside}" if inside else name
