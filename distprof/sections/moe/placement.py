"""How even ranks are that share the experts of a layer, as they are and placed anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from distprof.costs.moe import Placement, contiguous_placement, load_imbalance, place_experts
from distprof.sections.moe.calls import logged_calls
from distprof.sections.moe.result import MoePlacement
from distprof.sections.moe.routing import ROUTING_LOG, Routing
from distprof.terms import MeshAxis

__all__ = ["placement_of_log", "placement_row", "row_of_experts"]

_Floats = NDArray[np.float64]


def placement_row(
    layer: str,
    rank_load: _Floats,
    *,
    origin: str,
    expert_load: NDArray[np.int64] | None = None,
    placed: Placement | None = None,
    part: str = "",
) -> MoePlacement:
    """How even ranks are in the calls of one layer, and how even they would be placed anew.

    Args:
        layer: Its name.
        rank_load: Tokens of each rank in each call, ``(calls, ranks)``; each call has some.
        origin: Where they come from.
        expert_load: Assignments per expert of each call, None where experts are not told apart.
        placed: Another placement of one layer, None where none was sought.
        part: Part of the data.
    """
    load = load_imbalance(rank_load)
    row = MoePlacement(
        layer=layer,
        part=part,
        num_ranks=rank_load.shape[1],
        origin=origin,
        num_calls=len(rank_load),
        tokens_per_call=float(rank_load.sum(axis=1).mean()),
        max_over_mean=float(load.mean()),
        worst_max_over_mean=float(load.max()),
    )
    if expert_load is None or placed is None:
        return row
    fields = {name: getattr(row, name) for name in row.__struct_fields__}
    anew = load_imbalance(placed.rank_loads(expert_load[:, np.newaxis])[:, 0])
    return MoePlacement(
        **{
            **fields,
            "expert_max_over_mean": float(load_imbalance(expert_load).mean()),
            "replaced_max_over_mean": float(anew.mean()),
            "rank_of_expert": tuple(placed.rank_of_expert[0].tolist()),
        }
    )


def placement_of_log(
    routing: Sequence[Routing], places: Mapping[int, Mapping[str, int]]
) -> tuple[MoePlacement, ...]:
    """Ranks against each other by the log alone: contiguous blocks over the expert axis.

    Args:
        routing: Logs of all ranks.
        places: Rank to its index along each mesh axis; without an expert axis nothing is said.
    """
    loads: dict[str, list[NDArray[np.int64]]] = {}
    size = 0
    for ranks in _axis_groups(places):
        log = logged_calls(ranks, routing, places)
        if log is None or len(log.members) < len(ranks) or log.tokens.shape[2] % len(ranks):
            continue
        size, tokens = len(ranks), log.tokens.sum(axis=0)
        for layer, name in enumerate(log.names):
            called = tokens[(log.layer == layer) & (tokens.sum(axis=1) > 0)]
            loads.setdefault(name, []).append(called)
    whole = {name: np.concatenate(found) for name, found in loads.items()}
    return tuple(
        row_of_experts(name, tokens, size, ROUTING_LOG)
        for name, tokens in whole.items()
        if len(tokens)
    )


def row_of_experts(
    name: str, tokens: NDArray[np.int64], size: int, origin: str, part: str = ""
) -> MoePlacement:
    """The row of a layer whose experts lie in contiguous blocks on ``size`` ranks.

    Args:
        name: Of the layer.
        tokens: Assignments per expert of each call, ``(calls, experts)``.
        size: Ranks; they divide the experts.
        origin: Where the tokens come from.
        part: Part of the data.
    """
    usual = contiguous_placement(1, tokens.shape[1], size)
    return placement_row(
        name,
        usual.rank_loads(tokens[:, np.newaxis])[:, 0],
        origin=origin,
        expert_load=tokens,
        placed=place_experts(tokens.sum(axis=0, keepdims=True), size),
        part=part,
    )


def _axis_groups(places: Mapping[int, Mapping[str, int]]) -> list[tuple[int, ...]]:
    """Ranks that differ in their place on the expert axis alone, ascending on it."""
    groups: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for rank, place in sorted(places.items()):
        if MeshAxis.EP in place:
            others = tuple((axis, at) for axis, at in place.items() if axis != MeshAxis.EP)
            groups.setdefault(others, []).append(rank)
    ordered = [tuple(sorted(ranks, key=lambda r: places[r]["ep"])) for ranks in groups.values()]
    return [ranks for ranks in ordered if len(ranks) > 1]
