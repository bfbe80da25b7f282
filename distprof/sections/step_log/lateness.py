"""Find ranks that compute longer than their peers in nearly every step, from the step log alone.

On CPU ranks the training thread runs only while its rank computes, and sleeps while it waits for
other ranks. Its CPU time, as counted by Linux, therefore allows comparing ranks without a trace.
Anything that slows down all ranks at once cancels out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

import numpy as np

from distprof.artefacts.run_file import RunFile
from distprof.schema import Int64Array
from distprof.sections.own_time import over_peers
from distprof.sections.step_log.result import LateInLog

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
    """Late ranks among those that do the same work."""
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
