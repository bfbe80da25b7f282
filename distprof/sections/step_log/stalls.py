"""What the step log alone tells: periodic work, and ranks that are late in nearly all steps.

*Periodic work* is checkpoints, evaluation, and anything else that a loop does every k steps. A
period is accepted if nearly all of its steps are long and long steps at random positions would be
unlikely to fit it. Steps are measured on the CPU, which runs ahead of its GPU until it has to wait,
for example every ten steps to read the loss. Steps in which it gets ahead are short, and the one in
which it waits is long by the same time. Nothing stalls there, so a long step counts without the
lead that it uses up.

*Late ranks*: on CPU ranks the training thread sleeps while it waits for other ranks, so its CPU
time compares ranks without a trace; what slows all ranks down at once cancels out. On GPUs the
probes record how long each collective takes. The members of an all-reduce leave it together, so a
late one spends the least time in it. Durations alone bound the lateness
(:mod:`distprof.join.gpu_waits`), and a rank is late only if the lower bound says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from math import exp
from typing import NamedTuple

import numpy as np

from distprof.artefacts.record import grouped
from distprof.artefacts.records import CollectivesRecord
from distprof.artefacts.run_file import RunFile
from distprof.join.gpu_waits import (
    Lateness,
    Rests,
    bounded_groups,
    lateness_of,
    likely_excess,
    mean_without_longest,
    usual_difference,
    waits_of,
)
from distprof.schema import Bools, Floats, Int64Array
from distprof.sections.own_time import over_peers
from distprof.sections.shares import log_choose
from distprof.sections.step_log import LateInLog, LateOnGpu, PeriodicStall

_LONGER_RATIO = 0.25  # Excess over the median from which a step is long, as a share of the median,
_SPREADS = 6.0  # and in median absolute deviations. A long step exceeds both.
_RISES = 1.25
"""The last step before a long one over the first after it, if the launch queue fills in between."""
_STAYS = 0.75  # The step before that over the last one, if the queue was full in both
_NEARLY_FULL = 0.9
"""Duration of steps with a full queue over that of the last step before a long one, at least."""
_OF_HALF = 1.7  # Median absolute deviation of normal values over that of their lower half
_MOST_QUEUED = 32  # Steps whose work a launch queue may hold: it takes about a thousand launches
_NEARLY = 0.95  # Median step over the pace of the GPU, at least, if it is that pace
_SHORTEST_PERIOD = 3
_FEWEST = 4
_HELD_RATIO = 0.8
_MAX_CHANCE = 0.01
_MOST_KINDS = 3
_MOST_PERIODS_TRIED = 64


def find_periodic_stalls(
    step: Int64Array, duration_ns: Int64Array, *, has_gpus: bool = False
) -> tuple[PeriodicStall, ...]:
    """At most three periods of long steps, most expensive first; none without four stalls.

    Step numbers ascend and may have gaps (traced steps). Durations, int64, are those of the fastest
    rank, so a delay of a single rank does not count. With GPUs, the CPU may run ahead.
    """
    if len(step) < _FEWEST * _SHORTEST_PERIOD:
        return ()
    duration = np.asarray(duration_ns, dtype=np.float64)
    paced = _at_the_pace_of_gpus(step, duration) if has_gpus else None
    longer, is_long, num_steps, *_ = _excess(duration) if paced is None else paced
    found: list[PeriodicStall] = []
    unexplained = np.ones(len(step), dtype=np.bool_)  # steps that no earlier period explains
    while len(found) < _MOST_KINDS:
        due = _best_period(step[unexplained], is_long[unexplained])
        if due is None:
            break
        period, residue = due
        members = (
            unexplained & (step % period == residue) & (step >= step[unexplained & is_long][0])
        )
        stalled = members & is_long
        may_wait = (
            has_gpus
            and paced is None
            and np.median(longer[stalled]) <= _MOST_QUEUED * duration.mean()
        )
        found.append(
            PeriodicStall(
                period=period,
                first_step=int(step[stalled][0]),
                num_stalls=int(stalled.sum()),
                num_due=int(members.sum()),
                longer_ns=round(float(np.median(longer[stalled]))),
                cost_ns_per_step=round(float(longer[stalled].sum()) / num_steps),
                may_wait_for_gpu=bool(may_wait),
            )
        )
        unexplained &= ~stalled
    return tuple(sorted(found, key=lambda stall: -stall.cost_ns_per_step))


def find_waits(step: Int64Array, duration_ns: Int64Array) -> int | None:
    """Steps from one wait of the CPUs for their GPUs to the next; None: the median is right."""
    if len(step) < _FEWEST * _SHORTEST_PERIOD:
        return None
    paced = _at_the_pace_of_gpus(step, np.asarray(duration_ns, dtype=np.float64))
    if paced is None or np.median(duration_ns) >= _NEARLY * paced.pace_ns:
        return None
    return paced.period


class _Excess(NamedTuple):
    """Time of each step above the usual one."""

    longer: Floats  # In ns.
    is_long: Bools  # Which steps are long.
    num_steps: int  # Number of steps that were compared.
    period: int = 0  # Steps from one wait for the GPU to the next; 0 if none shows.
    pace_ns: float = 0.0  # Time of a step on the GPU; 0 if unknown.


def _excess(duration: Floats) -> _Excess:
    median = float(np.median(duration))
    longer = np.asarray(duration - median, dtype=np.float64)
    is_long = longer > max(_LONGER_RATIO * median, _SPREADS * _spread(duration))
    return _Excess(longer, is_long, len(duration))


def _spread(values: Floats) -> float:
    """Median absolute deviation."""
    return float(np.median(np.abs(values - np.median(values))))


def _at_the_pace_of_gpus(step: Int64Array, duration: Floats) -> _Excess | None:
    """The excess without the lead of the CPUs; None if the log does not show the GPUs' pace.

    After a long step, in which it waits, the CPU is faster than the GPU until the launch queue is
    full. From then on it is as fast as the GPU. A long step is longer by what all steps since the
    last one take above this pace.
    """
    due = _best_period(step, duration > (1 + _LONGER_RATIO) * duration.mean())
    if due is None:
        return None
    period = due[0]
    residues = step % period
    medians = {int(one): float(np.median(duration[residues == one])) for one in np.unique(residues)}
    ends = np.flatnonzero(step % period == max(medians, key=lambda residue: medians[residue]))
    ends = ends[ends > 1]
    after = ends[ends < len(step) - 1] + 1
    if not len(after):
        return None
    first, before, full = (float(np.median(duration[at])) for at in (after, ends - 2, ends - 1))
    if full < _RISES * first or before < _STAYS * full:
        return None
    starts = np.concatenate(([0], ends[:-1] + 1))
    counts = ends + 1 - starts
    # No step is missing: in the others the CPU may have got ahead unseen
    is_whole = (counts == period) & (step[ends] - step[starts] == period - 1)
    late = np.concatenate(
        [np.arange(end - (end - start) // 2, end) for start, end in zip(starts, ends, strict=True)]
    )
    full_ns = duration[late][duration[late] >= _NEARLY_FULL * full]
    if not is_whole.any() or not len(full_ns):
        return None
    pace = max(full, float(np.median(full_ns)))  # the first of them may be shorter
    until = np.concatenate(([0.0], np.cumsum(duration)))
    net = np.where(is_whole, until[ends + 1] - until[starts] - counts * pace, 0.0)
    longer = np.zeros(len(step))
    longer[ends] = np.maximum(net, 0.0)
    usual = np.sort(net[is_whole])[: (int(is_whole.sum()) + 1) // 2]  # without what stalls
    is_long = longer > max(_LONGER_RATIO * pace, _SPREADS * _OF_HALF * _spread(usual))
    return _Excess(longer, is_long, max(int(counts[is_whole].sum()), 1), period, pace)


def _best_period(step: Int64Array, is_long: Bools) -> tuple[int, int] | None:
    """The period that explains most long steps, and its residue; None if there is none.

    Of two periods that explain equally many long steps, the longer one wins.
    """
    long = step[is_long]
    if len(long) < _FEWEST:
        return None
    best: tuple[int, int, int, int] | None = None
    # distances between each long step and the next three, most frequent first
    apart = [long[n:] - long[:-n] for n in range(1, min(4, len(long)))]
    distance, count = np.unique(np.concatenate(apart), return_counts=True)
    order = np.argsort(-count, kind="stable")[:_MOST_PERIODS_TRIED]
    for period in [int(distance[i]) for i in order if distance[i] >= _SHORTEST_PERIOD]:
        # the most frequent residue of long steps, and its count
        residues, counts = np.unique(long % period, return_counts=True)
        most = int(np.argmax(counts))
        residue, held = int(residues[most]), int(counts[most])
        num_due = int(((step % period == residue) & (step >= long[0])).sum())
        if held < _FEWEST or held < _HELD_RATIO * num_due:
            continue
        if best is None or (held, period) > best[:2]:
            best = (held, period, residue, num_due)
    if best is None:
        return None
    held, period, residue, num_due = best
    if _chance(len(step), len(long), num_due, held) > _MAX_CHANCE:
        return None
    return period, residue


def _chance(num_steps: int, num_long: int, num_due: int, held: int) -> float:
    """Probability that any period holds this many long steps if they fall at random.

    This is the upper tail of the hypergeometric distribution times the number of periods and
    offsets.
    """
    ways = log_choose(num_steps, num_long)
    tail = sum(
        exp(log_choose(num_due, n) + log_choose(num_steps - num_due, num_long - n) - ways)
        for n in range(held, min(num_due, num_long) + 1)
        if num_long - n <= num_steps - num_due
    )
    return tail * (num_steps / _FEWEST) ** 2 / 2


FEWEST_STEPS = 20  # Number of steps from which a difference between ranks is not chance
OFTEN = 0.65  # A rank is late by the excess that it reaches in this share of its steps
_LEAST_RATIO = 0.05  # Smallest excess that is worth a row, as a share of the peers' time
_MOST_RANKS = 16
_MOST_STEPS = 2_000
_MOST_CELLS = 4_000_000
"""Largest table of steps by ranks. Earlier steps are dropped, to bound memory and time."""


def find_late_ranks(
    ranks: Sequence[int],
    steps: Sequence[Int64Array],
    cpu_ns: Sequence[Int64Array],
    groups: Sequence[tuple[int, ...]],
) -> tuple[LateInLog, ...]:
    """Ranks that compute longer than their peers, latest first."""
    found = [
        late
        for group in groups
        for late in _of_group(
            [ranks[at] for at in group], [steps[at] for at in group], [cpu_ns[at] for at in group]
        )
    ]
    return tuple(sorted(found, key=lambda one: -one.late_ns)[:_MOST_RANKS])


def _shared(steps: Sequence[Int64Array]) -> Int64Array:
    """Steps that every rank logged, ascending; usually all ranks logged the same ones."""
    first = steps[0]
    if all(np.array_equal(step, first) for step in steps) and np.all(np.diff(first) > 0):
        return first
    return reduce(np.intersect1d, steps)


def _at(shared: Int64Array, step: Int64Array, ns: Int64Array) -> Int64Array:
    """Times of the shared steps; for a repeated step, the last one."""
    order = np.argsort(step, kind="stable")
    last = np.searchsorted(step[order], shared, side="right") - 1
    return ns[order[last]]


def groups_of(ranks: Sequence[int], job: RunFile) -> list[tuple[int, ...]]:
    """Positions of CPU ranks, grouped by pipeline stage."""
    place = {rank: position for position, rank in enumerate(ranks)}
    on_cpu = [entry for entry in job.ranks if entry.device == "cpu" and entry.rank in place]
    found = grouped([(entry.coordinates.get("pp", 0), place[entry.rank]) for entry in on_cpu])
    return [tuple(group) for group in found.values() if len(group) > 1]


def _of_group(
    ranks: Sequence[int], steps: Sequence[Int64Array], cpu_ns: Sequence[Int64Array]
) -> Iterator[LateInLog]:
    shared = _shared(steps)
    if len(shared) < FEWEST_STEPS:
        return
    shared = shared[-max(FEWEST_STEPS, min(_MOST_STEPS, _MOST_CELLS // len(ranks))) :]
    table = np.stack([_at(shared, *one) for one in zip(steps, cpu_ns, strict=True)])
    excess = over_peers(table)
    ratios = excess / np.maximum(table - excess, 1.0)
    often = np.quantile(ratios, 1 - OFTEN, axis=1)
    late = np.flatnonzero(often >= _LEAST_RATIO)
    rest = np.setdiff1d(np.arange(len(ranks)), late)
    if not late.size or not rest.size:
        return
    beyond = np.maximum(table[late] - table[rest].max(axis=0), 0)
    for row, gained in zip(late.tolist(), np.median(beyond, axis=1), strict=True):
        yield LateInLog(
            rank=ranks[row],
            late_ns=round(float(np.median(excess[row]))),
            late_ratio=float(np.median(ratios[row])),
            often_ratio=float(often[row]),
            gained_ns=round(float(gained)),
            num_steps=table.shape[1],
        )


_MOST_ROWS = 40_000  # Steps times ranks: with more, only the last steps count, to bound time


def find_late_gpus(
    records: Mapping[int, Sequence[CollectivesRecord]], step_ns: Mapping[int, float], job: RunFile
) -> tuple[LateOnGpu, ...]:
    """GPU ranks that are late, latest first."""
    ranks = sorted(records)
    shared = set(step_ns).intersection(*({one.step for one in each} for each in records.values()))
    steps = sorted(shared)[-max(FEWEST_STEPS, _MOST_ROWS // max(len(ranks), 1)) :]
    if len(ranks) < 2 or len(steps) < FEWEST_STEPS:
        return ()
    stages = {
        entry.rank: entry.coordinates["pp"] for entry in job.ranks if "pp" in entry.coordinates
    }
    groups = np.array([stages.get(rank, 0) for rank in ranks], dtype=np.int64)
    by_rank = {rank: {one.step: one for one in records[rank]} for rank in ranks}
    # Steps of a CPU that runs ahead are too short or too long, so only their mean is right. The
    # longest may contain a checkpoint.
    mean_ns = float(mean_without_longest(np.array([step_ns[step] for step in steps])))
    found = ({r: bounded_groups(by_rank[r][step]) for r in ranks} for step in steps)
    rests = Rests(len(steps))
    waits = [
        waits_of(step, of_step, ranks, stages, mean_ns, rests)
        for step, of_step in zip(steps, found, strict=True)
    ]
    late = zip(*(lateness_of(each, mean_ns, groups) for each in waits), strict=True)
    return _rows(ranks, Lateness(*map(np.stack, late)), groups)


def _rows(ranks: Sequence[int], late: Lateness, groups: Int64Array) -> tuple[LateOnGpu, ...]:
    excess, likely = late.excess, likely_excess(late)
    limits = {int(one): _limit(likely, groups == one) for one in np.unique(groups)}
    known = np.isfinite(excess).sum(axis=0)
    found = []
    for column in np.flatnonzero(known >= FEWEST_STEPS).tolist():
        often = float(np.nanquantile(excess[:, column], 1 - OFTEN))
        if often < max(_LEAST_RATIO, limits[int(groups[column])]):
            continue
        found.append(
            LateOnGpu(
                rank=ranks[column],
                late_ns=round(float(np.nanmedian(late.late_ns[:, column]))),
                late_most_ns=round(float(np.nanmedian(late.late_most_ns[:, column]))),
                late_ratio=float(np.nanmedian(excess[:, column])),
                often_ratio=often,
                num_steps=int(known[column]),
            )
        )
    return tuple(sorted(found, key=lambda one: -one.late_ns)[:_MOST_RANKS])


def _limit(likely: Floats, members: Bools) -> float:
    """The usual differences between many peers; 0 for few."""
    columns = likely[:, members & np.isfinite(likely).any(axis=0)]
    return usual_difference(np.nanmedian(np.clip(columns, -0.25, 0.25), axis=0))
