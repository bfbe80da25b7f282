"""How far a rank's CPU runs ahead of its GPU, as a reason for coming late to collectives.

A CPU that launches in time is milliseconds ahead: collectives wait in a queue until the GPU gets to
them. One that cannot run ahead hands each collective over just before it starts. Its GPU need not
idle for that: it waits for the transfer, which began late.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from distprof.run.run import Run
from distprof.schema import ABSENT
from distprof.sections.stragglers.causes import Cause
from distprof.terms import StragglerCause
from distprof.units import format_duration

__all__ = ["cannot_run_ahead", "launch_leads"]

USUAL_NS = 2_000_000
"""Lead of the other ranks from which a short one means something."""

SHORT_RATIO = 0.1
"""Lead over that of the other ranks, up to which a CPU cannot run ahead."""


def launch_leads(run: Run) -> dict[int, float]:
    """Rank to the median time, ns, between the launch of a collective and its start.

    Ranks without launches on record are left out.
    """
    leads = {}
    for rank in run.ranks:
        enqueue = rank.collectives["enqueue_ns"]
        known = enqueue != ABSENT
        if known.any():
            leads[rank.rank] = float(np.median((rank.collectives["start_ns"] - enqueue)[known]))
    return leads


def cannot_run_ahead(rank: int, leads: Mapping[int, float]) -> Cause | None:
    """The cause of a late rank whose launches are the last thing that its collectives wait for.

    Args:
        rank: The late rank.
        leads: By rank, as :func:`launch_leads` has them.
    """
    others = [lead for other, lead in leads.items() if other != rank]
    if rank not in leads or not others:
        return None
    usual = float(np.median(others))
    if usual < USUAL_NS or leads[rank] > SHORT_RATIO * usual:
        return None
    text = (
        f"its CPU launches collectives {format_duration(leads[rank])} before they start, "
        f"the median of the other ranks is {format_duration(usual)}"
    )
    return Cause(StragglerCause.LATE_HOST, (text,), confidence=0.8)
