"""Shared by the placement rules: which axes are placed badly, and which rule reports each.

An axis may cross nodes because ranks are numbered round-robin, because the mesh axes are in the
wrong order, or because the axis is too large or not aligned. This module checks the causes in that
order, so that one problem is one finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod

from distprof.rules.base import InsufficientEvidenceError
from distprof.sections.placement.result import PlacedAxis, PlacementResult
from distprof.sections.shares import MeanStep
from distprof.terms import MeshAxis
from distprof.units import format_bandwidth, format_bytes, format_duration

EXPOSED_BY_NATURE = (MeshAxis.TP.value, MeshAxis.CP.value)
"""Axes whose ranks wait for each other in every layer."""

_NEED: Mapping[str, int] = {
    MeshAxis.TP.value: 0,
    MeshAxis.EP.value: 1,
    MeshAxis.CP.value: 1,
    MeshAxis.PP.value: 2,
    MeshAxis.DP_SHARD.value: 3,
    MeshAxis.DP.value: 4,
    MeshAxis.DP_REPLICATE.value: 4,
}
"""Axes ranked by bandwidth need, highest first (formula sheet, "Choosing a strategy"). Frameworks
differ in whether experts or context come first."""

_MAY_BE_OUTSIDE = (MeshAxis.PP.value, MeshAxis.DP.value, MeshAxis.DP_REPLICATE.value)
"""Axes that should leave a node first: stages send little, and gradients overlap with backward."""


def placed(
    placement: PlacementResult, wanted: Callable[[str], bool] | None = None
) -> tuple[PlacedAxis, ...]:
    """Axes other than the world; ``wanted`` selects those whose nodes must be known."""
    is_wanted = wanted or (lambda name: name != MeshAxis.WORLD.value)
    if not placement.nodes and any(is_wanted(name) for name in placement.unplaced):
        raise InsufficientEvidenceError("the nodes of the ranks are unknown")
    return _known(placement)


def crossing(
    placement: PlacementResult, wanted: Callable[[str], bool] | None = None
) -> list[PlacedAxis]:
    """Axes that leave their scale-up domain, except those that another rule explains."""
    axes = placed(placement, wanted)
    explained = [*out_of_turn(placement), *(outer for outer, _ in swappable(placement))]
    return [
        axis
        for axis in axes
        if axis.num_domains > 1 and axis not in explained and (wanted is None or wanted(axis.axis))
    ]


def out_of_turn(placement: PlacementResult) -> list[PlacedAxis]:
    """Axes that would span fewer nodes if ranks were numbered node by node."""
    if placement.order != "cyclic":
        return []
    axes = [axis for axis in _known(placement) if axis.nodes_if_blocked is not None]
    gain = [axis for axis in axes if (axis.nodes_if_blocked or 0) < axis.num_nodes]
    lose = [axis for axis in axes if (axis.nodes_if_blocked or 0) > axis.num_nodes]
    return [] if _sent(lose) > _sent(gain) else gain


def swappable(placement: PlacementResult) -> list[tuple[PlacedAxis, PlacedAxis]]:
    """Pairs of an axis that leaves its domain and one inside that needs less bandwidth."""
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
    """Mean exposed transfer of the axes per rank and step, at most all exposed transfer."""
    chosen = list(axes)
    times = [a.exposed_transfer_ns_per_step for a in chosen]
    known = [time for time in times if time is not None]
    if chosen and not known:
        names = " and ".join(sorted({axis.axis for axis in chosen}))
        raise InsufficientEvidenceError(
            f"waiting and transfer of the {names} axis cannot be separated"
        )
    return min(sum(known), step.exposed_transfer_ns)


def modelled_inside(axis: PlacedAxis, placement: PlacementResult) -> str:
    """A sentence on the modelled transfer time of an axis inside a domain; empty if unknown."""
    sent, bandwidth = axis.sent_bytes_per_step, placement.scale_up_bandwidth
    if not sent or not bandwidth:
        return ""
    return (
        f" A rank sends {format_bytes(sent)} per step on it. The links inside a domain "
        f"({format_bandwidth(bandwidth)} according to the hardware sheet) would carry that in "
        f"about {format_duration(sent / bandwidth * 1e9)} plus latency."
    )


def _could_swap(outer: PlacedAxis, inner: PlacedAxis, placement: PlacementResult) -> bool:
    """Whether ``outer`` needs more bandwidth than ``inner`` and would fit into its domain."""
    first, second = _NEED.get(outer.axis), _NEED.get(inner.axis)
    if outer.axis in _MAY_BE_OUTSIDE or first is None or second is None or first >= second:
        return False
    is_outside = outer.num_domains > 1 and outer.stride is not None and outer.stride > 1
    is_inside = inner.num_domains == 1 and inner.stride is not None
    if not (is_outside and is_inside and (inner.stride or 0) < (outer.stride or 0)):
        return False
    if outer.axis == MeshAxis.DP_SHARD.value and outer.size >= 2 * outer.num_nodes:
        return False  # sharding-across-nodes reports it
    if outer.axis != MeshAxis.TP.value and _sent([inner]) > _sent([outer]):
        return False  # traffic inside layers is exposed, however small
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
