"""Invariants of sound recordings, as data: each a count, a bound, and a sentence.

A recording that breaks one is repaired, or loses what broke it. The report's evidence line says so,
because numbers and causes may differ from those of the sound recording. Across ranks, no two are
equal, and kernels take about as long on all of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from distprof.join.instances import step_labels
from distprof.join.shifts import TIMED
from distprof.run.run import Count, Gap, Rank
from distprof.terms import StepSource
from distprof.units import name_ranks


class Invariant(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is true of every rank of a sound recording."""

    key: str  # Stable name, the ``what`` of the gap.
    # Few words for the evidence line. ``{count}`` and ``{of}`` are those of all ranks that break
    # it, ``{ranks}`` their names.
    fact: str
    message: str  # Sentence that says what was found and done, with the same fields.
    bound: float = 0.0  # Acceptable share of the rows that break it, 0 to 1.
    # Whether the causes of lateness of a rank that breaks it cannot be known.
    hides_cause: bool = False

    def is_broken(self, found: Count) -> bool:
        """Whether more rows break it than may."""
        return found.count > self.bound * found.of


INVARIANTS: Mapping[str, Invariant] = {
    one.key: one
    for one in (
        Invariant(
            key="launches-without-kernels",
            fact="{count} of {of} launches of {ranks} without a kernel",
            message="{count} of {of} kernel launches of {ranks} have no kernel in the trace, so "
            "computation is missing there: shares of the step are uncertain, and the cause of "
            "lateness is unknown.",
            bound=0.005,
            hides_cause=True,
        ),
        Invariant(
            key="kernels-without-launches",
            fact="{count} of {of} kernels of {ranks} without a launch",
            message="{count} of {of} kernels of {ranks} have no launch in the trace, although "
            "kernels before and after them have: why the GPU idles is uncertain there.",
            bound=0.02,
            hides_cause=True,
        ),
        Invariant(
            key="clock-jumps-back",
            fact="clock of {ranks} jumps back",
            message="Launches of {ranks} go back in time {count} times, in the order of their ids: "
            "the clock jumped back inside the recording, and what happened before and after it is "
            "mixed.",
            hides_cause=True,
        ),
        Invariant(
            key="repeated-activities",
            fact="{count} GPU activities of {ranks} there twice",
            message="{count} of {of} GPU activities of {ranks} are in the trace twice: distprof "
            "counts them once.",
        ),
        Invariant(
            key="impossible-durations",
            fact="{count} impossible durations on {ranks}",
            message="{count} of {of} events of {ranks} have a negative or missing duration, and "
            "count as instants.",
            hides_cause=True,
        ),
        Invariant(
            key="overlong-activities",
            fact="{count} impossible durations on {ranks}",
            message="{count} of {of} GPU activities of {ranks} last longer than the recording, or "
            "than the next ones on their stream allow: distprof ends them there.",
            hides_cause=True,
        ),
        Invariant(
            key="empty-step-ends",
            fact="{count} steps of {ranks} recorded in part",
            message="In {count} of {of} steps of {ranks}, nothing is recorded after the step mark "
            "begins or before it ends: events are missing, or the mark is too long.",
        ),
        Invariant(
            key="overlapping-steps",
            fact="{count} step marks of {ranks} overlap",
            message="{count} of {of} step marks of {ranks} overlap the next one: distprof ends "
            "them where it begins, so step times are uncertain.",
        ),
    )
}
"""By key. Bounds are above what undamaged real traces show."""


def broken(ranks: Iterable[Rank]) -> Iterator[Gap]:
    """A gap for each invariant that the events of one or more ranks break."""
    counted = [(rank.rank, rank.quality.counts) for rank in ranks]
    for key, invariant in INVARIANTS.items():
        found = {
            rank: counts[key]
            for rank, counts in counted
            if key in counts and invariant.is_broken(counts[key])
        }
        if found:
            yield gap_of(invariant, found)


def gap_of(invariant: Invariant, found: Mapping[int, Count]) -> Gap:
    """The gap of an invariant that these ranks break."""
    ranks: Sequence[int] = sorted(found)
    words = {
        "count": f"{sum(one.count for one in found.values()):,}",
        "of": f"{sum(one.of for one in found.values()):,}",
        "ranks": name_ranks(ranks),
    }
    return Gap(
        what=invariant.key,
        message=invariant.message.format_map(words),
        ranks=tuple(ranks),
        fact=invariant.fact.format_map(words),
        hides_cause=invariant.hides_cause,
    )


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
    kept, back = _in_order(kept)
    return kept, [*gaps, *others, *back]


def _in_order(ranks: Sequence[Rank]) -> tuple[tuple[Rank, ...], list[Gap]]:
    kept = tuple(rank for rank in ranks if "clock-jumps-back" not in rank.quality.counts)
    if 2 * len(kept) <= len(ranks):
        return tuple(ranks), []
    return kept, [gap for gap in broken(ranks) if gap.what == "clock-jumps-back"]


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
    usual = _usual_paces(ranks)
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


def _usual_paces(ranks: Sequence[Rank]) -> Mapping[int, float]:
    """Median over ranks of each kernel's mean duration, for kernels of two or more ranks."""
    means: dict[int, list[float]] = defaultdict(list)
    for rank in ranks:
        for name, (count, total_ns) in rank.quality.paces.items():
            if count >= _MIN_LAUNCHES:
                means[name].append(total_ns / count)
    return {name: float(np.median(each)) for name, each in means.items() if len(each) > 1}


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
    if not len(ratios):
        return False
    return bool(
        (ratios > _FACTOR).mean() >= _AGREEMENT or (ratios < 1 / _FACTOR).mean() >= _AGREEMENT
    )


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


def lacking_collectives(ranks: Sequence[Rank], steps: Sequence[int]) -> list[Gap]:
    """GPU ranks with fewer collectives of a group in a step than other members of that group."""
    counts: dict[tuple[str, str, int], dict[int, int]] = defaultdict(dict)
    for rank in ranks:
        if rank.step_source is StepSource.PROFILER_STEP and rank.device.name != "cpu":
            for key, count in _by_group_and_step(rank, steps).items():
                counts[key][rank.rank] = count
    lacking: Counter[int] = Counter()
    total = 0
    for each in counts.values():
        most = max(each.values())
        total += most
        lacking.update({rank: most - count for rank, count in each.items() if count < most})
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


def _by_group_and_step(rank: Rank, steps: Sequence[int]) -> Counter[tuple[str, str, int]]:
    """Number of symmetric collectives by group name, members and step."""
    table, label = rank.collectives, step_labels(rank)
    rows = np.flatnonzero(np.isin(table["kind"], TIMED) & np.isin(label, steps))
    names, members = (table.coded(name).take(rows).decode() for name in ("group", "group_ranks"))
    return Counter(zip(names, members, label[rows].tolist(), strict=True))
