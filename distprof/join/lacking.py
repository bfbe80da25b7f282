"""Invariants across ranks: no two are equal, and kernels take about as long on all of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np

from distprof.join.instances import step_labels
from distprof.join.invariants import broken
from distprof.join.shifts import TIMED
from distprof.run.run import Gap, Rank
from distprof.run.tables import distinct
from distprof.run.topology import ProcessGroup
from distprof.schema import Floats
from distprof.terms import StepSource
from distprof.units import capitalized, fold_ranks, name_ranks

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
    by_content: dict[str, list[Rank]] = defaultdict(list)
    for rank in ranks:
        by_content[rank.quality.content or f"rank {rank.rank}"].append(rank)
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
    means: dict[int, list[float]] = defaultdict(list)  # of each kernel, on two or more ranks
    for rank in ranks:
        for name, (count, total_ns) in rank.quality.paces.items():
            if count >= _MIN_LAUNCHES:
                means[name].append(total_ns / count)
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
