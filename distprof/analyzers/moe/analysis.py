"""Experts: what routers chose, joined with what the ranks that hold the experts did.

Time lost to imbalance, by the formula sheet ("Mixture of experts"): the expert time of the slowest
rank of a group less the mean of all, section by section. The others spend it waiting in combine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from distprof.analyzers.context import RankAnalysis
from distprof.analyzers.moe.calls import label_calls
from distprof.analyzers.moe.counts import analyze_counts
from distprof.analyzers.moe.exchange import GroupExchanges, find_exchanges
from distprof.analyzers.moe.load import ALL_TO_ALL_SIZES, Totals, measure_load
from distprof.analyzers.moe.pairs import exchange_of, pairs_of
from distprof.analyzers.moe.placement import placement_of_log
from distprof.analyzers.moe.result import MoeLayer, MoePlacement, MoeResult
from distprof.analyzers.moe.routing import Routing
from distprof.run.places import coordinates_of
from distprof.run.run import Run
from distprof.schema import Int64Array

__all__ = ["analyze_moe"]

MAX_PAIR_RANKS = 64


def analyze_moe(
    run: Run,
    analyses: Mapping[int, RankAnalysis],
    wait_ends: Mapping[int, Int64Array],
    logged: MoeResult,
    routing: Sequence[Routing],
) -> MoeResult:
    """How uneven experts and the ranks that hold them are, and what that costs.

    Args:
        run: The recording.
        analyses: By global rank.
        wait_ends: By global rank, when the last member of each collective started.
        logged: What :func:`distprof.analyzers.moe.routing.combine_routing` found.
        routing: Of the ranks that logged theirs.

    Source:
        Formula sheet, "Mixture of experts".
    """
    if run.expert_counts is not None:
        return analyze_counts(run.expert_counts)
    has_log = any(log.calls is not None for log in routing)
    groups = find_exchanges(run, analyses, wait_ends)
    groups = tuple(group for group in groups if group.is_expert or (has_log and group.may_be))
    places = coordinates_of(run.job) if run.job else {}
    if not groups:
        return _without_exchanges(run, logged, routing, places)
    numbers = _step_numbers(analyses)
    labels = [label_calls(group, routing, places, numbers) for group in groups]
    load = measure_load(groups, labels, len(numbers))
    exchanges = tuple(exchange_of(group, len(numbers)) for group in groups)
    said = (*load.problems, *(text for label in labels for text in label.problems))
    return msgspec.structs.replace(
        logged,
        layers=_with_times(logged.layers, load.placement),
        origin=logged.origin or (ALL_TO_ALL_SIZES if load.placement else None),
        placement=load.placement,
        ranks=load.ranks,
        exchanges=exchanges,
        pairs=pairs_of(groups, len(numbers)) if _num_ranks(groups) <= MAX_PAIR_RANKS else (),
        unavailable=tuple(dict.fromkeys((*logged.unavailable, *said))),
        **_totals(load.totals),
    )


def _without_exchanges(
    run: Run,
    logged: MoeResult,
    routing: Sequence[Routing],
    places: Mapping[int, Mapping[str, int]],
) -> MoeResult:
    """What a routing log alone tells of ranks: experts in contiguous blocks over the mesh axis."""
    if not logged.layers:
        return logged
    placement = placement_of_log(routing, places)
    why = []
    if run.ranks:
        why.append(
            "No all-to-all of experts could be joined across ranks: what their imbalance costs is "
            "not known."
        )
    if not placement:
        why.append("Which ranks share experts is not known.")
    return msgspec.structs.replace(
        logged, placement=placement, unavailable=(*logged.unavailable, *why)
    )


def _step_numbers(analyses: Mapping[int, RankAnalysis]) -> tuple[int, ...]:
    """Numbers of the analysed steps, as the profiler counts them."""
    first = next(iter(analyses.values()))
    return tuple(step.step for step in first.steps)


def _num_ranks(groups: Sequence[GroupExchanges]) -> int:
    return len({rank for group in groups for rank in group.ranks})


def _totals(totals: Totals | None) -> dict[str, int | None]:
    if totals is None:
        return {}
    return {
        "expert_ns_per_step": round(totals.slowest_ns),
        "lost_ns_per_step": round(totals.slowest_ns - totals.mean_ns),
        "balanced_ns_per_step": round(totals.mean_ns),
        "replaced_ns_per_step": None if totals.replaced_ns is None else round(totals.replaced_ns),
        "combine_wait_ns_per_step": None if totals.wait_ns is None else round(totals.wait_ns),
    }


def _with_times(
    layers: Sequence[MoeLayer], placement: Sequence[MoePlacement]
) -> tuple[MoeLayer, ...]:
    """The layers with the times of their experts, where these could be told apart."""
    by_name = {row.layer: row for row in placement if row.expert_ns_per_step is not None}
    return tuple(_with_time(layer, by_name.get(layer.layer)) for layer in layers)


def _with_time(layer: MoeLayer, row: MoePlacement | None) -> MoeLayer:
    if row is None or row.expert_ns_per_step is None or row.lost_ns_per_step is None:
        return layer
    return msgspec.structs.replace(
        layer,
        lost_ns_per_step=row.lost_ns_per_step,
        expert_ns_per_step=row.expert_ns_per_step,
        balanced_ns_per_step=row.expert_ns_per_step - row.lost_ns_per_step,
        replaced_ns_per_step=row.replaced_ns_per_step,
    )
