"""How fast each rank runs the kernels that it has in common with others, step by step.

The pace of a rank in a step is by how much its kernels take longer than the same kernels usually
do: for each kernel the middle one of the ratios of its three quartiles, and of all kernels what
:data:`ALIKE` of the kernel time reaches. A slow device slows all of its kernels; more work in
some kernels, and more kernels, leave the pace as it is; launches of more or fewer thread blocks
than usual, as those of experts, are not compared. So ranks of different pipeline stages can be
compared, which run the same kernels in different numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.join.blocks import spans
from distprof.schema import ABSENT
from distprof.sections.context import KernelSteps, RankAnalysis

__all__ = ["ALIKE", "EQUAL_GRIDS", "Pace", "pace_of"]

ALIKE = 0.7
"""Share of kernel time that must be slower alike for a device to count as slow."""

EQUAL_GRIDS = 0.01
"""Thread blocks relative to peers by which equal work differs: none but for rounding."""

EQUAL_COUNTS = 0.005
"""Launches relative to those of the other kernels by which equal mixtures differ."""

WIDE = 1.1
"""Upper over lower quartile from which the launches of a kernel are of several sizes: those of one
size differ by noise, a few per cent."""

ENOUGH = 0.1
"""Share of the kernel time that must be comparable to show the pace of a device, which slows all of
its kernels."""

IN_COMMON = 0.5
"""Share of each rank's kernel time in kernels of all ranks from which all can be compared."""


_Rows: TypeAlias = "tuple[KernelSteps, list[int]]"
"""A rank's kernels, and which of them are those in common, in the order of these."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """P ranks, S analysed steps.

    Args:
        factor: float64, shape ``(P, S)``: 1 is usual, more is slower. Never less, as a rank whose
            experts get few tokens has no faster device.
        groups: Positions of ranks that can be compared with each other.
    """

    factor: NDArray[np.float64]
    groups: tuple[tuple[int, ...], ...]


def pace_of(analyses: Mapping[int, RankAnalysis], peers: Sequence[tuple[int, ...]]) -> Pace | None:
    """The pace of all ranks, among all where they have most kernels in common, else among peers.

    Args:
        analyses: By global rank.
        peers: Groups of positions of ranks that do the same work.

    Returns:
        None where a rank has no kernels, or no two ranks can be compared.
    """
    steps = [analysis.kernel_steps for analysis in analyses.values()]
    known = [kernels for kernels in steps if kernels is not None and kernels.names]
    if len(known) < 2 or len(known) != len(steps):
        return None
    if len({kernels.count.shape[1] for kernels in known}) != 1:
        return None
    everybody = tuple(range(len(known)))
    groups = tuple(dict.fromkeys(peers))
    if _are_comparable(known):
        groups = (everybody,)
    groups = tuple(group for group in groups if len(group) > 1)
    factor = np.ones((len(known), known[0].count.shape[1]))
    for group in groups:
        factor[list(group)] = _factors([known[position] for position in group])
    return Pace(factor=factor, groups=groups) if groups else None


def _are_comparable(known: Sequence[KernelSteps]) -> bool:
    common = _common(known)
    shares = []
    for kernels in known:
        total = kernels.total_ns.sum(axis=1)
        of_common = np.array([name in common for name in kernels.names])
        shares.append(float(total[of_common].sum()) / max(float(total.sum()), 1.0))
    return min(shares) >= IN_COMMON


def _common(known: Sequence[KernelSteps]) -> Collection[str]:
    """Kernels that all ranks run."""
    return frozenset(known[0].names).intersection(*(kernels.names for kernels in known[1:]))


def _factors(known: Sequence[KernelSteps]) -> NDArray[np.float64]:
    """Of ranks that can be compared, shape ``(P, S)``."""
    num_steps = known[0].count.shape[1]
    common = sorted(_common(known))
    if not common:
        return np.ones((len(known), num_steps))
    pairs = [(kernels, [kernels.names.index(name) for name in common]) for kernels in known]
    usual = _Usual.of(pairs)
    left_out = _are_other_mixtures(pairs, usual.quartile_ns)
    reached = np.empty((len(known), num_steps))
    for steps in spans(num_steps, max(_CELLS // (len(known) * len(common)), 1)):
        ratio = _ratios(pairs, steps, usual)
        ratio[left_out] = np.nan
        reached[:, steps] = _reached(ratio, usual.weight)
    return np.maximum(reached, 1.0)


_CELLS = 1 << 20
"""Cells of rank, kernel and step that are looked at together."""


class _Usual(msgspec.Struct, frozen=True, kw_only=True):
    """What is usual for each of K kernels in common.

    Args:
        quartile_ns: Shape ``(K, 3)``.
        count: Launches per step, shape ``(K,)``.
        blocks: Thread blocks per step, shape ``(K,)``.
        weight: Time per step, shape ``(K,)``: alike for all ranks, or more work weighs more.
    """

    quartile_ns: NDArray[np.float64]
    count: NDArray[np.float64]
    blocks: NDArray[np.float64]
    weight: NDArray[np.float64]

    @classmethod
    def of(cls, pairs: Sequence[_Rows]) -> _Usual:
        """Of ranks, each with its rows of these kernels; one rank, then one kernel at a time."""
        kernels = range(len(pairs[0][1]))
        totals = (np.stack([k.total_ns[row[place]] for k, row in pairs]) for place in kernels)
        return cls(
            quartile_ns=_lower_median(
                np.stack([_median(_known(k.quartile_ns[row], 0), 1) for k, row in pairs])
            ),
            count=_median(np.stack([_median(_known(k.count[row], 0), 1) for k, row in pairs]), 0),
            blocks=_median(
                np.stack([_median(_known(k.blocks[row], ABSENT), 1) for k, row in pairs]), 0
            ),
            weight=np.array([np.median(total) for total in totals]),
        )


def _known(values: NDArray[np.signedinteger[Any]], absent: int) -> NDArray[np.float64]:
    return np.where(values == absent, np.nan, values.astype(np.float64))


def _ratios(pairs: Sequence[_Rows], steps: slice, usual: _Usual) -> NDArray[np.float64]:
    """Times relative to the usual, where sizes are; rank, kernel, step."""
    quartiles = np.stack([_known(k.quartile_ns[row, steps], 0) for k, row in pairs])
    ratio = _median(quartiles / usual.quartile_ns[None, :, None, :], 3)
    ratio[_are_other_sizes(pairs, steps, usual)] = np.nan
    return ratio


def _lower_median(of_ranks: NDArray[np.float64]) -> NDArray[np.float64]:
    """Median over ranks, the lower where half of them are slow; NaN where nothing is known."""
    ordered = np.sort(of_ranks, axis=0)  # NaN last
    place = np.maximum((~np.isnan(of_ranks)).sum(axis=0) - 1, 0) // 2
    taken: NDArray[np.float64] = np.take_along_axis(ordered, place[None], axis=0)[0]
    return taken


def _are_other_sizes(pairs: Sequence[_Rows], steps: slice, usual: _Usual) -> NDArray[np.bool_]:
    """Which cells hold as many launches as usual, but of other grids; rank, kernel, step.

    Of another number of launches the mean size may differ because another layer is among them.
    """
    count = np.stack([_known(k.count[row, steps], 0) for k, row in pairs])
    blocks = np.stack([_known(k.blocks[row, steps], ABSENT) for k, row in pairs])
    differs = np.abs(blocks / usual.blocks[None, :, None] - 1) > EQUAL_GRIDS
    result: NDArray[np.bool_] = differs & (count == usual.count[None, :, None])
    return result


def _are_other_mixtures(pairs: Sequence[_Rows], usual: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Kernels whose launches are of several sizes, in other shares than on most ranks.

    The quartiles of such a mixture jump from one size to another by a single launch more, as where
    an output layer uses the same kernel. Ranks with more of the same layers launch proportionally
    more of everything; kernels of one size show by how much.

    Args:
        pairs: Kernels of each rank, and those that all ranks have in common.
        usual: Usual quartiles, shape ``(K, 3)`` for K kernels in common.

    Returns:
        Shape ``(P, K)``: which kernels of which rank cannot be compared.
    """
    launched = np.stack([np.median(k.count[row].astype(np.float64), axis=1) for k, row in pairs])
    relative = launched / np.maximum(np.median(launched, axis=0), 1)
    wide = ~(usual[:, 2] < WIDE * usual[:, 0])
    times = np.median(relative if wide.all() else relative[:, ~wide], axis=1)
    share = relative / np.maximum(times, 1e-9)[:, None]
    near = np.zeros(share.shape, dtype=np.int64)
    for kernel in np.flatnonzero(wide).tolist():
        near[:, kernel] = number_near(share[:, kernel])
    result: NDArray[np.bool_] = (2 * near <= len(pairs)) & wide
    return result


def number_near(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """How many values, itself included, each is near to: relative to those, ``EQUAL_COUNTS``.

    Args:
        values: Not negative. By bisection in the values in order; to compare all pairs takes
            memory and time that is quadratic in ranks.
    """
    measure = np.sort(np.maximum(values, 1e-9))

    def first(is_over: Callable[[NDArray[np.float64]], NDArray[np.bool_]]) -> NDArray[np.int64]:
        """Where in order the relative difference, which only falls, is no longer over a bound."""
        low = np.zeros(len(values), dtype=np.int64)
        high = np.full(len(values), len(values), dtype=np.int64)
        while (low < high).any():
            middle = np.minimum((low + high) // 2, len(values) - 1)
            over = is_over(values / measure[middle] - 1) & (low < high)
            low, high = (
                np.where(over, middle + 1, low),
                np.where(over, high, np.minimum(middle, high)),
            )
        return low

    return first(lambda off: off >= -EQUAL_COUNTS) - first(lambda off: off > EQUAL_COUNTS)


def _median(values: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    """Median of what is known; NaN where nothing is."""
    known = ~np.isnan(values)
    count = known.sum(axis=axis)
    ordered = np.sort(values, axis=axis)  # NaN last
    low, high = np.maximum(count - 1, 0) // 2, np.maximum(count // 2, 0)

    def at(place: NDArray[np.int64]) -> NDArray[np.float64]:
        taken = np.take_along_axis(ordered, np.expand_dims(place, axis), axis=axis)
        return taken.squeeze(axis)

    result: NDArray[np.float64] = (at(low) + at(high)) / 2
    return result


def _reached(ratio: NDArray[np.float64], weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """The ratio that :data:`ALIKE` of the weight reaches, over kernels; 1 where few are known."""
    order = np.argsort(ratio, axis=1)  # NaN last
    ordered = np.take_along_axis(ratio, order, axis=1)
    held = np.where(np.isnan(ordered), 0.0, weight[order])
    whole = held.sum(axis=1)
    share = np.cumsum(held, axis=1) / np.maximum(whole[:, None], 1.0)
    place = (share > 1 - ALIKE).argmax(axis=1)[:, None]
    taken = np.take_along_axis(ordered, place, axis=1)[:, 0]
    return np.where(np.isnan(taken) | (whole < ENOUGH * weight.sum()), 1.0, taken)
