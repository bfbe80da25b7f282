"""Whom the lateness of a whole pipeline comes from.

A rank that is slow delays all stages of its pipeline, by messages, and each of them then comes late
to the collective in which it meets its like of other pipelines. Of messages it is not known who
came last, so what a pipeline costs the others is put down to the one of its ranks whose own time
exceeds that of its peers most.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from distprof.run.run import Run
from distprof.sections.own_time import OwnTime
from distprof.sections.stragglers.arrivals import Blame
from distprof.terms import MeshAxis

__all__ = ["blame_of_pipelines"]


def blame_of_pipelines(blame: Blame, own_time: OwnTime, run: Run) -> Blame | None:
    """The same with all that ranks of one pipeline cost on one of them; None without pipelines.

    Costs are means over the ranks of other pipelines: those of the same wait for messages instead.

    Args:
        blame: What each rank cost.
        own_time: Of the same ranks, in the same order.
        run: For its process groups.
    """
    pipelines = _pipelines(blame, run)
    num_stages = len({tuple(peers) for peers in own_time.peers})
    num_others = len(blame.ranks) - num_stages
    if len(pipelines) < 2 or num_stages < 2 or num_others < 1:
        return None
    excess = own_time.total_excess.mean(axis=1)
    scale = (len(blame.ranks) - 1) / num_others
    lost = np.zeros_like(blame.lost_ns)
    for members in pipelines:
        culprit = members[int(np.argmax(excess[members]))]
        lost[culprit] = blame.lost_ns[members].sum(axis=0) * scale
    return replace(blame, lost_ns=lost)


def _pipelines(blame: Blame, run: Run) -> list[list[int]]:
    """Positions of the ranks of each pipeline."""
    position = {rank: number for number, rank in enumerate(blame.ranks)}
    found = {
        group.ranks: [position[rank] for rank in group.ranks if rank in position]
        for group in run.topology.groups
        if group.axis is MeshAxis.PP
    }
    return [members for members in found.values() if len(members) > 1]
