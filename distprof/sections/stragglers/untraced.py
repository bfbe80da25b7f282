"""Whether a rank that computes longer while it is traced also does so in its untraced steps.

A profiler slows ranks down unequally. On CPUs it slows them a lot, because it takes memory, caches
and time from the cores that compute. The step log has the CPU time of each training thread in all
steps, with and without a profiler.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from distprof.sections.idle.measure import HostPauses

MIN_EXPECTED = 3
"""Fewest untraced steps in which the rank must be expected to be late, at its rate in traced
ones."""

CONFIRMS = 0.5
"""Share of the excess, and of the rate of late steps, that untraced steps must show."""


def only_while_traced(
    late: Sequence[int],
    traced: Sequence[int],
    longer: float,
    own: HostPauses,
    others: Collection[HostPauses],
    usual: float = 1.0,
) -> int | None:
    """Number of untraced steps if the rank's training thread runs no longer than usual in them.

    Args:
        late: Numbers of the traced steps in which it computes longer, ascending.
        traced: Numbers of all traced steps, ascending.
        longer: Its excess in these steps, relative to its peers' CPU time.
        own: Probe records of the rank.
        others: Probe records of its peers.
        usual: Its expected CPU time, relative to its peers'.

    Returns:
        None if it does run longer, or if there are too few untraced steps to show it.
    """
    since = _since(late, traced)
    among = [step for step in traced if step >= late[0]]
    late_ratio = len(late) / max(len(among), 1)
    ratios = _ratios(own, others, since)
    if late_ratio * len(ratios) < MIN_EXPECTED:
        return None
    limit = usual + CONFIRMS * longer
    slower = sum(ratio >= limit for ratio in ratios)
    by_chance = sum(ratio <= usual**2 / limit for ratio in ratios)
    return None if slower - by_chance >= CONFIRMS * late_ratio * len(ratios) else len(ratios)


def _since(late: Sequence[int], traced: Sequence[int]) -> int:
    """First step to use: 0, unless the rank seems to have become slow while it was traced."""
    before = sum(step < late[0] for step in traced)
    late_ratio = len(late) / (len(traced) - before)
    return 0 if before * late_ratio <= 2 else late[0]


def _ratios(own: HostPauses, others: Collection[HostPauses], since: int) -> list[float]:
    """CPU time over the median peer's in each untraced step that all of them recorded."""
    times = [pauses.cpu_ns or {} for pauses in (own, *others)]
    steps = own.untraced.intersection(*(pauses.untraced for pauses in others), *times)
    ratios = []
    for step in sorted(step for step in steps if step >= since):
        usual = float(np.median([of_rank[step] for of_rank in times[1:]]))
        ratios.append(times[0][step] / max(usual, 1.0))
    return ratios
