"""Load, expert time and balance of the ranks that share experts, and the time lost to imbalance.

The tokens of a rank are those that dispatches brought to it. If sizes are unknown, they are the
logged tokens of its experts, which are assumed to be in contiguous blocks. A new placement balances
the loads of the experts.

The time lost to imbalance (formula sheet, "Mixture of experts") is the expert time of the slowest
rank of a group less the mean of the group, per section. The other ranks spend it waiting in the
combine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from distprof.artefacts.record import grouped
from distprof.costs.moe import (
    Placement,
    contiguous_placement,
    load_imbalance,
    lost_to_imbalance,
    place_experts,
)
from distprof.run.evidence import ExpertCounts
from distprof.run.run import Run
from distprof.run.topology import coordinates_of
from distprof.schema import ABSENT, Bools, Floats, Int64Array
from distprof.sections.context import ProbeRecords, RankAnalyses
from distprof.sections.moe import MoeLayer, MoePlacement, MoeRank, MoeResult
from distprof.sections.moe.calls import (  # noqa: F401 - part of the records
    ROUTING_LOG,
    CallLabels,
    Routing,
    combine_routing,
    label_calls,
    layer_of_counts,
    logged_calls,
    measure_routing,
)
from distprof.sections.moe.exchange import (
    MAX_AMOUNT,
    GroupExchanges,
    exchange_of,
    find_exchanges,
    pairs_of,
)
from distprof.terms import MeshAxis
from distprof.units import capitalized, name_ranks


def placement_row(
    layer: str,
    rank_load: Floats,
    *,
    origin: str,
    expert_load: Int64Array | None = None,
    placed: Placement | None = None,
    part: str = "",
) -> MoePlacement:
    """Balance of ranks in the calls of one layer, now and with another placement.

    ``rank_load`` has the tokens of each rank in each call, ``(calls, ranks)``, of which none is
    empty, and ``expert_load`` the assignments per expert; None if experts cannot be distinguished.
    """
    load = load_imbalance(rank_load)
    replaced: dict[str, Any] = {}
    if expert_load is not None and placed is not None:
        then = load_imbalance(placed.rank_loads(expert_load[:, np.newaxis])[:, 0])
        replaced = {
            "expert_max_over_mean": float(load_imbalance(expert_load).mean()),
            "replaced_max_over_mean": float(then.mean()),
            "rank_of_expert": tuple(placed.rank_of_expert[0].tolist()),
        }
    return MoePlacement(
        layer=layer,
        part=part,
        num_ranks=rank_load.shape[1],
        origin=origin,
        num_calls=len(rank_load),
        tokens_per_call=float(rank_load.sum(axis=1).mean()),
        max_over_mean=float(load.mean()),
        worst_max_over_mean=float(load.max()),
        **replaced,
    )


def placement_of_log(
    routing: Sequence[Routing], places: Mapping[int, Mapping[str, int]]
) -> tuple[MoePlacement, ...]:
    """Balance of ranks from the log alone, with experts in contiguous blocks over the expert axis.

    Without an expert axis in ``places`` there are no rows.
    """
    loads: dict[str, list[Int64Array]] = {}
    size = 0
    # groups of ranks that differ only in their index along the expert axis, sorted by it
    groups: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for rank, place in sorted(places.items()):
        if MeshAxis.EP in place:
            others = tuple((axis, at) for axis, at in place.items() if axis != MeshAxis.EP)
            groups.setdefault(others, []).append(rank)
    ordered = [tuple(sorted(ranks, key=lambda r: places[r]["ep"])) for ranks in groups.values()]
    for ranks in [ranks for ranks in ordered if len(ranks) > 1]:
        log = logged_calls(ranks, routing, places)
        if log is None or len(log.members) < len(ranks) or log.tokens.shape[2] % len(ranks):
            continue
        size, tokens = len(ranks), log.tokens.sum(axis=0)
        for layer, name in enumerate(log.names):
            called = tokens[(log.layer == layer) & (tokens.sum(axis=1) > 0)]
            loads.setdefault(name, []).append(called)
    whole = {name: np.concatenate(calls) for name, calls in loads.items()}
    return tuple(
        row_of_experts(name, tokens, size, ROUTING_LOG)
        for name, tokens in whole.items()
        if len(tokens)
    )


def row_of_experts(
    name: str, tokens: Int64Array, size: int, origin: str, part: str = ""
) -> MoePlacement:
    """The row of a layer with experts in contiguous blocks on ``size`` ranks."""
    contiguous = contiguous_placement(1, tokens.shape[1], size)
    return placement_row(
        name,
        contiguous.rank_loads(tokens[:, np.newaxis])[:, 0],
        origin=origin,
        expert_load=tokens,
        placed=place_experts(tokens.sum(axis=0, keepdims=True), size),
        part=part,
    )


def ranks_of(
    group: GroupExchanges, label: CallLabels, loads: Floats | None, num_steps: int
) -> Iterator[MoeRank]:
    """One row per recorded rank of a group."""
    if not num_steps:
        return
    tokens = None if loads is None else loads[label.is_first].sum(axis=0) / num_steps
    expert = group.section_ns.sum(axis=0)
    waits = group.wait_ns[group.dispatch + 1]
    known = (waits != ABSENT).all(axis=0) & (len(waits) > 0)
    sent, received = _moved_bytes(group)
    for at, member in enumerate(group.members.tolist()):
        yield MoeRank(
            rank=group.ranks[member],
            group=group.ranks,
            tokens_per_step=None if tokens is None else float(tokens[at]),
            load_ratio=None
            if tokens is None or tokens.sum() <= 0
            else float(tokens[at] / tokens.mean()),
            expert_ns_per_step=round(expert[at] / num_steps) if len(group.dispatch) else None,
            combine_wait_ns_per_step=round(int(waits[:, at].sum()) / num_steps)
            if known[at]
            else None,
            sent_bytes_per_step=_per_step(sent, at, num_steps),
            received_bytes_per_step=_per_step(received, at, num_steps),
        )


def _per_step(amount: Floats | None, at: int, num_steps: int) -> int | None:
    return None if amount is None else round(min(float(amount[at]) / num_steps, MAX_AMOUNT))


def _moved_bytes(group: GroupExchanges) -> tuple[Floats | None, Floats | None]:
    """Bytes that each member sent to others and received from them; None if some are unknown."""
    if not len(group.sent) or group.has_no_size:
        return None, None
    if np.isnan(group.sent).any() or np.isnan(group.received).any():
        return None, None
    empty = group.sent.sum(axis=(1, 2)) == 0
    if (np.isnan(group.unit_bytes) & ~empty).any():
        return None, None
    unit = np.nan_to_num(group.unit_bytes)[:, np.newaxis]
    at = np.arange(len(group.members))
    sent, received = (
        ((sizes.sum(axis=2, dtype=np.float64) - sizes[:, at, group.members]) * unit).sum(axis=0)
        for sizes in (group.sent, group.received)
    )
    return sent, received


ALL_TO_ALL_SIZES = "all-to-all sizes"

_EVEN = 0.01
"""Ranks are even if the busiest exceeds the mean by at most this share: no placement helps."""


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Expert time: of the slowest rank, the mean rank, and the slowest if experts are re-placed."""

    slowest_ns: float
    mean_ns: float
    wait_ns: float | None
    replaced_ns: float | None = None


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of the report, sums over layers, and sentences on missing data."""

    placement: tuple[MoePlacement, ...]
    ranks: tuple[MoeRank, ...]
    totals: Times | None  # per step, mean over groups
    problems: tuple[str, ...]


class _Part(msgspec.Struct, frozen=True, kw_only=True):
    """One layer in one group."""

    group: GroupExchanges  # Exchanges of the group.
    section: Int64Array  # Sections of the layer, int64 ``(k,)``.
    # Tokens of each rank in each section, ``(k, ranks)``; None if unknown.
    rank_load: Floats | None
    is_first: Bools  # bool ``(k,)``: forward sections.
    origin: str  # Source of the tokens.
    call: Int64Array  # Row of ``expert_load`` of each section; empty without a log.
    # Assignments per expert of each logged call of the layer, ``(calls, experts)``.
    expert_load: Int64Array


def measure_load(
    groups: Sequence[GroupExchanges], labels: Sequence[CallLabels], num_steps: int
) -> Load:
    """Balance and expert time of the ranks that share experts, per layer."""
    labelled = zip(groups, labels, strict=True)
    parts = grouped([part for group, label in labelled for part in _parts_of(group, label)])
    rows = [_row_of_layer(name, of_layer, num_steps) for name, of_layer in parts.items()]
    ranks = [
        row
        for group, label in zip(groups, labels, strict=True)
        for row in ranks_of(group, label, _rank_loads(group, label)[0], num_steps)
    ]
    timed = [group for group in groups if len(group.dispatch)]
    known = [row for row, _ in rows if row is not None]
    return Load(
        placement=tuple(known),
        ranks=tuple(sorted(ranks, key=lambda row: row.rank)),
        totals=_totals(timed, labels, [times for _, times in rows], num_steps),
        problems=tuple(text for group in groups for text in _problems(group)),
    )


# Layers -------------------------------------------------------------------------------------------


def _parts_of(group: GroupExchanges, label: CallLabels) -> Iterator[tuple[str, _Part]]:
    loads, origin = _rank_loads(group, label)
    for layer in np.unique(label.layer[label.layer != ABSENT]).tolist():
        section = np.flatnonzero(label.layer == layer)
        calls, call = np.unique(label.logged[section], return_inverse=True)
        has_log = len(calls) > 0 and calls[0] != ABSENT
        yield (
            label.names[layer],
            _Part(
                group=group,
                section=section,
                rank_load=None if loads is None else loads[section],
                is_first=label.is_first[section],
                origin=origin,
                call=call.reshape(-1) if has_log else np.empty(0, np.int64),
                expert_load=label.tokens[calls] if has_log else np.zeros((0, 1), np.int64),
            ),
        )


def _rank_loads(group: GroupExchanges, label: CallLabels) -> tuple[Floats | None, str]:
    """Tokens of each recorded rank in each section, ``(s, m)``, and where they come from."""
    if group.has_sizes:
        return group.received[group.dispatch].sum(axis=2, dtype=np.float64), ALL_TO_ALL_SIZES
    size, experts = len(group.ranks), label.tokens.shape[1]
    if not len(label.tokens) or (label.logged == ABSENT).any() or experts % size:
        return None, ""
    blocks = label.tokens.reshape(len(label.tokens), size, -1).sum(axis=2)
    return blocks[label.logged][:, group.members].astype(np.float64), ROUTING_LOG


def _row_of_layer(
    name: str, parts: Sequence[_Part], num_steps: int
) -> tuple[MoePlacement | None, Times]:
    """The layer's row (None if ranks cannot be compared) and its times."""
    placed = _new_placement(parts)
    times = _times_of([(part.group, part.section) for part in parts])
    if placed is not None and (ratio := _excess_ratio(parts, placed)) is not None:
        excess = times.slowest_ns - times.mean_ns
        times = replace(times, replaced_ns=times.mean_ns + ratio * excess)
    loads = [p.rank_load[p.is_first] for p in parts if p.rank_load is not None]
    width = {load.shape[1] for load in loads}
    if not loads or len(width) > 1:
        return None, times
    rank_load = np.concatenate(loads)
    rank_load = rank_load[rank_load.sum(axis=1) > 0]
    if not len(rank_load):
        return None, times
    experts = None
    if placed is not None:
        experts = np.concatenate([part.expert_load for part in parts])
        experts = experts[experts.sum(axis=1) > 0]
    row = placement_row(name, rank_load, origin=parts[0].origin, expert_load=experts, placed=placed)
    number = num_steps * len(parts)
    row = replace(
        row,
        expert_ns_per_step=round(times.slowest_ns / number),
        lost_ns_per_step=round((times.slowest_ns - times.mean_ns) / number),
        replaced_ns_per_step=_per(times.replaced_ns, number),
        combine_wait_ns_per_step=_per(times.wait_ns, number),
    )
    return row, times


def _new_placement(parts: Sequence[_Part]) -> Placement | None:
    """Placement of a layer's experts by their loads, the same in all groups; None without a log."""
    loads = [part.expert_load for part in parts]
    sizes = {len(part.group.ranks) for part in parts}
    experts = {load.shape[1] for load in loads}
    if any(not len(load) for load in loads) or len(sizes) > 1 or len(experts) > 1:
        return None
    size, number = sizes.pop(), experts.pop()
    if number % size:
        return None
    return place_experts(np.concatenate(loads).sum(axis=0, keepdims=True), size)


def _times_of(sections: Sequence[tuple[GroupExchanges, Int64Array]]) -> Times:
    """Sums over these sections of the groups."""
    slowest = mean = 0.0
    for group, section in sections:
        section_ns = group.section_ns[section]
        slowest += float(section_ns.max(axis=1).sum())
        mean += float((section_ns.max(axis=1) - lost_to_imbalance(section_ns)).sum())
    waits = [group.wait_ns[group.dispatch[section] + 1] for group, section in sections]
    is_known = not any((wait == ABSENT).any() for wait in waits)
    wait_ns = sum(float(wait.mean(axis=1).sum()) for wait in waits) if is_known else None
    return Times(slowest_ns=slowest, mean_ns=mean, wait_ns=wait_ns)


def _excess_ratio(parts: Sequence[_Part], placed: Placement) -> float | None:
    """Ratio of the busiest rank's excess tokens with the new placement to those without it.

    Sections are weighted by their mean time. None if ranks are even already.
    """
    now = replaced = total = 0.0
    for part in parts:
        if part.rank_load is None:
            return None
        weight = part.group.section_ns[part.section].mean(axis=1)
        load = placed.rank_loads(part.expert_load[:, np.newaxis])[:, 0]
        now += float((weight * (_imbalance(part.rank_load) - 1)).sum())
        replaced += float((weight * (_imbalance(load)[part.call] - 1)).sum())
        total += float(weight.sum())
    return replaced / now if now > _EVEN * total else None


def _imbalance(load: Floats) -> Floats:
    return np.nan_to_num(load_imbalance(load), nan=1.0)


def _totals(
    groups: Sequence[GroupExchanges],
    labels: Sequence[CallLabels],
    layers: Sequence[Times],
    num_steps: int,
) -> Times | None:
    """Sums over all sections, mean over groups and steps."""
    if not groups or not num_steps:
        return None
    number = num_steps * len(groups)
    times = _times_of([(group, np.arange(len(group.dispatch))) for group in groups])
    is_labelled = all((label.layer != ABSENT).all() for label in labels)
    replaced = [layer.replaced_ns for layer in layers if layer.replaced_ns is not None]
    has_all = is_labelled and len(replaced) == len(layers) > 0
    return Times(
        slowest_ns=times.slowest_ns / number,
        mean_ns=times.mean_ns / number,
        replaced_ns=sum(replaced) / number if has_all else None,
        wait_ns=None if times.wait_ns is None else times.wait_ns / number,
    )


def _per(total: float | None, number: int) -> int | None:
    return None if total is None else round(total / number)


# What is missing ---------------------------------------------------------------------------------


def _problems(group: GroupExchanges) -> Iterator[str]:
    who = name_ranks(group.ranks)
    if not group.is_whole:
        absent = set(group.ranks) - {group.ranks[at] for at in group.members.tolist()}
        yield (
            f"{capitalized(who)} share experts, but {name_ranks(absent)} "
            f"{'was' if len(absent) == 1 else 'were'} not recorded: only the others are compared."
        )
    if not len(group.dispatch):
        yield (
            f"No all-to-all of {who} returns the tokens of another one, so the expert time is "
            "unknown."
        )
    elif not group.has_sizes:
        yield (
            f"Split sizes of the all-to-alls of {who} are unknown (even, or not recorded), so "
            "sections are paired by order."
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
        layers.append(replace(layer, part=part))
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
        return replace(logged, placement=placement, unavailable=(*logged.unavailable, *why))
    first = next(iter(analyses.values()))
    numbers = tuple(step.step for step in first.steps)
    labels = [label_calls(group, routing, places, numbers) for group in groups]
    load = measure_load(groups, labels, len(numbers))
    exchanges = tuple(exchange_of(group, len(numbers)) for group in groups)
    problems = (*load.problems, *(text for label in labels for text in label.problems))
    by_name = {row.layer: row for row in load.placement if row.expert_ns_per_step is not None}
    return replace(
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
        **_total_times(load.totals),
    )


def _total_times(totals: Times | None) -> dict[str, int | None]:
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
    return replace(
        layer,
        lost_ns_per_step=row.lost_ns_per_step,
        expert_ns_per_step=row.expert_ns_per_step,
        balanced_ns_per_step=row.expert_ns_per_step - row.lost_ns_per_step,
        replaced_ns_per_step=row.replaced_ns_per_step,
    )
