"""Clocks that jump inside a recording: found by collectives that stop ending together.

If a rank's ends agree with those of the others before some moment and differ by a constant after
it, its clock jumped. A jump forward leaves a pause of that length, so it can be taken out. A jump
backward mixes what happened before and after it, so the rank is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from zlib import crc32

import msgspec
import numpy as np
from msgspec.structs import replace

from distprof.join.instances import NO_STEP, runs_of, step_labels
from distprof.join.shifts import TIMED
from distprof.run.run import ClockAlignment, CollectiveMatches, Gap, Rank, TableSource
from distprof.run.tables import RankTables, encode
from distprof.schema import ABSENT, Int64Array, Table
from distprof.units import NS_PER_US, format_duration, name_ranks

_SUSPECT_NS = 100 * NS_PER_US
"""Larger residuals than GPUs of one job show."""

_MATCHED = 0.95
_LEAST_NS = 200 * NS_PER_US
_TIMES_USUAL = 10.0
_OF_LARGEST = 0.2
_MOST_JUMPS = 3
_PAUSE_SHARE = 0.9


class Jump(msgspec.Struct, frozen=True, kw_only=True):
    """One jump of a rank's clock."""

    after_ns: int  # End of the last collective before it, own clock.
    before_ns: int  # End of the first collective after it.
    by_ns: int  # How far it jumps; negative for backward.


def may_have_jumped(matches: CollectiveMatches, clock: ClockAlignment) -> bool:
    """Whether so much is unexplained that jumps are worth a search; wrong numbers prove nothing."""
    ratio = matches.matched_ratio
    return not matches.misnumbered_ranks and (
        (ratio is not None and ratio < _MATCHED)
        or bool((clock.residual_ns > _SUSPECT_NS).any())
        or clock.num_violations > 0
    )


def without_jumps(ranks: Sequence[Rank]) -> tuple[tuple[Rank, ...], list[Gap]]:
    """The ranks with jumps forward taken out, and without ranks whose clock jumps otherwise."""
    mended: dict[int, Rank] = {}
    lost: dict[int, int] = {}
    gaps = []
    for position, jumps in find_jumps(ranks).items():
        rank = ranks[position]
        made = _mended(rank, jumps)
        if made is None:
            lost[rank.rank] = max((jump.by_ns for jump in jumps), key=abs)
            continue
        mended[rank.rank] = made
        gaps.append(_gap("clock-jump", rank.rank, jumps[0].by_ns, "distprof takes the jump out."))
    keeps = 2 * len(lost) < len(ranks)
    does = "distprof leaves the rank out." if keeps else "times of that rank are unreliable."
    gaps += [_gap("clock-jumps" if keeps else "clock-jump", r, ns, does) for r, ns in lost.items()]
    kept = [mended.get(one.rank, one) for one in ranks if not (keeps and one.rank in lost)]
    return tuple(kept), gaps


def _gap(what: str, rank: int, by_ns: int, does: str) -> Gap:
    way = "forward" if by_ns > 0 else "back"
    size = format_duration(abs(by_ns))
    who = name_ranks([rank])
    return Gap(
        what=what,
        message=f"The clock of {who} jumps {way} by {size} inside the recording: its collectives "
        f"end together with those of other ranks before that moment only. {does.capitalize()}",
        ranks=(rank,),
        fact=f"clock of {who} jumps {way} by {size}",
    )


# Finding jumps ------------------------------------------------------------------------------------


def find_jumps(ranks: Sequence[Rank]) -> dict[int, list[Jump]]:
    """Position in ``ranks`` to the jumps of that rank's clock, in order of time.

    Ranks without GPUs are not judged: CPUs notice the end of a collective at any time after it.
    """
    on_gpu = [i for i, rank in enumerate(ranks) if rank.device.name != "cpu"]
    parts = [_timed(ranks[i]) for i in on_gpu]
    if sum(len(keys) > 1 for keys, _ in parts) < 2:
        return {}
    _, code = encode(np.concatenate([keys for keys, _ in parts]))
    who = np.repeat(np.arange(len(parts)), [len(keys) for keys, _ in parts])
    end = np.concatenate([ends for _, ends in parts])
    order = np.argsort(code, kind="stable")
    shared = np.bincount(code)[code] > 1
    code, who, end = (values[order][shared[order]] for values in (code, who, end))
    if not len(code):
        return {}
    found = {}
    deviation, middle = _deviations(encode(code)[1], who, end)
    for part in range(len(parts)):
        rows = np.flatnonzero(who == part)
        rows = rows[np.argsort(middle[rows], kind="stable")]
        if jumps := _jumps(deviation[rows], end[rows]):
            found[on_gpu[part]] = jumps
    if len(parts) > 2:
        return found
    # of two ranks that disagree, the one whose clock can have jumped forward
    forward = {i: jumps for i, jumps in found.items() if all(jump.by_ns > 0 for jump in jumps)}
    for i, jumps in forward.items():
        if _mended(ranks[i], jumps) is not None:
            return {i: jumps}
    return {i: jumps for i, jumps in found.items() if i not in forward}


def _timed(rank: Rank) -> tuple[Int64Array, Int64Array]:
    """Keys that are equal for the members of one collective, and their ends, own clock."""
    table = rank.collectives
    rows = np.flatnonzero(np.isin(table["kind"], TIMED) & table["is_timed"])
    group, members = table.coded("group"), table.coded("group_ranks")
    shape = len(members.values) + 1
    pair = group.codes.astype(np.int64)[rows] * shape + members.codes[rows]
    label, seq = step_labels(rank)[rows], table["seq"][rows]
    label = np.where(seq >= 0, NO_STEP, label)
    kind = table["kind"][rows].astype(np.int64)
    _, place = encode(_mixed(pair, kind, label))
    order = np.argsort(place, kind="stable")
    begins, counts = runs_of(place[order])
    occurrence = np.empty(len(place), np.int64)
    occurrence[order] = np.arange(len(place)) - np.repeat(begins, counts)
    number = np.where(seq >= 0, seq, occurrence)
    pairs, code = encode(pair)
    names = [f"{group.values[p // shape]}|{members.values[p % shape]}" for p in pairs.tolist()]
    named = np.array([crc32(name.encode()) for name in names], np.int64)[code]
    keys = _mixed(named, kind, label, number)
    _, first = np.unique(keys, return_index=True)
    first.sort()
    return keys[first], table["end_ns"][rows][first]


def _mixed(*columns: Int64Array) -> Int64Array:
    """One hash per row, 62 bits."""
    mixed = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        mixed = (mixed ^ column.astype(np.int64).view(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    hashed: Int64Array = (mixed >> np.uint64(2)).astype(np.int64)
    return hashed


def _deviations(
    code: Int64Array, who: Int64Array, end: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Distance of each end from the median of its collective, and that median.

    Constant offsets between ranks are taken out first.
    """
    offset = np.zeros(int(who.max()) + 1, np.int64)
    distance = middle = end
    for _ in range(3):
        own = end - offset[who]
        order = np.lexsort((own, code))
        first, counts = runs_of(code[order])
        low, high = own[order][first + (counts - 1) // 2], own[order][first + counts // 2]
        middle = (low + (high - low) // 2)[code]
        distance = own - middle
        for part in range(len(offset)):
            rows = who == part
            if rows.any():
                offset[part] += int(np.median(distance[rows]))
    return distance, middle


def _jumps(deviation: Int64Array, end: Int64Array) -> list[Jump]:
    """Lasting changes of the deviation, in order of time; empty if there are none or many."""
    if len(deviation) < 2:
        return []
    change = np.diff(deviation)
    size = np.abs(change)
    usual = float(np.percentile(size, 75)) if len(size) > 3 else 0.0
    at = np.flatnonzero(size > max(_LEAST_NS, _TIMES_USUAL * usual, _OF_LARGEST * size.max()))
    if not 0 < len(at) <= _MOST_JUMPS:
        return []
    bounds = [0, *(at + 1).tolist(), len(deviation)]
    levels = [int(np.median(deviation[a:b])) for a, b in pairwise(bounds)]
    jumps = []
    for i, row in enumerate(at.tolist()):
        by_ns = levels[i + 1] - levels[i]
        if abs(by_ns) < max(_LEAST_NS, _PAUSE_SHARE * size[row]):
            return []
        jumps.append(Jump(after_ns=int(end[row]), before_ns=int(end[row + 1]), by_ns=by_ns))
    if len(jumps) > 1 and abs(levels[-1] - levels[0]) < _LEAST_NS:
        return []  # it comes back: a few odd collectives, no jump
    return jumps


# Taking jumps out ---------------------------------------------------------------------------------


class ShiftedTables(msgspec.Struct, frozen=True):
    """The tables of another :class:`~distprof.run.run.TableSource` without jumps of the clock."""

    source: TableSource  # The tables as recorded.
    at_ns: tuple[int, ...]  # First moment after each jump, own clock.
    by_ns: tuple[int, ...]  # What to subtract from then on.

    @property
    def path(self) -> str:
        """The cache file of the tables as recorded."""
        return self.source.path

    def light(self) -> ShiftedTables:
        """The same for transfer to another machine."""
        light = getattr(self.source, "light", lambda: self.source)
        return ShiftedTables(light(), self.at_ns, self.by_ns)

    def load(self, *, every_host_row: bool = False) -> RankTables:
        """Read the tables and shift them."""
        tables = self.source.load(every_host_row=every_host_row)
        names = ("activity", "host", "collectives", "steps")
        return replace(tables, **{name: self.shifted(getattr(tables, name)) for name in names})

    def shifted(self, table: Table) -> Table:
        """A table without the jumps."""
        names = [name for name in table.schema.names if name.endswith("_ns")]
        return table.with_columns(**{name: self.moved(table[name]) for name in names})

    def moved(self, times: Int64Array) -> Int64Array:
        """Times without the jumps; absent ones stay absent."""
        total = np.concatenate(([0], np.cumsum(self.by_ns)))
        shift = total[np.searchsorted(np.array(self.at_ns), times, side="right")]
        moved: Int64Array = np.where(times == ABSENT, ABSENT, times - shift)
        return moved


def _mended(rank: Rank, jumps: Sequence[Jump]) -> Rank | None:
    """The rank without jumps forward; None if one is backward or left no pause."""
    if any(jump.by_ns < 0 for jump in jumps):
        return None
    tables = rank.tables.load()
    starts = np.sort(np.concatenate([tables.activity["start_ns"], tables.host["start_ns"]]))
    at = []
    for jump in jumps:  # the recording resumes after the longest pause around the jump
        low, high = np.searchsorted(starts, [jump.after_ns - 2 * jump.by_ns, jump.before_ns])
        low = max(int(low) - 1, 0)
        pauses = np.diff(starts[low : int(high) + 1])
        if pauses.max(initial=0) < _PAUSE_SHARE * jump.by_ns:
            return None
        at.append(int(starts[low + int(pauses.argmax()) + 1]))
    source = ShiftedTables(rank.tables, tuple(at), tuple(jump.by_ns for jump in jumps))
    bounds = source.moved(np.array([rank.capture_start_ns, rank.capture_end_ns]))
    return replace(
        rank,
        capture_start_ns=int(bounds[0]),
        capture_end_ns=int(bounds[1]),
        steps=source.shifted(rank.steps),
        collectives=source.shifted(rank.collectives),
        tables=source,
    )
