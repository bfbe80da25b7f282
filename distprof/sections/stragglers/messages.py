"""Ranks that leave their device idle while others wait for their messages.

In a pipeline, or a ring, ranks wait for each other in sends and receives, and of those it is not
known who came last. But a rank whose host stalls idles, and does not wait, longer than its peers
(:mod:`distprof.sections.own_time`), and the others wait for messages meanwhile.
"""

from __future__ import annotations

import numpy as np

from distprof.sections.context import RankAnalyses
from distprof.sections.own_time import HOST, OwnTime
from distprof.sections.stragglers.result import MessageRank, MessagesResult

__all__ = ["analyze_messages"]

NO_MESSAGES = "nobody waits in sends and receives"


def analyze_messages(analyses: RankAnalyses) -> MessagesResult:
    """Who idles while others wait for messages.

    Args:
        analyses: By global rank.

    Source:
        Formula sheet, "Measured from traces" (straggler).
    """
    own = OwnTime.of(analyses)
    spans = [step.span_ns for analysis in analyses.values() for step in analysis.steps]
    if not spans or not any(a.waterfall.exposed_p2p_wait_ns for a in analyses.values()):
        return MessagesResult(unavailable=(NO_MESSAGES,))
    excess, idle = own.excess[HOST], own.parts[HOST]
    chance = np.minimum(1.0, len(analyses) * own.chance(HOST))
    ranks = tuple(
        MessageRank(
            rank=analysis.rank,
            wait_ns_per_step=analysis.waterfall.exposed_p2p_wait_ns // max(len(analysis.steps), 1),
            idle_ns_per_step=int(idle[row].mean()),
            late_ns_per_step=max(0, int(excess[row].mean())),
            chance=float(chance[row]),
        )
        for row, analysis in enumerate(analyses.values())
    )
    return MessagesResult(ranks=ranks, step_ns=int(np.mean(spans)))
