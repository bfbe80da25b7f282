"""How much work each rank has by its kernel counts, regardless of durations.

Durations are noisy on a busy machine, counts are not: a rank that launches more of the same kernels
in every step has more work, and a few steps prove it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from distprof.sections.context import KernelSteps, RankAnalysis
from distprof.sections.kernels.measure import MOST_NAMES
from distprof.sections.own_time import over_peers


def work_by_counts(
    analyses: Mapping[int, RankAnalysis], peers: Sequence[tuple[int, ...]]
) -> NDArray[np.float64] | None:
    """Time that each rank's kernels would take at the usual duration of each, float64 ns.

    Ranks whose software chose another version of a kernel launch it equally often, so they have the
    same work. On CPUs one operator has many sizes, and the usual duration is that of the peers'
    launches. Launches above the peers' count there with the time that they add in the median step.

    Args:
        analyses: Analyses by global rank, P of them.
        peers: Groups of positions of ranks that do the same work.

    Returns:
        Shape ``(P, S)``; None if the kernels of a rank are unknown.
    """
    are_operators = all(analysis.is_cpu for analysis in analyses.values())
    known = [analysis.kernel_steps for analysis in analyses.values()]
    steps = [kernels for kernels in known if kernels is not None and kernels.names]
    if len(steps) != len(known) or len({kernels.count.shape[1] for kernels in steps}) != 1:
        return None
    result = np.zeros((len(steps), steps[0].count.shape[1]))
    for group in dict.fromkeys(peers):
        of_group = [steps[position] for position in group]
        usual = _usual_ns(of_group)
        result[list(group)] = [_at_usual_times(kernels, usual) for kernels in of_group]
        if are_operators and len(group) > 1:
            result[list(group)] += _of_other_sizes(of_group, usual)
    return result


CLEARLY = 10.0
"""Time of a kernel, over the shortest that another rank lists, from which that rank would list it
if it ran it."""


def _usual_ns(ranks: Sequence[KernelSteps]) -> dict[str, float]:
    """Mean duration on the median rank, by kernel, of kernels that can be counted.

    Kernels that some ranks do not run get the mean duration of all of these, because they may be
    versions of one kernel. Only the longest kernels of a rank are kept, so a kernel that a rank
    seems not to run may have been cut off. It counts only if it is far longer than that.
    """
    found: dict[str, list[tuple[int, int]]] = {}
    for kernels in ranks:
        count, total = kernels.count.sum(axis=1).tolist(), kernels.total_ns.sum(axis=1).tolist()
        for name, *sums in zip(kernels.names, total, count, strict=True):
            found.setdefault(name, []).append((sums[0], sums[1]))
    everywhere = {name for name, sums in found.items() if len(sums) == len(ranks)}
    usual = {name: float(np.median([_mean(*one) for one in found[name]])) for name in everywhere}
    least = CLEARLY * max(map(_longest_left_out, ranks))
    lone = {
        name: sums
        for name, sums in found.items()
        if name not in everywhere and max(ns for ns, _ in sums) >= least
    }
    cells = [one for sums in lone.values() for one in sums]
    of_lone = _mean(sum(ns for ns, _ in cells), sum(count for _, count in cells))
    return dict.fromkeys(lone, of_lone) | usual


def _longest_left_out(kernels: KernelSteps) -> int:
    """Longest time that a kernel which is not kept can take, ns; 0 if all are kept."""
    if len(kernels.names) < MOST_NAMES:
        return 0
    return int(kernels.total_ns.sum(axis=1).min())


def _mean(total_ns: int, count: int) -> float:
    return total_ns / max(count, 1)


def _at_usual_times(kernels: KernelSteps, usual: Mapping[str, float]) -> NDArray[np.float64]:
    times = np.array([usual.get(name, 0.0) for name in kernels.names])
    result: NDArray[np.float64] = times @ kernels.count
    return result


MORE_LAUNCHES = 0.1
"""Launches above the peers', relative to theirs, from which a kernel is judged by its additional
launches: the time of the others differs by chance, which must not be charged to a few more."""


SMALLEST = 0.1
"""Shortest time of an additional launch, relative to a usual one: times are noisy, but the launch
is certain."""


def _of_other_sizes(
    ranks: Sequence[KernelSteps], usual: Mapping[str, float]
) -> NDArray[np.float64]:
    """Time that launches above the peers' take more or less than usual, shape ``(P, S)``, ns.

    Only for kernels that a rank launches more often than its peers in every step.
    """
    result = np.zeros((len(ranks), ranks[0].count.shape[1]))
    for name in frozenset(ranks[0].names).intersection(*(kernels.names for kernels in ranks[1:])):
        rows = [kernels.names.index(name) for kernels in ranks]
        count = np.stack([k.count[row] for k, row in zip(ranks, rows, strict=True)])
        more = over_peers(count)
        lasting = (more > MORE_LAUNCHES * (count - more)).all(axis=1) & (count > more).all(axis=1)
        if not lasting.any():
            continue
        total = np.stack([k.total_ns[row] for k, row in zip(ranks, rows, strict=True)])
        each = np.median(over_peers(total)[lasting] / more[lasting], axis=1)
        other = np.maximum(each, SMALLEST * usual[name]) - usual[name]
        result[lasting] += more[lasting] * other[:, None]
    return result
