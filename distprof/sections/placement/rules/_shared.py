"""What rules on placement share: which axes lie badly, and which one rule says so of each.

An axis may cross nodes because ranks are numbered in turn, because the mesh has its axes in the
wrong order, or because it is too large or not aligned. These are told apart here in that order, so
that one problem is one finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod

from distprof.rules.base import InsufficientEvidenceError
from distprof.sections.placement.result import PlacedAxis, PlacementResult
from distprof.sections.shares import MeanStep
from distprof.terms import MeshAxis
from distprof.units import format_bandwidth, format_bytes, format_duration

__all__ = [
    "EXPOSED_BY_NATURE",
    "crossing",
    "exposed_ns",
    "modelled_inside",
    "out_of_turn",
    "placed",
    "swappable",
]

EXPOSED_BY_NATURE = (MeshAxis.TP.value, MeshAxis.CP.value)
"""Axes that wait for each other inside every layer."""

_NEED: Mapping[str, int] = {
    MeshAxis.TP.value: 0,
    MeshAxis.EP.value: 1,
    MeshAxis.CP.value: 1,
    MeshAxis.PP.value: 2,
    MeshAxis.DP_SHARD.value: 3,
    MeshAxis.DP.value: 4,
    MeshAxis.DP_REPLICATE.value: 4,
}
"""Bandwidth that axes need, most first (formula sheet, "Choosing a strategy"); experts and context
are put in either order by frameworks."""

_MAY_BE_OUTSIDE = (MeshAxis.PP.value, MeshAxis.DP.value, MeshAxis.DP_REPLICATE.value)
"""What leaves a node first: stages send little, and gradients hide behind backward."""


def placed(
    placement: PlacementResult, wanted: Callable[[str], bool] | None = None
) -> tuple[PlacedAxis, ...]:
    """Axes other than the world.

    Args:
        placement: Where groups lie.
        wanted: Which axes a rule is about; None for all but the world.

    Raises:
        InsufficientEvidenceError: If the job has such groups and no rank's node is known.
    """
    is_wanted = wanted or (lambda name: name != MeshAxis.WORLD.value)
    if not placement.nodes and any(is_wanted(name) for name in placement.unplaced):
        raise InsufficientEvidenceError("which node the ranks are on is not known")
    return _known(placement)


def crossing(
    placement: PlacementResult, wanted: Callable[[str], bool] | None = None
) -> list[PlacedAxis]:
    """Axes that leave their scale-up domain for no reason that another rule names.

    Raises:
        InsufficientEvidenceError: As for :func:`placed`.
    """
    axes = placed(placement, wanted)
    explained = [*out_of_turn(placement), *(outer for outer, _ in swappable(placement))]
    return [
        axis
        for axis in axes
        if axis.num_domains > 1 and axis not in explained and (wanted is None or wanted(axis.axis))
    ]


def out_of_turn(placement: PlacementResult) -> list[PlacedAxis]:
    """Axes that would span fewer nodes if ranks were numbered node by node.

    None where an axis that sends more would span more then.
    """
    if placement.order != "cyclic":
        return []
    axes = [axis for axis in _known(placement) if axis.nodes_if_blocked is not None]
    gain = [axis for axis in axes if (axis.nodes_if_blocked or 0) < axis.num_nodes]
    lose = [axis for axis in axes if (axis.nodes_if_blocked or 0) > axis.num_nodes]
    return [] if _sent(lose) > _sent(gain) else gain


def swappable(placement: PlacementResult) -> list[tuple[PlacedAxis, PlacedAxis]]:
    """Axes that leave their domain, each with an axis of less need that lies inside it instead."""
    if placement.order == "cyclic":
        return []
    axes = _known(placement)
    found = []
    for outer in axes:
        inner = [axis for axis in axes if _could_swap(outer, axis, placement)]
        if inner:
            found.append((outer, max(inner, key=lambda axis: _NEED[axis.axis])))
    return found


def exposed_ns(axes: Iterable[PlacedAxis], step: MeanStep) -> int:
    """Exposed transfer of some axes, mean per rank and step, at most all that is exposed.

    Raises:
        InsufficientEvidenceError: If none of them has a time.
    """
    chosen = list(axes)
    times = [a.exposed_transfer_ns_per_step for a in chosen]
    known = [time for time in times if time is not None]
    if chosen and not known:
        names = " and ".join(sorted({axis.axis for axis in chosen}))
        raise InsufficientEvidenceError(
            f"waiting and transfer of the {names} axis could not be told apart"
        )
    return min(sum(known), step.exposed_transfer_ns)


def modelled_inside(axis: PlacedAxis, placement: PlacementResult) -> str:
    """What the bytes of an axis take inside a domain, for people; empty where not known."""
    sent, bandwidth = axis.sent_bytes_per_step, placement.scale_up_bandwidth
    if not sent or not bandwidth:
        return ""
    return (
        f" A rank sends {format_bytes(sent)} a step on it, which the links inside a domain "
        f"({format_bandwidth(bandwidth)} by the hardware sheet) carry in about "
        f"{format_duration(sent / bandwidth * 1e9)}, latency aside."
    )


def _could_swap(outer: PlacedAxis, inner: PlacedAxis, placement: PlacementResult) -> bool:
    """Whether ``outer`` would lie inside a domain in the place of ``inner``, and needs it more."""
    first, second = _NEED.get(outer.axis), _NEED.get(inner.axis)
    if outer.axis in _MAY_BE_OUTSIDE or first is None or second is None or first >= second:
        return False
    is_outside = outer.num_domains > 1 and outer.stride is not None and outer.stride > 1
    is_inside = inner.num_domains == 1 and inner.stride is not None
    if not (is_outside and is_inside and (inner.stride or 0) < (outer.stride or 0)):
        return False
    if outer.axis == MeshAxis.DP_SHARD.value and outer.size >= 2 * outer.num_nodes:
        return False  # sharding-across-nodes says so
    if outer.axis != MeshAxis.TP.value and _sent([inner]) > _sent([outer]):
        return False  # of layers' own traffic nothing hides, however little it is
    stays = prod(
        axis.size
        for axis in _known(placement)
        if axis.num_domains == 1 and _NEED.get(axis.axis, first) < first
    )
    return stays * outer.size <= (placement.domain_size or 0)


def _known(placement: PlacementResult) -> tuple[PlacedAxis, ...]:
    return tuple(axis for axis in placement.axes if axis.axis != MeshAxis.WORLD.value)


def _sent(axes: Iterable[PlacedAxis]) -> float:
    return sum(axis.sent_bytes_per_step or 0 for axis in axes)
