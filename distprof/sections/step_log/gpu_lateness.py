"""Find GPU ranks that arrive late at collectives in nearly every step, without a trace.

The probes record how long each collective takes on each GPU. The members of an all-reduce leave it
together, so a late one spends the least time in it. Durations alone bound the lateness
(:mod:`distprof.join.gpu_waits`), and a rank is late only if the lower bound says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
from distprof.schema import Floats
from distprof.sections.step_log.lateness import FEWEST_STEPS, OFTEN
from distprof.sections.step_log.result import LateOnGpu

_LEAST_RATIO = 0.05
"""Smallest excess that is worth a row."""

_MOST_RANKS = 16

_MOST_ROWS = 40_000
"""Steps times ranks: with more, only the last steps count, to bound time."""


def find_late_gpus(
    records: Mapping[int, Sequence[CollectivesRecord]], step_ns: Mapping[int, float], job: RunFile
) -> tuple[LateOnGpu, ...]:
    """GPU ranks that are late, latest first.

    Returns:
        At most ``_MOST_RANKS`` ranks; none with fewer than ``FEWEST_STEPS`` steps that all ranks
        recorded.
    """
    ranks = sorted(records)
    steps = _shared_steps(records, step_ns)[-max(FEWEST_STEPS, _MOST_ROWS // max(len(ranks), 1)) :]
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


def _shared_steps(
    records: Mapping[int, Sequence[CollectivesRecord]], step_ns: Mapping[int, float]
) -> list[int]:
    shared = set(step_ns)
    for of_rank in records.values():
        shared &= {one.step for one in of_rank}
    return sorted(shared)


def _rows(ranks: Sequence[int], late: Lateness, groups: NDArray[np.int64]) -> tuple[LateOnGpu, ...]:
    """The late ranks.

    Args:
        ranks: Global ranks.
        late: Of all steps, each of shape (steps, ranks).
        groups: Group of each rank.
    """
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
