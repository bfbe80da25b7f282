"""Find ranks that are late in nearly every step, from the step log alone.

On CPU ranks the training thread runs only while its rank computes, and sleeps while it waits for
other ranks. Its CPU time, as counted by Linux, therefore allows comparing ranks without a trace.
Anything that slows down all ranks at once cancels out.

On GPUs the probes record how long each collective takes. The members of an all-reduce leave it
together, so a late one spends the least time in it. Durations alone bound the lateness
(:mod:`distprof.join.gpu_waits`), and a rank is late only if the lower bound says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray

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
from distprof.schema import Floats, Int64Array
from distprof.sections.own_time import over_peers
from distprof.sections.step_log.result import LateInLog, LateOnGpu

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
    times: Int64Array = ns[order[last]]
    return times


def groups_of(ranks: Sequence[int], job: RunFile) -> list[tuple[int, ...]]:
    """Positions of CPU ranks, grouped by pipeline stage."""
    place = {rank: position for position, rank in enumerate(ranks)}
    found: dict[int, list[int]] = {}
    for entry in job.ranks:
        if entry.device == "cpu" and entry.rank in place:
            found.setdefault(entry.coordinates.get("pp", 0), []).append(place[entry.rank])
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
    shared = set(step_ns)
    for of_rank in records.values():
        shared &= {one.step for one in of_rank}
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


def _rows(ranks: Sequence[int], late: Lateness, groups: NDArray[np.int64]) -> tuple[LateOnGpu, ...]:
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


def _limit(likely: Floats, members: NDArray[np.bool_]) -> float:
    """The usual differences between many peers; 0 for few."""
    columns = likely[:, members & np.isfinite(likely).any(axis=0)]
    return usual_difference(np.nanmedian(np.clip(columns, -0.25, 0.25), axis=0))
