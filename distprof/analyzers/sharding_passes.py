"""How often a step goes through the parameters that ranks share, by the order of operations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distprof.analyzers.sharding_rows import AxisRows, Flags
from distprof.terms import CollectiveKind

__all__ = ["Passes", "passes"]

_LONG_RATIO = 0.6
"""A run of gathers is forward's if it is this long, measured by the longest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """How often a step goes through the parameters.

    Args:
        longest_run: Most gathers in a row.
        gathers: Passes of gathers, by elements; None where types or sizes are not known.
        scatters: Passes of reduce-scatters; None where there are none, or it is not clear.
        units: Units of a pass; None as for ``scatters``.
    """

    longest_run: int
    gathers: float | None
    scatters: int | None
    units: int | None


_NOTHING = Passes(longest_run=0, gathers=None, scatters=None, units=None)


def passes(rows: AxisRows) -> Passes:
    """Passes of one rank's steps, their median.

    Forward gathers unit after unit. In backward a reduce-scatter stands between two gathers, or two
    pairs of them. So each long run of gathers is a forward; without reduce-scatters meanwhile
    (``no_sync``) several are one.
    """
    gathers = rows.of(CollectiveKind.ALL_GATHER)
    scatters = rows.of(CollectiveKind.REDUCE_SCATTER)
    either = np.flatnonzero(gathers | scatters)
    steps = [
        _passes_of_step(rows, gathers, either[rows.step[either] == step])
        for step in sorted(set(rows.step[either].tolist()))
    ]
    known = [step for step in steps if step.scatters is not None]
    if not known:
        return max(steps, key=lambda step: step.longest_run, default=_NOTHING)
    return sorted(known, key=lambda step: step.scatters or 0)[len(known) // 2]


def _passes_of_step(rows: AxisRows, gathers: Flags, order: NDArray[np.intp]) -> Passes:
    lengths = _runs(gathers[order])
    longest = max(lengths, default=0)
    num_scatters = int((~gathers[order]).sum())
    if not lengths or not num_scatters:
        return Passes(longest_run=longest, gathers=None, scatters=None, units=None)
    if longest > 1:
        scatters = sum(length >= _LONG_RATIO * longest for length in lengths)
    else:
        scatters = num_scatters if num_scatters == 1 else 0
    if not scatters or num_scatters % scatters:
        return Passes(longest_run=longest, gathers=None, scatters=None, units=None)
    gathered, scattered = (_amount(rows, order[mask]) for mask in (gathers[order], ~gathers[order]))
    ratio = gathered * scatters / scattered if gathered and scattered else None
    return Passes(
        longest_run=longest, gathers=ratio, scatters=scatters, units=num_scatters // scatters
    )


def _runs(gathers: Flags) -> list[int]:
    """Lengths of runs of gathers; the last goes on in the first, as steps follow each other."""
    if gathers.all():
        return [len(gathers)] if len(gathers) else []
    turned = np.roll(gathers, -int(np.flatnonzero(~gathers)[0]))
    edges = np.flatnonzero(np.diff(np.concatenate(([False], turned, [False])).astype(np.int8)))
    lengths: list[int] = (edges[1::2] - edges[::2]).tolist()
    return lengths


def _amount(rows: AxisRows, chosen: NDArray[np.intp]) -> int:
    """Elements, 0 where one is not known."""
    elements = rows.elements[chosen]
    return 0 if (elements < 0).any() else int(elements.sum())
