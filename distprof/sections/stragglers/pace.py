"""How fast each rank runs the kernels that it has in common with others, step by step.

The pace of a rank in a step is how much longer its kernels take than the same kernels usually do.
For each kernel it is the median of the ratios of its three quartiles, and for all kernels the ratio
that :data:`SLOW_DEVICE_SHARE` of the kernel time reaches. A slow device slows all of its kernels.
More work in some kernels, or more kernels, does not change the pace. Launches with more or fewer
thread blocks than usual, such as those of experts, are not compared. Therefore ranks of different
pipeline stages, which run the same kernels in different numbers, can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.join.waits import spans
from distprof.schema import ABSENT
from distprof.sections.context import KernelSteps, RankAnalysis

SLOW_DEVICE_SHARE = 0.7
"""Share of kernel time that must be equally slower for a device to count as slow."""

EQUAL_GRIDS = 0.01
"""Relative difference in thread blocks up to which work is equal: only rounding."""

EQUAL_COUNTS = 0.005
"""Relative difference in launches, compared with the other kernels', up to which mixtures of sizes
are equal."""

WIDE = 1.1
"""Upper over lower quartile from which a kernel's launches have several sizes: launches of one size
differ only by noise, a few per cent."""

ENOUGH = 0.1
"""Share of the kernel time that must be comparable to show the pace of a device, which slows all of
its kernels."""

IN_COMMON = 0.5
"""Share of each rank's kernel time that must be in kernels that all ranks run, to compare all."""


_Floats: TypeAlias = NDArray[np.float64]

_Rows: TypeAlias = "tuple[KernelSteps, list[int]]"
"""A rank's kernels, and the index of each common kernel among them."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """P ranks, S analysed steps."""

    # float64, shape ``(P, S)``: 1 is usual, more is slower. Never below 1, because a rank whose
    # experts get few tokens does not have a faster device.
    factor: _Floats
    groups: tuple[tuple[int, ...], ...]  # Positions of ranks that can be compared with each other.


def pace_of(analyses: Mapping[int, RankAnalysis], peers: Sequence[tuple[int, ...]]) -> Pace | None:
    """The pace of each rank among all ranks if they have most kernels in common, else among peers.

    None if a rank has no kernels, or no two ranks can be compared.
    """
    steps = [analysis.kernel_steps for analysis in analyses.values()]
    known = [kernels for kernels in steps if kernels is not None and kernels.names]
    if not 2 <= len(known) == len(steps):
        return None
    if len({kernels.count.shape[1] for kernels in known}) != 1:
        return None
    are_comparable = _least_in_common(known) >= IN_COMMON
    groups = (tuple(range(len(known))),) if are_comparable else tuple(dict.fromkeys(peers))
    groups = tuple(group for group in groups if len(group) > 1)
    factor = np.ones((len(known), known[0].count.shape[1]))
    for group in groups:
        factor[list(group)] = _factors([known[position] for position in group])
    return Pace(factor=factor, groups=groups) if groups else None


def _least_in_common(known: Sequence[KernelSteps]) -> float:
    """The smallest share of a rank's kernel time that is in kernels that all ranks run."""
    common = _common(known)
    rows = {
        names: np.array([name in common for name in names])
        for names in {kernels.names for kernels in known}
    }
    totals = [(kernels.total_ns.sum(axis=1), rows[kernels.names]) for kernels in known]
    return min(float(ns[are_common].sum()) / max(float(ns.sum()), 1.0) for ns, are_common in totals)


def _common(known: Sequence[KernelSteps]) -> Collection[str]:
    """Kernels that all ranks run."""
    return frozenset(known[0].names).intersection(*(kernels.names for kernels in known[1:]))


def _factors(known: Sequence[KernelSteps]) -> _Floats:
    """Pace of ranks that can be compared, shape ``(P, S)``, from their K common kernels."""
    num_steps = known[0].count.shape[1]
    common = sorted(_common(known))
    if not common:
        return np.ones((len(known), num_steps))
    rows = {
        names: [names.index(name) for name in common]
        for names in {kernels.names for kernels in known}
    }
    pairs = [(kernels, rows[kernels.names]) for kernels in known]
    # In case half of the ranks are slow, the lower median of their quartiles is usual.
    usual_ns = _lower_median(_over_steps(pairs, "quartile_ns", 0))
    usual_count = _median(_over_steps(pairs, "count", 0), 0)
    usual_blocks = _median(_over_steps(pairs, "blocks", ABSENT), 0)
    weight = _over_all(pairs)  # the same for all ranks, so more work does not weigh more
    left_out = _are_other_mixtures(pairs, usual_ns)
    reached = np.empty((len(known), num_steps))
    for steps in spans(num_steps, max(_CELLS // (len(known) * len(common)), 1)):
        quartiles, count, blocks = (
            np.stack([_known(getattr(k, name)[row, steps], absent) for k, row in pairs])
            for name, absent in (("quartile_ns", 0), ("count", 0), ("blocks", ABSENT))
        )
        ratio = _median(quartiles / usual_ns[None, :, None, :], 3)
        # With another number of launches than usual, the mean size may differ because another
        # layer is among them.
        resized = np.abs(blocks / usual_blocks[None, :, None] - 1) > EQUAL_GRIDS
        ratio[resized & (count == usual_count[None, :, None])] = np.nan
        ratio[left_out] = np.nan
        reached[:, steps] = _reached(ratio, weight)
    return np.maximum(reached, 1.0)


_CELLS = 1 << 20
"""Cells of rank, kernel and step that are processed at once."""


def _over_all(pairs: Sequence[_Rows]) -> _Floats:
    """Medians of the common kernels' times over all steps of all ranks, of many kernels at once."""
    (first, row), *_ = pairs
    at_once = max(_CELLS // (len(pairs) * max(first.total_ns.shape[1], 1)), 1)
    parts = (
        np.stack([kernels.total_ns[rows[part]] for kernels, rows in pairs], axis=1)
        for part in spans(len(row), at_once)
    )
    return np.concatenate([np.median(part.reshape(len(part), -1), axis=1) for part in parts])


def _over_steps(pairs: Sequence[_Rows], name: str, absent: int) -> _Floats:
    """Medians over the steps of each rank's common kernels, of many ranks at once."""
    (first, row), *_ = pairs
    at_once = max(_CELLS // max(getattr(first, name)[row].size, 1), 1)
    parts = (
        np.stack([getattr(kernels, name)[rows] for kernels, rows in pairs[part]])
        for part in spans(len(pairs), at_once)
    )
    return np.concatenate([_median(_known(part, absent), 2) for part in parts])


def _known(values: NDArray[np.signedinteger[Any]], absent: int) -> _Floats:
    return np.where(values == absent, np.nan, values.astype(np.float64))


def _lower_median(of_ranks: _Floats) -> _Floats:
    """Lower median over ranks; NaN if no value is known."""
    ordered = np.sort(of_ranks, axis=0)  # NaN last
    place = np.maximum((~np.isnan(of_ranks)).sum(axis=0) - 1, 0) // 2
    taken: _Floats = np.take_along_axis(ordered, place[None], axis=0)[0]
    return taken


def _are_other_mixtures(pairs: Sequence[_Rows], usual: _Floats) -> NDArray[np.bool_]:
    """Kernels whose launches have several sizes, in other proportions than on most ranks."""
    # Shape ``(P, K)``. One more launch can make the quartiles of such a mixture jump from one size
    # to another, for example if an output layer uses the same kernel. Ranks with more of the same
    # layers launch proportionally more of everything. Kernels of one size show how much more.
    launched = _over_steps(pairs, "count", ABSENT)
    relative = launched / np.maximum(np.median(launched, axis=0), 1)
    wide = ~(usual[:, 2] < WIDE * usual[:, 0])
    times = np.median(relative if wide.all() else relative[:, ~wide], axis=1)
    share = relative / np.maximum(times, 1e-9)[:, None]
    near = np.zeros(share.shape, dtype=np.int64)
    for kernel in np.flatnonzero(wide).tolist():
        near[:, kernel] = number_near(share[:, kernel])
    result: NDArray[np.bool_] = (2 * near <= len(pairs)) & wide
    return result


def number_near(values: _Floats) -> NDArray[np.int64]:
    """For each value, the number of values that it differs from by at most ``EQUAL_COUNTS``.

    The difference is relative to those values, which are not negative, and each value counts
    itself. A bisection avoids memory and time quadratic in the number of ranks.
    """
    measure = np.sort(np.maximum(values, 1e-9))

    def first(is_over: Callable[[_Floats], NDArray[np.bool_]]) -> NDArray[np.int64]:
        """First sorted position whose relative difference, which falls, is not over a bound."""
        low = np.zeros(len(values), dtype=np.int64)
        high = np.full(len(values), len(values), dtype=np.int64)
        while (low < high).any():
            middle = np.minimum((low + high) // 2, len(values) - 1)
            over = is_over(values / measure[middle] - 1) & (low < high)
            high = np.where(over, high, np.minimum(middle, high))
            low = np.where(over, middle + 1, low)
        return low

    return first(lambda off: off >= -EQUAL_COUNTS) - first(lambda off: off > EQUAL_COUNTS)


def _median(values: _Floats, axis: int) -> _Floats:
    """Median of the known values; NaN if there are none."""
    known = ~np.isnan(values)
    count = known.sum(axis=axis)
    ordered = np.sort(values, axis=axis)  # NaN last
    low, high = np.maximum(count - 1, 0) // 2, np.maximum(count // 2, 0)

    def at(place: NDArray[np.int64]) -> _Floats:
        taken = np.take_along_axis(ordered, np.expand_dims(place, axis), axis=axis)
        return taken.squeeze(axis)

    result: _Floats = (at(low) + at(high)) / 2
    return result


def _reached(ratio: _Floats, weight: _Floats) -> _Floats:
    """Ratio that :data:`SLOW_DEVICE_SHARE` of the weight reaches; 1 if too few are known."""
    order = np.argsort(ratio, axis=1)  # NaN last
    ordered = np.take_along_axis(ratio, order, axis=1)
    held = np.where(np.isnan(ordered), 0.0, weight[order])
    whole = held.sum(axis=1)
    share = np.cumsum(held, axis=1) / np.maximum(whole[:, None], 1.0)
    place = (share > 1 - SLOW_DEVICE_SHARE).argmax(axis=1)[:, None]
    taken = np.take_along_axis(ordered, place, axis=1)[:, 0]
    return np.where(np.isnan(taken) | (whole < ENOUGH * weight.sum()), 1.0, taken)
