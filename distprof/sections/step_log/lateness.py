"""Which ranks compute for longer than their peers in nearly every step, by the step log alone.

On CPU ranks the training thread runs only while its rank computes: it sleeps while it waits for
other ranks. So its CPU time, which Linux counts, compares ranks without a trace. What slows all
ranks at once cancels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

import numpy as np

from distprof.artefacts.run_file import RunFile
from distprof.schema import Int64Array
from distprof.sections.own_time import over_peers
from distprof.sections.step_log.result import LateInLog

__all__ = ["FEWEST_STEPS", "find_late_ranks", "groups_of"]

FEWEST_STEPS = 20
"""Steps from which a difference between ranks is no chance."""

OFTEN = 0.65
"""A rank is late by what it exceeds in this share of its steps."""

_LEAST_RATIO = 0.05
"""Of the peers' time: what is less is not worth a row."""

_MOST_RANKS = 16

_MOST_STEPS = 2_000
_MOST_CELLS = 4_000_000
"""Steps by ranks that are compared, the last ones: bounds memory and time."""


def find_late_ranks(
    ranks: Sequence[int],
    steps: Sequence[Int64Array],
    cpu_ns: Sequence[Int64Array],
    groups: Sequence[tuple[int, ...]],
) -> tuple[LateInLog, ...]:
    """Ranks that compute for longer, the latest first.

    Args:
        ranks: Global rank of each position.
        steps: At each position, the numbers of the steps whose CPU time is known.
        cpu_ns: At each position, CPU time of the training thread in these steps, ns.
        groups: Positions of ranks that do the same work.

    Returns:
        At most ``_MOST_RANKS``; none where fewer than ``FEWEST_STEPS`` steps are known of all.
    """
    shared = reduce(np.intersect1d, steps) if steps else np.empty(0, dtype=np.int64)
    if len(shared) < FEWEST_STEPS:
        return ()
    most = max(FEWEST_STEPS, min(_MOST_STEPS, _MOST_CELLS // len(steps)))
    shared = shared[-most:]
    table = np.stack([_at(shared, *one) for one in zip(steps, cpu_ns, strict=True)])
    found = [late for group in groups for late in _of_group(ranks, table, group)]
    return tuple(sorted(found, key=lambda one: -one.late_ns)[:_MOST_RANKS])


def _at(shared: Int64Array, step: Int64Array, ns: Int64Array) -> Int64Array:
    """Times in these steps; of a step that was repeated, the last one."""
    order = np.argsort(step, kind="stable")
    last = np.searchsorted(step[order], shared, side="right") - 1
    found: Int64Array = ns[order[last]]
    return found


def groups_of(ranks: Sequence[int], job: RunFile) -> list[tuple[int, ...]]:
    """Positions of CPU ranks, those of one pipeline stage together."""
    place = {rank: position for position, rank in enumerate(ranks)}
    found: dict[int, list[int]] = {}
    for entry in job.ranks:
        if entry.device == "cpu" and entry.rank in place:
            found.setdefault(entry.coordinates.get("pp", 0), []).append(place[entry.rank])
    return [tuple(group) for group in found.values() if len(group) > 1]


def _of_group(
    ranks: Sequence[int], table: Int64Array, group: tuple[int, ...]
) -> Iterator[LateInLog]:
    """Late ranks of a group; ``table`` is of shape (positions, steps)."""
    cpu_ns = table[list(group)]
    excess = over_peers(cpu_ns)
    ratios = excess / np.maximum(cpu_ns - excess, 1.0)
    often = np.quantile(ratios, 1 - OFTEN, axis=1)
    late = np.flatnonzero(often >= _LEAST_RATIO)
    rest = np.setdiff1d(np.arange(len(group)), late)
    if not late.size or not rest.size:
        return
    beyond = np.maximum(cpu_ns[late] - cpu_ns[rest].max(axis=0), 0)
    for row, gained in zip(late.tolist(), np.median(beyond, axis=1), strict=True):
        yield LateInLog(
            rank=ranks[group[row]],
            late_ns=round(float(np.median(excess[row]))),
            late_ratio=float(np.median(ratios[row])),
            often_ratio=float(often[row]),
            gained_ns=round(float(gained)),
            num_steps=table.shape[1],
        )
