"""Select the files of one recording of one job, and the steps complete on every rank."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
from msgspec.structs import replace

from distprof.artefacts.record import Gap, grouped
from distprof.errors import DistprofError
from distprof.join.instances import NO_STEP, step_labels
from distprof.join.waits import (
    MemberBlocks,
    comparable_instances,
    domain_of_ranks,
    member_to_common,
    positions_of,
)
from distprof.run.run import CaptureWindow, ClockAlignment, CollectiveMatches, Rank
from distprof.schema import ABSENT, Coded, Int64Array, Table
from distprof.terms import CollectiveKind, StepSource
from distprof.units import NS_PER_S, fold_ranks, format_duration, name_ranks, verb

CLOCK_TOLERANCE_NS = 60 * NS_PER_S
"""Captures of different hosts that are farther apart are separate recordings. Neither the clocks of
a cluster nor the starts of its profilers differ that much."""

_MAX_NAMED = 5
_Selection: TypeAlias = "tuple[list[Rank], list[Gap]]"


def same_run(ranks: Sequence[Rank]) -> tuple[tuple[Rank, ...], tuple[Gap, ...]]:
    """The largest set of ranks, ascending, that can come from one recording of one job.

    ``rank`` is ABSENT if unknown. Gaps name all data skipped or assumed.
    """
    gaps: list[Gap] = []
    kept = list(ranks)
    for step in (_one_job, _drop_copies, _one_recording, _number_unknown, _each_rank_once):
        kept, found = step(kept)
        gaps += found
    return tuple(sorted(kept, key=lambda rank: rank.rank)), tuple(gaps)


def _one_job(ranks: list[Rank]) -> _Selection:
    """Ranks with the most frequent world size and backend, and those of unknown world size."""
    job_of = {id(r): (r.world_size, r.backend) for r in ranks if r.world_size is not None}
    counts = Counter(job_of.values())
    if len(counts) < 2:
        return ranks, []
    most = max(counts, key=lambda job: (counts[job], job))
    left = [rank for rank in ranks if job_of.get(id(rank), most) != most]
    kept = [rank for rank in ranks if job_of.get(id(rank), most) == most]
    sizes = ", ".join(sorted({f"{r.world_size} ({r.backend or 'backend unknown'})" for r in left}))
    message = (
        f"The files belong to {len(counts)} jobs: distprof analyses the {len(kept)} of world "
        f"size {most[0]} and skips {_files(left)} of world size {sizes}. Analyse the folder of "
        "one job at a time."
    )
    return kept, [Gap(what="mixed-runs", message=message, num_files=len(left))]


def _number_unknown(ranks: list[Rank]) -> _Selection:
    """Assign the lowest free ranks to files without a rank, in order of their paths."""
    unknown = sorted((rank for rank in ranks if rank.rank == ABSENT), key=lambda rank: rank.path)
    if not unknown:
        return ranks, []
    taken = {rank.rank for rank in ranks}
    free = (number for number in range(len(ranks) + len(taken)) if number not in taken)
    numbered = [replace(rank, rank=next(free)) for rank in unknown]
    kept = [rank for rank in ranks if rank.rank != ABSENT] + numbered
    if len(ranks) == 1:
        return kept, []
    message = (
        f"{_files(unknown)} give no rank, neither in the file nor in its name: distprof numbers "
        f"them {fold_ranks(rank.rank for rank in numbered)} in the order of their paths."
    )
    gap = Gap(what="rank-unknown", message=message, ranks=tuple(r.rank for r in numbered))
    return kept, [gap]


def _drop_copies(ranks: list[Rank]) -> _Selection:
    by_outline: dict[tuple[object, ...], list[Rank]] = defaultdict(list)
    copies: list[Rank] = []
    for rank in ranks:
        # these agree in files of the same content, and rarely for different ranks
        counts = len(rank.collectives), len(rank.steps), rank.quality.num_events
        times = rank.capture_start_ns, rank.capture_end_ns
        seen = by_outline[(rank.rank, *times, rank.host, *counts)]
        is_copy = any(_are_copies(rank, other) for other in seen)
        (copies if is_copy else seen).append(rank)
    if not copies:
        return ranks, []
    left = {id(rank) for rank in copies}
    does, are = verb(copies, "repeat"), verb(copies, "are")
    message = f"{_files(copies)} {does} the content of another file and {are} skipped."
    kept = [rank for rank in ranks if id(rank) not in left]
    return kept, [Gap(what="duplicate-files", message=message)]


def _are_copies(one: Rank, other: Rank) -> bool:
    """Whether two files hold the same events; in all else, simulated ranks can agree as well."""
    if not _same_rows(one.collectives, other.collectives) or not _same_rows(one.steps, other.steps):
        return False
    try:
        tables = one.tables.load(), other.tables.load()
    except (DistprofError, OSError, ValueError, EOFError):
        return False  # keep both; measuring them reports the unreadable file
    pairs = ((getattr(part, name) for part in tables) for name in ("activity", "host"))
    return all(_same_rows(*pair) for pair in pairs)


def _same_rows(one: Table, other: Table) -> bool:
    if len(one) != len(other):
        return False
    for column in one.schema:
        if column.dtype == "category":
            both = Coded.concat([one.coded(column.name), other.coded(column.name)])
            first, second = np.split(both.codes, 2)
        else:
            first, second = one[column.name], other[column.name]
        if not np.array_equal(first, second):
            return False
    return True


def _one_recording(ranks: list[Rank]) -> _Selection:
    """Of several recordings far apart in time, the one with the most ranks; the newest on a tie."""
    clusters = _clusters([rank for rank in ranks if rank.has_epoch], CLOCK_TOLERANCE_NS)
    if len(clusters) < 2:
        return ranks, []
    best = _largest(clusters)
    left = [rank for cluster in clusters if cluster is not best for rank in cluster]
    count = _num_ranks(best)
    kept_are = f"the {count} ranks recorded together" if count > 1 else "the newest"
    message = (
        f"The files are from {len(clusters)} recordings more than a minute apart: distprof "
        f"analyses {kept_are} and skips {_files(left)}. Ranks can be compared only over the same "
        "steps."
    )
    kept = [rank for rank in ranks if not rank.has_epoch] + best
    return kept, [Gap(what="other-recordings", message=message, num_files=len(left))]


def _each_rank_once(ranks: list[Rank]) -> _Selection:
    """One capture per rank: from the recording with the most ranks, otherwise the last to end."""
    by_rank = grouped([(rank.rank, rank) for rank in ranks])
    repeated = sorted(number for number, several in by_rank.items() if len(several) > 1)
    if not repeated:
        return ranks, []
    shared = {id(rank) for rank in _largest(_clusters(ranks, 0))}
    kept = [
        max(several, key=lambda r: (id(r) in shared, r.capture_end_ns, -r.capture_start_ns))
        for several in by_rank.values()
    ]
    chosen = {id(rank) for rank in kept}
    left = [rank for rank in ranks if id(rank) not in chosen]
    message = (
        f"There are several captures of {name_ranks(repeated)}: distprof analyses the newest "
        f"that most ranks share and skips {_files(left)}."
    )
    gap = Gap(what="duplicate-ranks", message=message, ranks=tuple(repeated), num_files=len(left))
    return kept, [gap]


def _clusters(ranks: Sequence[Rank], tolerance_ns: int) -> list[list[Rank]]:
    """Clusters of ranks whose captures are within the tolerance, directly or through others."""
    clusters: list[list[Rank]] = []
    reach = 0
    for rank in sorted(ranks, key=lambda rank: rank.capture_start_ns):
        if clusters and rank.capture_start_ns <= reach + tolerance_ns:
            clusters[-1].append(rank)
            reach = max(reach, rank.capture_end_ns)
        else:
            clusters.append([rank])
            reach = rank.capture_end_ns
    return clusters


def _num_ranks(ranks: Sequence[Rank]) -> int:
    """Number of distinct ranks; each file without a rank counts as one."""
    return len({rank.rank if rank.rank != ABSENT else rank.path for rank in ranks})


def _largest(clusters: list[list[Rank]]) -> list[Rank]:
    """The cluster with the most ranks, of several the newest."""
    return max(
        clusters, key=lambda ranks: (_num_ranks(ranks), max(r.capture_end_ns for r in ranks))
    )


def _files(ranks: Sequence[Rank]) -> str:
    paths = [rank.path for rank in ranks]
    more = len(paths) - _MAX_NAMED
    return ", ".join(paths[:_MAX_NAMED]) + (f" and {more} more files" if more > 0 else "")


# Steps disturbed by the start of the profiler -----------------------------------------------------

_TIMES_USUAL = 3
_SPREAD_TOLERANCE = 0.2
_WAITING_SHARE = 0.5
_SYMMETRIC = [kind for kind in CollectiveKind if kind.is_symmetric]


def find_start_waits(
    ranks: Sequence[Rank], matches: CollectiveMatches, clock: ClockAlignment
) -> Int64Array:
    """First collectives of a group that wait for the start of a rank's profiler, ascending.

    They are over three times as long as comparable ones, mostly waiting for the last member to
    start, and their members start as far apart as their captures do.
    """
    usable = comparable_instances(matches, clock) & np.isin(matches.kind, _SYMMETRIC)
    candidates = np.flatnonzero(usable)
    if not len(candidates):
        return candidates
    _, first_of_group = np.unique(matches.group[candidates], return_index=True)
    length = np.zeros(matches.count, np.int64)
    for block in MemberBlocks(matches, ranks, ["start_ns", "end_ns"]):
        start, end = block.columns
        length[block.instances] = np.maximum.reduceat(end - start, block.first)
    found = []
    for first in candidates[first_of_group].tolist():
        like = usable.copy()  # those of its group, kind and bytes
        for column in (matches.group, matches.kind, matches.bytes):
            like &= column == column[first]
        like[first] = False
        is_unusual = like.any() and length[first] > _TIMES_USUAL * np.median(length[like])
        if not is_unusual:
            continue
        members = [rank for rank, _ in _members(matches, ranks, first)]
        domain = domain_of_ranks(clock, np.array([rank.rank for rank in members]))
        own_opened = np.array([rank.capture_start_ns for rank in members], np.int64)
        opened = int(np.ptp(member_to_common(clock, domain, own_opened)))
        spread = int(np.ptp(_starts(matches, ranks, clock, first)))
        slack = max(_SPREAD_TOLERANCE * spread, float(clock.residual_ns[domain].max()))
        if spread > _WAITING_SHARE * length[first] and abs(spread - opened) <= slack:
            found.append(first)
    return np.array(sorted(found), dtype=np.int64)


def _members(
    matches: CollectiveMatches, ranks: Sequence[Rank], instance: int
) -> list[tuple[Rank, int]]:
    """The ranks of an instance, each with the row in its table."""
    part = slice(int(matches.offsets[instance]), int(matches.offsets[instance + 1]))
    positions = positions_of(ranks, matches.member_rank[part]).tolist()
    rows = matches.member_row[part].tolist()
    return [(ranks[position], row) for position, row in zip(positions, rows, strict=True)]


def _starts(
    matches: CollectiveMatches, ranks: Sequence[Rank], clock: ClockAlignment, instance: int
) -> Int64Array:
    """Starts of the members of an instance on the common clock."""
    members = _members(matches, ranks, instance)
    domain = domain_of_ranks(clock, np.array([rank.rank for rank, _ in members]))
    own = np.array([rank.collectives["start_ns"][row] for rank, row in members], np.int64)
    return member_to_common(clock, domain, own)


def _step_of(matches: CollectiveMatches, ranks: Sequence[Rank], instance: int) -> int:
    """The step that most members assign to the instance, NO_STEP if unknown."""
    labels = [int(step_labels(rank)[row]) for rank, row in _members(matches, ranks, instance)]
    known = [label for label in labels if label != NO_STEP]
    return max(set(known), key=known.count) if known else int(NO_STEP)


# Steps and captures -------------------------------------------------------------------------------

_FIX = (
    "start and stop the profiler at the same step on every rank, for example with "
    "torch.profiler.schedule, and use at least one warm-up step"
)


def find_window(
    ranks: Sequence[Rank], matches: CollectiveMatches, clock: ClockAlignment
) -> tuple[CaptureWindow, tuple[Gap, ...]]:
    """The steps to analyse, and problems with the capture windows; there is at least one rank."""
    marked = [rank for rank in ranks if rank.step_source is not StepSource.CAPTURE]
    kept, dropped = _common_steps(marked)
    start_waits = find_start_waits(ranks, matches, clock)
    disturbed = {_step_of(matches, ranks, instance) for instance in start_waits.tolist()}
    transients = tuple(sorted(disturbed.intersection(kept)))
    if len(transients) < len(kept):
        kept = tuple(step for step in kept if step not in transients)
        dropped |= dict.fromkeys(transients, "starting the profiler disturbs it")
    waits_ns = 0
    for instance in start_waits.tolist():
        if not kept or _step_of(matches, ranks, instance) in kept:
            starts = _starts(matches, ranks, clock, instance)
            waits_ns += int((starts.max() - starts).sum())
    window = CaptureWindow(
        steps=kept,
        dropped=dict(sorted(dropped.items())),
        overlap_ratio=_overlap_ratio(ranks, clock),
        transient_steps=tuple(step for step in transients if step in dropped),
        start_waits=start_waits,
        start_wait_ns=round(waits_ns / len(ranks) / max(len(kept), 1)),
    )
    return window, tuple(_window_gaps(ranks, marked, window))


def _common_steps(marked: Sequence[Rank]) -> tuple[tuple[int, ...], dict[int, str]]:
    """Steps complete on every rank with step marks, and the reason why each other step is not."""
    have: dict[int, set[int]] = defaultdict(set)
    cut: dict[int, list[int]] = defaultdict(list)
    for rank in marked:
        steps = rank.steps["step"].tolist()
        for step, whole in zip(steps, rank.steps["complete"].tolist(), strict=True):
            have[step].add(rank.rank)
            if not whole:
                cut[step].append(rank.rank)
    everyone = {rank.rank for rank in marked}
    kept, dropped = [], {}
    for step, present in have.items():
        reasons = []
        if step in cut:
            reasons.append(f"cut by the capture of {name_ranks(cut[step])}")
        if missing := everyone - present:
            reasons.append(f"not recorded by {name_ranks(missing)}")
        if reasons:
            dropped[step] = "; ".join(reasons)
        else:
            kept.append(step)
    return tuple(sorted(kept)), dropped


def _window_gaps(
    ranks: Sequence[Rank], marked: Sequence[Rank], window: CaptureWindow
) -> Iterator[Gap]:
    without = tuple(rank.rank for rank in ranks if rank.step_source is StepSource.CAPTURE)
    if marked and without:
        yield Gap(
            what="no-step-marks",
            message=f"Ranks {fold_ranks(without)} have no step marks: distprof uses the "
            "steps of the other ranks.",
            ranks=without,
            fact=f"{name_ranks(without)} without step marks",
        )
    if marked and not window.steps:
        num_some = len(window.dropped)
        yield Gap(
            what="no-common-step",
            message=f"No step is complete on all ranks ({num_some} are on some): {_FIX}.",
        )
    if window.overlap_ratio == 0:
        latest = max(ranks, key=lambda rank: rank.capture_start_ns)
        earliest = min(ranks, key=lambda rank: rank.capture_end_ns)
        apart = latest.capture_start_ns - earliest.capture_end_ns
        yield Gap(
            what="disjoint-windows",
            message=f"The captures do not overlap: rank {latest.rank} starts "
            f"{format_duration(apart)} after rank {earliest.rank} ends. Ranks cannot be compared: "
            f"{_FIX}.",
            ranks=(earliest.rank, latest.rank),
        )
    if window.start_wait_ns:
        where = f"In step {window.steps[0]}" if window.steps else "At the start"
        other = "No other step was recorded" if window.steps else "No steps were marked"
        yield Gap(
            what="start-transient",
            message=f"{where}, ranks reach their first collective as far apart as their captures "
            f"start. Its wait ({format_duration(window.start_wait_ns)}, mean of the ranks) may "
            f"come from starting the profiler, so no rank is blamed for it. {other}: {_FIX}.",
        )


def _overlap_ratio(ranks: Sequence[Rank], clock: ClockAlignment) -> float | None:
    """Time that all captures share over the time that any covers; None if clocks are unrelated."""
    connected = len(set(clock.component.tolist())) == 1
    if len(ranks) < 2 or not (connected or all(rank.has_epoch for rank in ranks)):
        return None
    own = [np.array([rank.capture_start_ns, rank.capture_end_ns], np.int64) for rank in ranks]
    captures = [clock.to_common(rank.rank, times) for rank, times in zip(ranks, own, strict=True)]
    start, end = np.stack(captures, axis=1)
    covered = int(end.max() - start.min())
    shared = int(end.min() - start.max())
    return max(0.0, shared / covered) if covered > 0 else None
