"""Whether a rank that computes longer while it is traced does so in its other steps, too.

A profiler slows ranks down unequally, and on CPUs by much: it takes memory, caches and time of the
cores that compute. The step log has the CPU time of each training thread in all steps, with and
without a profiler.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from distprof.sections.idle.measure import HostPauses

__all__ = ["only_while_traced"]

FEWEST = 3
"""Untraced steps in which the rank would be late if it were so as often as in traced ones."""

SHOWS = 0.5
"""Part of what it runs longer, and of how often, that untraced steps must show."""


def only_while_traced(
    late: Sequence[int],
    traced: Sequence[int],
    longer: float,
    own: HostPauses,
    others: Collection[HostPauses],
    usual: float = 1.0,
) -> int | None:
    """Number of untraced steps if the rank's training thread runs as long as usual in them.

    A thread that is sometimes faster than its peers by as much as it is sometimes slower varies by
    chance, so each such faster step cancels a slower one.

    Args:
        late: Numbers of the traced steps in which it computes longer, ascending.
        traced: Numbers of all traced steps, ascending.
        longer: By how much, relative to its peers' CPU time in these steps.
        own: What probes recorded of the rank.
        others: The same of its peers.
        usual: CPU time relative to its peers that is to be expected of it.

    Returns:
        None if it does run longer, or if too few untraced steps would show it.
    """
    since = _since(late, traced)
    among = [step for step in traced if step >= late[0]]
    often = len(late) / max(len(among), 1)
    ratios = _ratios(own, others, since)
    if often * len(ratios) < FEWEST:
        return None
    margin = usual + SHOWS * longer
    slower = sum(ratio >= margin for ratio in ratios)
    by_chance = sum(ratio <= usual**2 / margin for ratio in ratios)
    return None if slower - by_chance >= SHOWS * often * len(ratios) else len(ratios)


def _since(late: Sequence[int], traced: Sequence[int]) -> int:
    """First step to look at: any, unless the rank seems to have become slow while it was traced."""
    before = sum(step < late[0] for step in traced)
    often = len(late) / (len(traced) - before)
    return 0 if before * often <= 2 else late[0]


def _ratios(own: HostPauses, others: Collection[HostPauses], since: int) -> list[float]:
    """CPU time over the median peer's in each untraced step that all of them recorded."""
    times = [pauses.cpu_ns or {} for pauses in (own, *others)]
    steps = own.untraced.intersection(*(pauses.untraced for pauses in others), *times)
    found = []
    for step in sorted(step for step in steps if step >= since):
        usual = float(np.median([of_rank[step] for of_rank in times[1:]]))
        found.append(times[0][step] / max(usual, 1.0))
    return found
