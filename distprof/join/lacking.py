"""Recordings that cannot be compared with those of other ranks: copies, other units, clock jumps.

If the ends of a rank's collectives agree with those of the others before some moment and differ by
a constant after it, its clock jumped. A jump forward leaves a pause of that length, so it can be
taken out. A jump backward mixes what happened before and after it, so the rank is left out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from zlib import crc32

import msgspec
import numpy as np
from msgspec.structs import replace

from distprof.artefacts.record import Gap, grouped
from distprof.join.instances import NO_STEP, step_labels
from distprof.join.invariants import broken
from distprof.join.shifts import TIMED
from distprof.run.run import ClockAlignment, CollectiveMatches, Rank, TablesOf
from distprof.run.tables import RankTables, distinct, encode, numbers_in, runs_of
from distprof.run.topology import ProcessGroup
from distprof.schema import ABSENT, Floats, Int64Array, Table
from distprof.terms import StepSource
from distprof.units import NS_PER_US, capitalized, fold_ranks, format_duration, name_ranks

_FACTOR = 30.0
"""Like kernels differ by less than this between ranks, even on a throttled GPU."""

_AGREEMENT = 0.9
"""Share of kernel names that must show another unit."""

_MIN_LAUNCHES = 8
_IMPOSSIBLE = 0.3
"""Share of impossibly long activities from which all durations are in another unit."""


def comparable_ranks(ranks: Sequence[Rank]) -> tuple[tuple[Rank, ...], list[Gap]]:
    """Ranks without copies of others, and without those whose times mean nothing to others.

    Times mean nothing if they are in another unit, or if the clock jumped back.
    """
    kept, gaps = _without_copies(ranks)
    kept, others = _in_one_unit(kept)
    gaps += others
    in_order = tuple(rank for rank in kept if "clock-jumps-back" not in rank.quality.counts)
    if 2 * len(in_order) <= len(kept):
        return kept, gaps
    gaps += [gap for gap in broken(kept) if gap.what == "clock-jumps-back"]
    return in_order, gaps


def _without_copies(ranks: Sequence[Rank]) -> tuple[tuple[Rank, ...], list[Gap]]:
    by_content = grouped([(rank.quality.content or f"rank {rank.rank}", rank) for rank in ranks])
    copies = {r.rank: same[0].rank for same in by_content.values() for r in same[1:]}
    if not copies:
        return tuple(ranks), []
    who, of = name_ranks(copies), name_ranks(set(copies.values()))
    repeats, is_left = ("repeat", "are") if len(copies) > 1 else ("repeats", "is")
    gap = Gap(
        what="equal-ranks",
        message=f"The trace of {who} {repeats} that of {of} to the nanosecond, under another "
        f"rank's number: {who} {is_left} left out.",
        ranks=tuple(copies),
        fact=f"{who} {repeats} {of}",
    )
    return tuple(rank for rank in ranks if rank.rank not in copies), [gap]


def _in_one_unit(ranks: Sequence[Rank]) -> tuple[tuple[Rank, ...], list[Gap]]:
    means = grouped(
        [
            (name, total_ns / count)
            for rank in ranks
            for name, (count, total_ns) in rank.quality.paces.items()
            if count >= _MIN_LAUNCHES
        ]
    )
    usual = {name: float(np.median(each)) for name, each in means.items() if len(each) > 1}
    odd = [rank.rank for rank in ranks if _has_other_unit(rank, usual)]
    if not odd or 2 * len(odd) > len(ranks):
        return tuple(ranks), []
    who = name_ranks(odd)
    is_left = "are" if len(odd) > 1 else "is"
    gap = Gap(
        what="other-units",
        message=f"Kernels of {who} last more than {_FACTOR:.0f} times as long or as short as the "
        "same kernels of other ranks, or than their stream allows, as if in another unit of time: "
        f"{who} {is_left} left out.",
        ranks=tuple(odd),
        fact=f"times of {who} unreadable",
    )
    return tuple(rank for rank in ranks if rank.rank not in odd), [gap]


def _has_other_unit(rank: Rank, usual: Mapping[int, float]) -> bool:
    long = rank.quality.counts.get("overlong-activities")
    if long is not None and long.count > _IMPOSSIBLE * long.of:
        return True
    ratios = np.array(
        [
            max(total_ns / count, 1.0) / max(usual[name], 1.0)
            for name, (count, total_ns) in rank.quality.paces.items()
            if name in usual and count >= _MIN_LAUNCHES
        ]
    )
    others = (ratios > _FACTOR, ratios < 1 / _FACTOR)
    return len(ratios) > 0 and any(bool(other.mean() >= _AGREEMENT) for other in others)


RAGGED_RATIO = 0.2
"""Share of the steps that a rank may lack because its profiler started later."""


def lacking_steps(ranks: Sequence[Rank]) -> list[Gap]:
    """Ranks without some of the steps that most ranks recorded."""
    numbered = (StepSource.PROFILER_STEP, StepSource.DEVICE)
    have = {
        rank.rank: {*rank.steps["step"][rank.steps["complete"]].tolist()}
        for rank in ranks
        if rank.step_source in numbered
    }
    counts = Counter(step for steps in have.values() for step in steps)
    usual = {step for step, count in counts.items() if 2 * count >= len(have)}
    lacking = {rank: len(usual - steps) for rank, steps in have.items()}
    allowed = RAGGED_RATIO * len(usual)
    lacking = {rank: count for rank, count in lacking.items() if count > allowed}
    if not lacking or len(have) < 2:
        return []
    who, most = name_ranks(lacking), max(lacking.values())
    lacks = "lack" if len(lacking) > 1 else "lacks"
    return [
        Gap(
            what="lacking-steps",
            message=f"The recording of {who} {lacks} {most:,} of {len(usual):,} steps that most "
            "ranks recorded: they are left out on all ranks.",
            ranks=tuple(lacking),
            fact=f"{who} {lacks} {most:,} of {len(usual):,} steps",
        )
    ]


FEW_KERNELS = 0.25
"""Kernels of a rank, relative to the least of all others, below which some are missing."""

FEWER_IN_STEP = 0.9
"""Kernels of a rank in a step, relative to its other steps, below which some are missing."""

EQUAL_STEPS = 0.01
"""Deviation of the other ranks' kernels in that step up to which the program did not change."""

FEW_RANGES = 0.75
"""Operators and ranges of a rank, relative to the least of all others, below which some are
missing, if it launches about as much as others."""

AS_MUCH = 0.9
"""Launches of a rank, relative to the least of all others, from which it launches as much."""


def lacking_rows(ranks: Sequence[Rank], named: Collection[int]) -> list[Gap]:
    """Ranks with far fewer kernels, operators or names in common than all others, or in some steps.

    Rows that are lost with all that belongs to them leave nothing on their own rank that shows it.
    Ranks of whose damage something is ``named`` already are left out.
    """
    known = [rank for rank in ranks if rank.quality.kernels]
    if len(known) < 3:  # of two, either may be the usual one
        known = []
    return [
        Gap(
            what="lacking-rows",
            message=f"{capitalized(fact)}: shares of the step and causes of lateness are "
            "uncertain there.",
            ranks=(rank,),
            fact=fact,
            hides_cause=True,
        )
        for rank, fact in (
            *_fewer_kernels(known),
            *_fewer_ranges(known),
            *_other_names(known),
            *_no_collectives(ranks),
        )
        if rank not in named
    ]


def _fewer_kernels(ranks: Sequence[Rank]) -> Iterator[tuple[int, str]]:
    counted = [rank.quality.kernels for rank in ranks]
    steps = sorted(set.intersection(*map(set, counted))) if counted else []
    if not steps:
        return
    count = np.array([[held[step] for step in steps] for held in counted], np.float64)
    usual = np.median(count, axis=1)
    least = _least_of_others(usual)
    relative = count / np.maximum(usual, 1)[:, None]
    same = -_least_of_others(-abs(relative - 1)) <= EQUAL_STEPS
    fewer = same & (relative < FEWER_IN_STEP)
    for row, rank in enumerate(ranks):
        lost = [steps[at] for at in np.flatnonzero(fewer[row])]
        if usual[row] < FEW_KERNELS * least[row]:
            share = f"{usual[row]:,.0f} kernels per step, others at least {least[row]:,.0f}"
            yield rank.rank, f"rank {rank.rank} has {share}"
        elif lost and usual[row] > 0:
            where = f"step{'s' if len(lost) > 1 else ''} {fold_ranks(lost)}"
            yield rank.rank, f"kernels of rank {rank.rank} missing in {where}"


def _least_of_others(values: Floats) -> Floats:
    """The minimum of all other rows, for each of two or more rows."""
    low = np.partition(values, 1, axis=0)
    alone = np.arange(len(values)).reshape(-1, *[1] * (values.ndim - 1)) == values.argmin(axis=0)
    least: Floats = np.where(alone, low[1], low[0])
    return least


def _fewer_ranges(ranks: Sequence[Rank]) -> Iterator[tuple[int, str]]:
    """Ranks with fewer operators that launch as much: a stage with fewer layers launches less."""
    if not ranks:
        return
    ranges, launches = (
        np.array([getattr(rank.quality, name) for rank in ranks], np.float64)
        for name in ("num_ranges", "num_launches")
    )
    few = ranges < FEW_RANGES * _least_of_others(ranges)
    few &= launches >= AS_MUCH * _least_of_others(launches)
    for at in np.flatnonzero(few).tolist():
        yield ranks[at].rank, f"operators of rank {ranks[at].rank} missing"


def _other_names(ranks: Sequence[Rank]) -> Iterator[tuple[int, str]]:
    """Ranks without a name that all others share, if no name is shared by all."""
    count = Counter(name for rank in ranks for name in rank.quality.paces)
    if len(ranks) in count.values():
        return
    of_others = {name for name, number in count.items() if number == len(ranks) - 1}
    for rank in ranks:
        if rank.quality.paces and of_others - rank.quality.paces.keys():
            yield rank.rank, f"kernels of rank {rank.rank} have other names than all others"


def _no_collectives(ranks: Sequence[Rank]) -> Iterator[tuple[int, str]]:
    """GPU ranks without any collective, or any of a group of theirs that other ranks use."""
    on_gpus = [rank for rank in ranks if rank.device.name != "cpu" and rank.quality.paces]
    used: dict[int, set[str]] = {}
    for rank in on_gpus:
        names = rank.collectives.coded("group")
        used[rank.rank] = {names.values[code] for code in distinct(names.codes).tolist()}
    by_any = frozenset[str]().union(*used.values())
    for rank in on_gpus:
        lacking = len({group.name for group in rank.groups} & (by_any - used[rank.rank]))
        if by_any and not used[rank.rank]:
            yield rank.rank, f"rank {rank.rank} has no collectives"
        elif lacking:
            yield rank.rank, f"rank {rank.rank} has no collectives of {lacking} of its groups"


def lacking_collectives(
    ranks: Sequence[Rank], steps: Sequence[int], groups: Iterable[ProcessGroup]
) -> list[Gap]:
    """GPU ranks with fewer collectives of a group in a step than other members of that group."""
    members = {fold_ranks(group.ranks): group.ranks for group in groups}
    # symmetric collectives of each rank, by name and members of the group, and step
    counts: dict[tuple[str, str, int], Counter[int]] = defaultdict(Counter)
    present = set()
    for rank in ranks:
        if rank.step_source is not StepSource.PROFILER_STEP or rank.device.name == "cpu":
            continue
        present.add(rank.rank)
        table, label = rank.collectives, step_labels(rank)
        rows = np.flatnonzero(np.isin(table["kind"], TIMED) & np.isin(label, steps))
        columns = (table.coded(name).take(rows).decode() for name in ("group", "group_ranks"))
        for key, count in Counter(zip(*columns, label[rows].tolist(), strict=True)).items():
            counts[key][rank.rank] = count
    lacking: Counter[int] = Counter()
    total = 0
    for (_, of, _), each in counts.items():
        most = max(each.values())
        total += most
        expected = present.intersection(members.get(of, ())) | each.keys()
        lacking.update({rank: most - each[rank] for rank in expected if each[rank] < most})
    if not lacking:
        return []
    who, lacks = name_ranks(lacking), "lack" if len(lacking) > 1 else "lacks"
    share = f"{max(lacking.values()):,} of {total:,} collectives"
    return [
        Gap(
            what="lacking-collectives",
            message=f"{who.capitalize()} {lacks} {share} that other ranks of the same groups "
            "recorded in the same steps: for these, waiting and transfer cannot be separated.",
            ranks=tuple(sorted(lacking)),
            fact=f"{who} {lacks} {share}",
        )
    ]


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
    number = np.where(seq >= 0, seq, numbers_in(place))
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
    return (mixed >> np.uint64(2)).astype(np.int64)


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


class ShiftedTables(TablesOf, frozen=True):
    """The tables of another :class:`~distprof.run.run.TableSource` without jumps of the clock."""

    at_ns: tuple[int, ...]  # First moment after each jump, own clock.
    by_ns: tuple[int, ...]  # What to subtract from then on.

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
        return np.where(times == ABSENT, ABSENT, times - shift)


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
