"""Rules about placement: groups across nodes, and ranks and cards of hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

from distprof.artefacts.record import grouped
from distprof.escape import fitting
from distprof.rules.base import Draft, InsufficientEvidenceError, advice, rule, worth
from distprof.sections.moe import MoeResult
from distprof.sections.placement import ACROSS_SOCKETS, CardPath, PlacedAxis, PlacementResult
from distprof.sections.shares import WIDER_TRANSFER, MeanStep, StepTimes
from distprof.terms import Confidence, MeshAxis, Severity
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
    return [
        (outer, max(inner, key=lambda axis: _NEED[axis.axis]))
        for outer in axes
        if (inner := [axis for axis in axes if _could_swap(outer, axis, placement)])
    ]


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


def _transfer(
    axis: PlacedAxis, cost_ns: int | None, where: str = "placement.nodes"
) -> dict[str, Any]:
    """What findings on the transfer of an axis have in common; a cost of None is unknown."""
    return {
        "cost_ns_per_step": cost_ns,
        "confidence": Confidence.INFERRED if cost_ns is None else Confidence.MODELLED,
        "ranks": axis.ranks,
        "evidence": ("placement.axes", where),
        "without": f"axis {axis.axis}",
        "explains": WIDER_TRANSFER,
    }


def _known(placement: PlacementResult) -> tuple[PlacedAxis, ...]:
    return tuple(axis for axis in placement.axes if axis.axis != MeshAxis.WORLD.value)


def _sent(axes: Iterable[PlacedAxis]) -> float:
    return sum(axis.sent_bytes_per_step or 0 for axis in axes)


@rule("COM108", Severity.ERROR, min_step_ratio=worth(0.05))
def tp_across_nodes(placement: PlacementResult, times: StepTimes) -> Iterator[Draft]:
    """Tensor- or context-parallel groups span scale-up domains, so their collectives cross the
    network between nodes.
    """
    found = crossing(placement, lambda name: name in EXPOSED_BY_NATURE)
    if not found:
        return
    step = times.mean_step()
    for axis in found:
        cost = exposed_ns([axis], step)
        yield Draft(
            headline=_crosses(axis.axis, step.part(cost)),
            message=(
                f"Groups of {axis.axis} ({axis.size} ranks) span {_where(axis, placement)}; "
                f"{step.amount(cost)}.{modelled_inside(axis, placement)}"
            ),
            fix=_fix(axis, placement),
            **_transfer(axis, cost),
            severity=None if axis.axis == MeshAxis.TP.value else Severity.WARNING,
        )


def _crosses(axis: str, part: str) -> str:
    return fitting(
        f"Transfer of {axis} between nodes takes {part}", f"Transfer between nodes takes {part}"
    )


def _where(axis: PlacedAxis, placement: PlacementResult) -> str:
    if placement.domain_size == 1:
        return f"{axis.num_nodes} nodes of one rank each"
    if axis.num_domains == axis.num_nodes:
        return f"{axis.num_nodes} nodes"
    return f"{axis.num_domains} scale-up domains"


def _fix(axis: PlacedAxis, placement: PlacementResult) -> str:
    """A fix for a group that is too large for a domain, or badly placed in it."""
    room = placement.domain_size or 0
    if room == 1:
        return advice("tp-across-nodes", "alone")
    if axis.size <= room:
        return advice("tp-across-nodes", "badly-placed", axis=axis.axis, room=room)
    if axis.axis == MeshAxis.CP.value:
        return advice("tp-across-nodes", "context", axis=axis.axis, room=room)
    return advice("tp-across-nodes", "too-large", axis=axis.axis, room=room)


@rule(
    "COM109",
    Severity.WARNING,
    min_step_ratio=worth(0.1, "largest acceptable share of the step for this exchange"),
)
def expert_exchange_across_nodes(
    placement: PlacementResult, moe: MoeResult, times: StepTimes
) -> Iterator[Draft]:
    """The groups of expert all-to-alls span several nodes with several ranks on each, so every rank
    sends to every rank of every other node.
    """
    is_expert = bool(moe.layers or moe.exchanges)
    others = (*EXPOSED_BY_NATURE, MeshAxis.WORLD.value)
    may_be = (
        (lambda name: name not in others) if is_expert else (lambda name: name == MeshAxis.EP.value)
    )
    axes = crossing(placement, may_be)
    found = [axis for axis in axes if axis.size >= 2 * axis.num_nodes]
    if not found:
        return
    step = times.mean_step()
    for axis in found:
        cost = min(axis.exchange_ns_per_step or 0, step.exposed_transfer_ns)
        yield Draft(
            headline=f"All-to-alls of experts between nodes take {step.part(cost)}",
            message=(
                f"Groups of {axis.axis} have {axis.size} ranks, {axis.most_on_node} on each of "
                f"{axis.num_nodes} nodes; their exposed transfer takes {step.amount(cost)}."
            ),
            **_transfer(axis, cost),
        )


@rule("NET106", Severity.WARNING, min_step_ratio=worth(0.02))
def group_straddles_nodes(placement: PlacementResult, times: StepTimes) -> Iterator[Draft]:
    """Process groups that would fit into one node span two because their size does not divide the
    ranks of a node.
    """
    if placement.order in ("cyclic", "irregular"):
        placed(placement)
        return  # the mesh may be laid out for this order
    for axis in crossing(placement):
        if axis.axis in EXPOSED_BY_NATURE or not axis.could_fit:
            continue
        step = times.mean_step_if_timed()
        cost = None if step is None else exposed_ns([axis], step)
        share = "" if step is None else f": exposed transfer takes {step.amount(cost or 0)}"
        yield Draft(
            headline=(
                f"Groups that would fit into a node span {axis.num_domains} nodes or domains"
                if step is None
                else _crosses(axis.axis, step.part(cost or 0))
            ),
            message=(
                f"Groups of {axis.axis} ({_apart(axis)}) would fit into a node or domain of "
                f"{placement.domain_size} ranks, but some span {axis.num_domains}{share}."
            ),
            severity=None if cost is not None else Severity.INFO,
            **_transfer(axis, cost),
        )


def _apart(axis: PlacedAxis) -> str:
    if axis.stride == 1:
        return f"{axis.size} ranks next to each other"
    return f"{axis.size} ranks, {axis.stride} apart"


@rule("NET108", Severity.ERROR, min_step_ratio=worth(0.02))
def mesh_order(placement: PlacementResult, times: StepTimes) -> Iterator[Draft]:
    """A mesh axis that needs high bandwidth crosses nodes while one that needs less stays inside a
    node: the axes are in the wrong order.
    """
    placed(placement)
    pairs = swappable(placement)
    if not pairs:
        return
    step = times.mean_step()
    for outer, inner in pairs:
        cost = exposed_ns([outer], step)
        where = "nodes" if outer.num_domains == outer.num_nodes else "scale-up domains"
        yield Draft(
            headline=fitting(
                f"Order of the mesh: transfer of {outer.axis} between {where} takes "
                f"{step.part(cost)}",
                f"Order of the mesh: transfer between {where} takes {step.part(cost)}",
            ),
            message=(
                f"Groups of {outer.axis} ({outer.size} ranks, {outer.stride} apart) span "
                f"{outer.num_domains} {where} while those of {inner.axis} ({inner.size} ranks) "
                f"stay inside one; {step.amount(cost)}.{modelled_inside(outer, placement)}"
            ),
            fix=advice("mesh-order", inner=inner.axis, outer=outer.axis),
            **_transfer(outer, cost, "run.mesh"),
        )


@rule("NET107", Severity.ERROR, min_step_ratio=worth(0.02))
def cyclic_rank_order(placement: PlacementResult, times: StepTimes) -> Iterator[Draft]:
    """Ranks are assigned round-robin to the nodes (rank 0 on the first, rank 1 on the second, …),
    so groups of neighbouring ranks span nodes.
    """
    placed(placement)
    axes = out_of_turn(placement)
    if not axes:
        return
    step = times.mean_step()
    cost = exposed_ns(axes, step)
    worst = max(axes, key=lambda axis: axis.exposed_transfer_ns_per_step or 0)
    others = "" if len(axes) == 1 else f" (and of {len(axes) - 1} more axes)"
    yield Draft(
        headline=f"Round-robin ranks: transfer between nodes takes {step.part(cost)}",
        message=(
            f"Ranks are assigned round-robin to {len(placement.nodes)} nodes, so groups of "
            f"{worst.axis} ({worst.size} ranks){others} span {worst.num_nodes} nodes instead of "
            f"{worst.nodes_if_blocked}: their exposed transfer takes {step.amount(cost)}."
        ),
        cost_ns_per_step=cost,
        confidence=Confidence.MODELLED,
        evidence=("placement.order", "placement.axes"),
        without=f"axis {worst.axis}",
        explains=WIDER_TRANSFER,
    )


@rule("NET109", Severity.WARNING, costs_time=False)
def far_network_card(placement: PlacementResult) -> Iterator[Draft]:
    """GPUs send to other nodes through a network card on another socket. Either NCCL uses a card
    that is not the nearest, or the machine has no near card for these GPUs but has one for others.
    """
    if len(placement.nodes) < 2:
        return  # no traffic leaves the machine
    for host, gpus in grouped([(card.host, card) for card in placement.cards]).items():
        detours = [gpu for gpu in gpus if gpu.used_path == ACROSS_SOCKETS and _has_near(gpu)]
        remote = [gpu for gpu in gpus if gpu.path == ACROSS_SOCKETS]
        where = f"on {host}" if host else "on one node"
        if detours:
            yield _draft(
                detours,
                f"{len(detours)} of {len(gpus)} GPUs use a network card on another socket",
                f"They are {where}, and a nearer card exists, for example {_detour(detours[0])}.",
                Severity.WARNING,
            )
        elif remote and any(_has_near(gpu) for gpu in gpus):
            yield _draft(
                remote,
                f"{len(remote)} of {len(gpus)} GPUs have no network card on their own socket",
                f"They are {where}, for example {remote[0].gpu}; the other GPUs have one.",
                Severity.INFO,
            )


def _draft(gpus: Sequence[CardPath], headline: str, message: str, severity: Severity) -> Draft:
    return Draft(
        headline=headline,
        message=message,
        confidence=Confidence.INFERRED,
        severity=severity,
        ranks=tuple(sorted(gpu.rank for gpu in gpus if gpu.rank is not None)),
        evidence=("placement.cards",),
    )


def _has_near(gpu: CardPath) -> bool:
    return gpu.path not in ("", ACROSS_SOCKETS)


def _detour(gpu: CardPath) -> str:
    used, near = ", ".join(gpu.used), ", ".join(gpu.nearest)
    return f"{gpu.gpu}: {used} ({gpu.used_path}) instead of {near} ({gpu.path})"


@rule("NET110", Severity.WARNING, costs_time=False)
def uneven_ranks_per_node(placement: PlacementResult) -> Iterator[Draft]:
    """Nodes hold different numbers of ranks of one job."""
    placed(placement, lambda _: True)
    sizes = {node.node: len(node.ranks) for node in placement.nodes}
    if not placement.is_whole or len(set(sizes.values())) < 2:
        return
    if any(axis.could_fit and axis.exposed_transfer_ns_per_step for axis in crossing(placement)):
        return
    most = max(sizes, key=lambda node: sizes[node])
    least = min(sizes, key=lambda node: sizes[node])
    yield Draft(
        headline=f"Ranks are spread unevenly over {len(sizes)} nodes",
        message=(
            f"{sizes[most]} of {sum(sizes.values())} are on {most}, {sizes[least]} on {least}."
        ),
        ranks=tuple(
            rank for node in placement.nodes if node.node in (most, least) for rank in node.ranks
        ),
        evidence=("placement.nodes",),
    )
