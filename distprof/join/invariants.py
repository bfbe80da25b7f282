"""Invariants of sound recordings: sentences and bounds as data, and what breaks them on one rank.

A recording that breaks one is repaired, or loses what broke it. The report's evidence line says so,
because numbers and causes may differ from those of the sound recording.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from zlib import crc32

import msgspec
import numpy as np

from distprof.artefacts.record import Gap
from distprof.bounds import table_beside
from distprof.intervals import index_of
from distprof.run.run import Count, Rank
from distprof.run.tables import (
    CALL_CATEGORIES,
    among,
    distinct,
    encode,
    have_launches,
    intervals_of,
)
from distprof.schema import ABSENT, Bools, Int64Array, Table
from distprof.terms import ActivityKind
from distprof.units import name_ranks

try:
    from _blake2 import blake2b  # without OpenSSL, which takes 3.6 MB and does not make this digest
except ImportError:
    from hashlib import blake2b


class Invariant(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is true of every rank of a sound recording."""

    # Few words for the evidence line. ``{count}`` and ``{of}`` are those of all ranks that break
    # it, ``{ranks}`` their names.
    fact: str
    message: str  # Sentence that says what was found and done, with the same fields.
    bound: float = 0.0  # Acceptable share of the rows that break it, 0 to 1.
    # Whether the causes of lateness of a rank that breaks it cannot be known.
    hides_cause: bool = False
    # Whether most ranks that break it once show what the program or its recorder does.
    may_be_usual: bool = False

    def is_broken(self, found: Count) -> bool:
        """Whether more rows break it than may."""
        return found.count > self.bound * found.of


@cache
def _invariants() -> Mapping[str, Invariant]:
    """By the ``what`` of the gap."""
    return msgspec.convert(table_beside(__package__, "invariants.toml"), dict[str, Invariant])


def broken(ranks: Iterable[Rank]) -> Iterator[Gap]:
    """A gap for each invariant that the events of one or more ranks break."""
    counted = [(rank.rank, rank.quality.counts) for rank in ranks]
    for key, invariant in _invariants().items():
        found = {
            rank: counts[key]
            for rank, counts in counted
            if key in counts and invariant.is_broken(counts[key])
        }
        # if most ranks break it, once each, the program or its recorder does so
        once = invariant.may_be_usual and all(count.of <= 1 for count in found.values())
        if found and not (once and 2 * len(found) > len(counted)):
            yield _gap_of(key, invariant, found)


def _gap_of(what: str, invariant: Invariant, found: Mapping[int, Count]) -> Gap:
    """The gap of an invariant that these ranks break."""
    ranks: Sequence[int] = sorted(found)
    words = {
        "count": f"{sum(one.count for one in found.values()):,}",
        "of": f"{sum(one.of for one in found.values()):,}",
        "ranks": name_ranks(ranks),
    }
    return Gap(
        what=what,
        message=invariant.message.format_map(words),
        ranks=tuple(ranks),
        fact=invariant.fact.format_map(words),
        hides_cause=invariant.hides_cause,
    )


_FOLLOWERS = 3
"""An activity that ends after this many later ones of its stream have begun lasts impossibly long:
a stream runs one after another, and programmatic launches overlap two at most."""

_MIN_EVENTS = 20
"""Fewer events are too few to say how long a recording is, or that times have a divisor in common
by rounding only."""

_COARSE_NS = 10_000
"""Times with a larger divisor in common were rounded after the profiler wrote them: those of
PyTorch before 2.2, the coarsest, are whole microseconds."""

_MAX_LOST_AT_END = 0.1
"""Share of launches at the end whose kernels may have run after the profiler stopped."""

_DISORDER_NS = 100_000
"""Launches of real traces are out of order by 1 µs at most."""

_MOST_JUMPS = 3
"""More drops are no clock that jumps: the ids of that recording do not follow time."""

_RANGES = ("cpu_op", "annotation")
_MOST_DROPS = 16
_MOST_NAMES = 64
_SAMPLED_ROWS = 4096


def mended(activity: Table, host: Table) -> tuple[Table, dict[str, Count]]:
    """Take out what cannot have happened on a GPU, and count it; linear if streams are in order.

    Rows that are there twice go, and impossibly long ones end where they can have ended at most.
    """
    rows = np.flatnonzero(activity["kind"] != ActivityKind.ANNOTATION)
    num_rows = len(rows)
    counts = {}
    if len(again := _repeated(activity, rows)):
        activity = activity.take(np.delete(np.arange(len(activity)), again))
        rows = np.flatnonzero(activity["kind"] != ActivityKind.ANNOTATION)
        counts["repeated-activities"] = Count(count=len(again), of=num_rows)
    end = activity["end_ns"].copy()
    if clipped := _clip(activity, host, rows, end):
        activity = activity.with_columns(end_ns=end)
        counts["overlong-activities"] = Count(count=clipped, of=num_rows)
    return activity, counts


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What the events of a rank show about their soundness."""

    counts: dict[str, Count]  # Key of an invariant to what breaks it.
    # Hash of a kernel's name to its number of launches and their duration, for the most frequent
    # computation kernels.
    paces: dict[int, tuple[int, int]]
    content: str  # Hash of times and threads; equal only for copies.
    kernels: dict[int, int]  # Number of a step to the computation kernels that begin in it.
    num_ranges: int  # Operators and annotated ranges on the CPU.
    num_launches: int  # Calls on the CPU that launch kernels.


def checked(activity: Table, host: Table, steps: Table) -> Checked:
    """Check the events of one rank of GPUs, after :func:`mended`.

    ``steps`` are the complete ones, empty if nothing marks steps.
    """
    is_work = activity["kind"] != ActivityKind.ANNOTATION
    work = activity if is_work.all() else activity.take(np.flatnonzero(is_work))
    found = _launches(work, host, steps)
    if len(work) >= _MIN_EVENTS:
        since = np.concatenate((work["start_ns"], work["end_ns"])) - int(work["start_ns"][0])
        found["coarse-times"] = Count(count=int(np.gcd.reduce(since) >= _COARSE_NS), of=1)
    # computation kernels that begin in each step
    start = work["start_ns"][work["kind"] == ActivityKind.COMPUTATION]
    step = index_of(start, intervals_of(steps))
    count = np.bincount(step[step >= 0], minlength=len(steps))
    return Checked(
        counts={key: count for key, count in found.items() if count.count},
        paces=_paces(work),
        content=_content(work, host),
        kernels=dict(zip(steps["step"].tolist(), count.tolist(), strict=True)),
        num_ranges=int(host.coded("category").isin(_RANGES).sum()),
        num_launches=int(_are_launches(host).sum()),
    )


def _repeated(activity: Table, rows: Int64Array) -> Int64Array:
    """Rows that are equal to an earlier one in times, stream and launch."""
    start = activity["start_ns"][rows]
    if (start[1:] < start[:-1]).any():
        rows = rows[np.argsort(start, kind="stable")]
        start = activity["start_ns"][rows]
    same = start[1:] == start[:-1]
    near = np.append(same, False) | np.append(False, same)
    rows = rows[near & (activity["correlation"][rows] > 0)]
    keys = [activity[name][rows] for name in ("start_ns", "end_ns", "stream", "correlation")]
    order = np.lexsort(keys)
    equal = np.ones(max(len(rows) - 1, 0), np.bool_)
    for values in keys:
        equal &= values[order][1:] == values[order][:-1]
    return rows[order][1:][equal]


# Impossibly long activities -----------------------------------------------------------------------


def _clip(activity: Table, host: Table, rows: Int64Array, end: Int64Array) -> int:
    """End rows in ``end`` where the next one of their stream begins; returns their number."""
    start = activity["start_ns"]
    streams = activity["stream"] - ABSENT, activity["device"].astype(np.int64) - ABSENT
    _, code = encode(encode(streams[0])[1] * 4096 + encode(streams[1])[1] % 4096)
    clipped = 0
    for stream in range(int(code[rows].max(initial=-1)) + 1):
        own = rows[code[rows] == stream]
        if (start[own][1:] < start[own][:-1]).any():
            own = own[np.argsort(start[own], kind="stable")]
        long = np.flatnonzero(start[own[_FOLLOWERS:]] < end[own[:-_FOLLOWERS]])
        end[own[long]] = start[own[long + 1]]
        clipped += len(long)
    return clipped + _clip_last(activity, host, rows, end)


def _clip_last(activity: Table, host: Table, rows: Int64Array, end: Int64Array) -> int:
    """End rows that outlast all other events by more than the whole rest of the recording."""
    if len(rows) + len(host) < _MIN_EVENTS or len(rows) < 2:
        return 0
    starts = (activity["start_ns"][rows], host["start_ns"])
    first, last = (
        int(f(np.concatenate([f(s, keepdims=True) for s in starts if len(s)])))
        for f in (np.min, np.max)
    )
    others = int(host["end_ns"].max(initial=last))
    limit = max(others, last) + (max(others, last) - first)
    late = rows[end[rows] > limit]
    if len(late) == len(rows):
        return 0
    end[late] = np.maximum(activity["start_ns"][late], max(others, last))
    return len(late)


# Launches and kernels -----------------------------------------------------------------------------


def _are_launches(host: Table) -> Bools:
    """Mask of the rows that launch kernels, by their names."""
    names = host.coded("name")
    return names.where(["LaunchKernel" in value for value in names.values])


def _launches(work: Table, host: Table, steps: Table) -> dict[str, Count]:
    """Launches out of order or without their kernels, and kernels without their launches."""
    names = host.coded("name")
    calls = _are_launches(host)
    calls &= host.coded("category").isin(CALL_CATEGORIES) & (host["correlation"] > 0)
    at, ids = host["start_ns"][calls], host["correlation"][calls]
    is_ordered = (ids[1:] >= ids[:-1]).all()
    drops = _drops(at if is_ordered else at[np.argsort(ids, kind="stable")])
    if drops > _MOST_JUMPS:
        drops = 0  # ids that do not follow time say nothing about the clock
    found = {"clock-jumps-back": Count(count=drops, of=len(ids))}
    has_kernel = among(ids, distinct(work["correlation"]))
    if not has_kernel.any() and (work["correlation"] > 0).any():
        found["launches-without-kernels"] = Count(count=len(ids), of=len(ids))
    if not has_kernel.any() or any("BeginCapture" in value for value in names.values):
        return found  # launches into a graph run later, with the graph
    lost = ~has_kernel & (at > at[has_kernel].min())
    is_end = at > at[has_kernel].max()
    if (lost & is_end).sum() <= _MAX_LOST_AT_END * len(ids):
        lost &= ~is_end | (index_of(at, intervals_of(steps)) >= 0)
    found["launches-without-kernels"] = Count(count=len(set(ids[lost].tolist())), of=len(ids))
    # kernels without a launch that began after one with a launch, on the same stream
    known = have_launches(work["correlation"], host)
    _, stream = encode(work["stream"] - ABSENT)
    first = np.full(int(stream.max(initial=0)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, stream[known], work["start_ns"][known])
    lost = ~known & (work["start_ns"] > first[stream])
    found["kernels-without-launches"] = Count(count=int(lost.sum()), of=len(work))
    return found


def _drops(start: Int64Array) -> int:
    """How often launches, in the order of their ids, go back in time; a late single one is none."""
    drops = np.flatnonzero(start[1:] < start[:-1] - _DISORDER_NS)
    return sum(
        int((start[: at + 1] > start[at + 1]).sum()) > _FOLLOWERS
        and int((start[at + 1 :] < start[at]).sum()) > _FOLLOWERS
        for at in drops[:_MOST_DROPS].tolist()
    )


# What ranks are compared by -----------------------------------------------------------------------


def _paces(work: Table) -> dict[int, tuple[int, int]]:
    """Launches and total duration of the most frequent computation kernels, by name."""
    rows = np.flatnonzero(work["kind"] == ActivityKind.COMPUTATION)
    names = work.coded("name")
    duration = (work["end_ns"] - work["start_ns"])[rows].astype(np.float64)
    code = names.codes[rows]
    count = np.bincount(code, minlength=len(names.values))
    total = np.bincount(code, weights=duration, minlength=len(names.values))
    most = np.argsort(-count, kind="stable")[:_MOST_NAMES]
    return {
        crc32(names.values[i].encode("utf-8", "replace")): (int(count[i]), int(total[i]))
        for i in most.tolist()
        if count[i]
    }


def _content(work: Table, host: Table) -> str:
    """Hash of the first rows; empty if they are too few to distinguish ranks."""
    if len(work) + len(host) < _MIN_EVENTS or not len(work):
        return ""
    threads = host.coded("thread").values
    digest = blake2b("\n".join(threads).encode("utf-8", "replace"), digest_size=16)
    for name in ("start_ns", "end_ns", "correlation"):
        for table in (work, host):
            digest.update(np.ascontiguousarray(table[name][:_SAMPLED_ROWS]).tobytes())
    return digest.hexdigest()
