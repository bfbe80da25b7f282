"""How far a rank's CPU runs ahead of its GPU, as a reason for coming late to collectives.

A CPU that launches in time is milliseconds ahead: collectives wait in a queue until the GPU gets to
them. A CPU that cannot run ahead launches each collective just before it starts. Its GPU need not
idle for this to cost time: it waits for the transfer, which began late.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from distprof.run.run import Run
from distprof.schema import ABSENT
from distprof.sections.stragglers.causes import Cause
from distprof.terms import StragglerCause
from distprof.units import format_duration

USUAL_NS = 2_000_000
"""Lead of the other ranks from which a short lead is significant."""

SHORT_RATIO = 0.1
"""Lead relative to the other ranks' up to which a CPU counts as unable to run ahead."""


def launch_leads(run: Run) -> dict[int, float]:
    """Median time between the launch of a collective and its start by rank, ns.

    Ranks without recorded launches are left out.
    """
    leads = {}
    for rank in run.ranks:
        enqueue = rank.collectives["enqueue_ns"]
        known = enqueue != ABSENT
        if known.any():
            leads[rank.rank] = float(np.median((rank.collectives["start_ns"] - enqueue)[known]))
    return leads


def cannot_run_ahead(rank: int, leads: Mapping[int, float]) -> Cause | None:
    """A late CPU as the cause, if a rank's collectives start almost when they are launched."""
    others = [lead for other, lead in leads.items() if other != rank]
    if rank not in leads or not others:
        return None
    usual = float(np.median(others))
    if usual < USUAL_NS or leads[rank] > SHORT_RATIO * usual:
        return None
    text = (
        f"its CPU launches collectives {format_duration(leads[rank])} before they start, "
        f"compared with a median of {format_duration(usual)} on the other ranks"
    )
    return Cause(StragglerCause.LATE_HOST, (text,), confidence=0.8)
