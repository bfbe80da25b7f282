"""How much work each rank has by its kernels' counts, whatever time they take.

Durations are noisy on a busy machine, counts are not: a rank that launches more of the same kernels
in every step has more work, and a few steps prove it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from distprof.sections.context import KernelSteps, RankAnalysis
from distprof.sections.kernels.measure import MOST_NAMES

__all__ = ["work_by_counts"]


def work_by_counts(
    analyses: Mapping[int, RankAnalysis], peers: Sequence[tuple[int, ...]]
) -> NDArray[np.float64] | None:
    """Time that each rank's kernels would take at the usual duration of each, float64 ns.

    Ranks whose software chose another version of a kernel launch as many of it, so that they have
    the same work.

    Args:
        analyses: By global rank, P of them.
        peers: Groups of positions of ranks that do the same work.

    Returns:
        Shape ``(P, S)``; None where the kernels of a rank are not known.
    """
    known = [analysis.kernel_steps for analysis in analyses.values()]
    steps = [kernels for kernels in known if kernels is not None and kernels.names]
    if len(steps) != len(known) or len({kernels.count.shape[1] for kernels in steps}) != 1:
        return None
    result = np.zeros((len(steps), steps[0].count.shape[1]))
    for group in dict.fromkeys(peers):
        of_group = [steps[position] for position in group]
        usual = _usual_ns(of_group)
        result[list(group)] = [_at_usual_times(kernels, usual) for kernels in of_group]
    return result


def _usual_ns(ranks: Sequence[KernelSteps]) -> dict[str, float]:
    """Kernel to the mean duration of it on the median rank, of kernels that can be counted.

    Kernels that some ranks do not run have the mean duration of all such: they may be versions of
    one. Only the longest kernels of a rank are kept. Where some are cut off, a kernel that a rank
    seems not to run may be one of them, and does not count.
    """
    found: dict[str, list[tuple[int, int]]] = {}
    for kernels in ranks:
        count, total = kernels.count.sum(axis=1).tolist(), kernels.total_ns.sum(axis=1).tolist()
        for name, *sums in zip(kernels.names, total, count, strict=True):
            found.setdefault(name, []).append((sums[0], sums[1]))
    everywhere = {name for name, sums in found.items() if len(sums) == len(ranks)}
    usual = {name: float(np.median([_mean(*one) for one in found[name]])) for name in everywhere}
    if any(len(kernels.names) >= MOST_NAMES for kernels in ranks):
        return usual
    lone = [one for name, sums in found.items() if name not in everywhere for one in sums]
    of_lone = _mean(sum(ns for ns, _ in lone), sum(count for _, count in lone))
    return dict.fromkeys(found, of_lone) | usual


def _mean(total_ns: int, count: int) -> float:
    return total_ns / max(count, 1)


def _at_usual_times(kernels: KernelSteps, usual: Mapping[str, float]) -> NDArray[np.float64]:
    times = np.array([usual.get(name, 0.0) for name in kernels.names])
    result: NDArray[np.float64] = times @ kernels.count
    return result
