"""Experts: the routing, joined with the exchanges and times of the ranks that hold the experts.

The time lost to imbalance (formula sheet, "Mixture of experts") is the expert time of the slowest
rank of a group less the mean of the group, per section. The other ranks spend it waiting in the
combine.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from distprof.run.evidence import ExpertCounts
from distprof.run.run import Run
from distprof.run.topology import coordinates_of
from distprof.sections.context import ProbeRecords, RankAnalyses
from distprof.sections.moe.calls import label_calls
from distprof.sections.moe.exchange import exchange_of, find_exchanges, pairs_of
from distprof.sections.moe.load import (
    ALL_TO_ALL_SIZES,
    Times,
    measure_load,
    placement_of_log,
    row_of_experts,
)
from distprof.sections.moe.result import MoeLayer, MoePlacement, MoeResult
from distprof.sections.moe.routing import (  # noqa: F401 - part of the records
    Routing,
    combine_routing,
    layer_of_counts,
    measure_routing,
)

EXPERT_COUNTS = "expert counts"

MAX_PLACED_EXPERTS = 100_000
"""With more counts in all parts and layers, placements are computed for one number of ranks."""


def _of_counts(counts: ExpertCounts) -> MoeResult:
    """Load of every layer in every part of the data, and of ranks if they shared its experts."""
    layers: list[MoeLayer] = []
    placement: list[MoePlacement] = []
    problems: list[str] = []
    rows = (
        (part, name, tokens)
        for part, table in counts.tokens.items()
        for name, tokens in zip(counts.layers, table, strict=True)
    )
    for part, name, tokens in rows:
        if not tokens.sum():
            of = f" of {part}" if part else ""
            problems.append(f"Layer {name}{of} has no counts and is left out.")
            continue
        layer = layer_of_counts(
            name,
            tokens[np.newaxis],
            num_tokens=float(tokens.sum()) / (counts.top_k or 1),
            dropped=0,
            top_k=counts.top_k or 0,
        )
        layers.append(msgspec.structs.replace(layer, part=part))
        placement += [
            row_of_experts(name, tokens[np.newaxis], size, EXPERT_COUNTS, part)
            for size in _sizes(counts)
        ]
    return MoeResult(
        layers=tuple(layers),
        origin=EXPERT_COUNTS if layers else None,
        placement=tuple(placement),
        unavailable=(*problems, "Counts have no times, so the cost of the imbalance is unknown."),
    )


def _sizes(counts: ExpertCounts) -> tuple[int, ...]:
    """Numbers of ranks, from 2 on, that can share the experts evenly, each with at least 2."""
    table = next(iter(counts.tokens.values()))
    experts = int(table.shape[1])
    sizes = tuple(size for size in range(2, experts) if experts % size == 0)
    if len(counts.tokens) * table.size <= MAX_PLACED_EXPERTS:
        return sizes
    return tuple(sorted(sizes, key=lambda size: (abs(size - 8), size))[:1])


# Routing and exchanges ----------------------------------------------------------------------------

MAX_PAIR_RANKS = 64


def analyze_moe(run: Run, analyses: RankAnalyses, records: ProbeRecords) -> MoeResult:
    """Measure the imbalance of experts and of the ranks that hold them, and its cost."""
    routing = tuple(records.of(Routing).values())
    places = coordinates_of(run.job) if run.job else {}
    logged = combine_routing(routing, places, records.why("moe_routing", routing))
    return with_exchanges(run, analyses, logged, routing)


def with_exchanges(
    run: Run, analyses: RankAnalyses, logged: MoeResult, routing: Sequence[Routing]
) -> MoeResult:
    """Join the routing with the exchanges and times of the ranks that hold the experts."""
    if (counts := run.get(ExpertCounts)) is not None:
        return _of_counts(counts)
    has_log = any(log.calls is not None for log in routing)
    groups = find_exchanges(run, analyses, analyses.wait_ends)
    groups = tuple(group for group in groups if group.is_expert or (has_log and group.may_be))
    places = coordinates_of(run.job) if run.job else {}
    if not groups:
        # compare ranks by the routing log alone, with experts in contiguous blocks over the axis
        if not logged.layers:
            return logged
        placement = placement_of_log(routing, places)
        why = []
        if run.ranks:
            why.append(
                "No expert all-to-all could be matched across ranks, so the cost of the imbalance "
                "is unknown."
            )
        if not placement:
            why.append("The ranks that share experts are unknown.")
        return msgspec.structs.replace(
            logged, placement=placement, unavailable=(*logged.unavailable, *why)
        )
    first = next(iter(analyses.values()))
    numbers = tuple(step.step for step in first.steps)
    labels = [label_calls(group, routing, places, numbers) for group in groups]
    load = measure_load(groups, labels, len(numbers))
    exchanges = tuple(exchange_of(group, len(numbers)) for group in groups)
    problems = (*load.problems, *(text for label in labels for text in label.problems))
    by_name = {row.layer: row for row in load.placement if row.expert_ns_per_step is not None}
    return msgspec.structs.replace(
        logged,
        layers=tuple(_with_time(layer, by_name.get(layer.layer)) for layer in logged.layers),
        origin=logged.origin or (ALL_TO_ALL_SIZES if load.placement else None),
        placement=load.placement,
        ranks=load.ranks,
        exchanges=exchanges,
        pairs=pairs_of(groups, len(numbers))
        if len({rank for group in groups for rank in group.ranks}) <= MAX_PAIR_RANKS
        else (),
        unavailable=tuple(dict.fromkeys((*logged.unavailable, *problems))),
        **_totals(load.totals),
    )


def _totals(totals: Times | None) -> dict[str, int | None]:
    if totals is None:
        return {}
    return {
        "expert_ns_per_step": round(totals.slowest_ns),
        "lost_ns_per_step": round(totals.slowest_ns - totals.mean_ns),
        "balanced_ns_per_step": round(totals.mean_ns),
        "replaced_ns_per_step": None if totals.replaced_ns is None else round(totals.replaced_ns),
        "combine_wait_ns_per_step": None if totals.wait_ns is None else round(totals.wait_ns),
    }


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
