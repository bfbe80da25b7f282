"""The routing that each rank logged, and the layers and calls of the sections between exchanges.

Source of the formulas: formula sheet, "Mixture of experts". Tokens per expert are sums over all
ranks and micro-batches of a step. Imbalance, variation and entropy are means over steps.

The n-th call in a step is the n-th call that the routing log holds for this step. Without a log,
layers are numbered: the forward calls of a step up to the first section that repeats one belong to
one micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from distprof.costs.moe import (
    DEAD_RATIO,
    distribution_distance,
    load_imbalance,
    load_variation,
    normalised_entropy,
)
from distprof.run.records import RankRecords
from distprof.schema import ABSENT, Bools, Int64Array
from distprof.sections.moe import MoeDrift, MoeLayer, MoeResult
from distprof.sections.moe.exchange import GroupExchanges
from distprof.terms import MeshAxis

ROUTING_LOG = "routing log"
MAX_STEPS = 256  # Number of last steps per rank and layer whose counts are joined across ranks

MAX_CALL_STEPS = 16
"""Number of steps whose micro-batches are kept individually: the traced steps, else the last."""

MAX_CALL_COUNTS = 4_000_000
"""Limit on the counts kept of these steps (32 MB); large steps reduce their number."""

MIN_DRIFT_STEPS = 6  # With fewer steps, a third is too short to compare
MAX_DEAD_NAMED = 16


class LayerRouting(msgspec.Struct, frozen=True, kw_only=True):
    """One layer on one rank."""

    steps: Int64Array  # int64, step numbers, ascending.
    # int64, shape ``(steps, experts)``: assignments kept and dropped, of this rank.
    tokens: Int64Array
    num_tokens: Int64Array  # int64 per step: tokens routed.
    dropped: Int64Array  # int64 per step.
    top_k: int  # Experts per token.


class RoutedCalls(msgspec.Struct, frozen=True, kw_only=True):
    """Individual calls of layers in log order, for a few steps."""

    step: Int64Array  # int64 per call.
    layer: Int64Array  # int64 per call, index into ``names``.
    micro_batch: Int64Array  # int64 per call.
    dropped: Int64Array  # int64 per call: dropped assignments that ``tokens`` includes.
    num_experts: Int64Array  # int64 per call.
    # int64, shape ``(calls, most experts)``; zero beyond a layer's own experts. Dropped assignments
    # are excluded if the logged capacity explains their number.
    tokens: Int64Array
    names: tuple[str, ...]  # Layers.


class Routing(msgspec.Struct, frozen=True, kw_only=True):
    """Layers of one rank by name, calls of some steps, and reasons for leaving out rows."""

    rank: int
    layers: Mapping[str, LayerRouting] = msgspec.field(default_factory=dict)
    problems: tuple[str, ...] = ()
    calls: RoutedCalls | None = None


def measure_routing(records: RankRecords) -> Routing | None:
    """Counts of one rank by layer and step; None if no routing was logged."""
    table = records.routing
    if len(table) == 0:
        return None
    names = table.coded("layer")
    layers: dict[str, LayerRouting] = {}
    problems = []
    for code, name in enumerate(names.values):
        rows = table.take(names.codes == code)
        if len(rows) == 0:
            continue
        if len(np.unique(rows["num_experts"])) > 1:
            problems.append(f"layer {name} changes its number of experts: left out")
            continue
        steps, index = np.unique(rows["step"], return_inverse=True)
        experts = int(rows["num_experts"][0])
        kept = np.maximum(index - max(0, len(steps) - MAX_STEPS), -1)
        steps = steps[-MAX_STEPS:]
        recent = kept >= 0
        tokens = np.zeros((len(steps), experts), dtype=np.int64)
        places = rows["first"][recent][:, np.newaxis] + np.arange(experts)
        np.add.at(tokens, kept[recent], records.expert_tokens[places])
        layers[name] = LayerRouting(
            steps=steps,
            tokens=tokens,
            num_tokens=_sum(kept[recent], rows["num_tokens"][recent], len(steps)),
            dropped=_sum(kept[recent], rows["dropped"][recent], len(steps)),
            top_k=int(rows["top_k"][-1]),
        )
    return Routing(
        rank=records.rank, layers=layers, problems=tuple(problems), calls=_calls(records)
    )


def combine_routing(
    ranks: Sequence[Routing],
    places: Mapping[int, Mapping[str, int]],
    unavailable: Sequence[str] = (),
) -> MoeResult:
    """Every layer over all ranks that logged it; layers in order of first appearance.

    ``places`` has the index of each rank along each known mesh axis. Pipeline stages may give
    different layers the same name. Tensor-parallel ranks route the same tokens, so only the first
    of them counts.
    """
    problems = list(dict.fromkeys(text for rank in ranks for text in rank.problems))
    layers, drifts = [], []
    for name, parts in _by_layer(ranks, places).items():
        if len({part.tokens.shape[1] for part in parts}) > 1:
            problems.append(f"ranks log different numbers of experts for layer {name}: left out")
            continue
        combined = _over_ranks(name, parts)
        if combined is None:
            continue
        layer, steps, tokens = combined
        layers.append(layer)
        if len(steps) >= MIN_DRIFT_STEPS:
            drifts.append(_drift(name, steps, tokens))
    return MoeResult(
        layers=tuple(layers),
        origin=ROUTING_LOG if layers else None,
        drift=tuple(drifts),
        unavailable=(*unavailable, *problems),
    )


def stage_names(
    ranks: Sequence[Routing], places: Mapping[int, Mapping[str, int]]
) -> dict[tuple[str, int], str]:
    """Reported name of each layer, by its logged name and pipeline stage."""
    stages: dict[str, set[int]] = {}
    for rank in ranks:
        for name in rank.layers:
            stages.setdefault(name, set()).add(_stage(places, rank.rank))
    return {
        (name, stage): name if len(numbers) == 1 else f"{name} (stage {stage})"
        for name, numbers in stages.items()
        for stage in numbers
    }


def layer_of_counts(
    name: str, tokens: Int64Array, *, num_tokens: float, dropped: int, top_k: int
) -> MoeLayer:
    """Figures of one layer from its counts, of all steps together; ``top_k`` is 0 if unknown.

    ``tokens`` has shape ``(steps, experts)``, with at least one assignment in each step;
    ``dropped`` are assignments over capacity.
    """
    total = tokens.sum(axis=0)
    dead = np.flatnonzero(total < DEAD_RATIO * total.mean())
    assigned = max(int(total.sum()), round(top_k * num_tokens))
    return MoeLayer(
        layer=name,
        num_experts=tokens.shape[1],
        top_k=top_k,
        num_steps=len(tokens),
        tokens_per_step=num_tokens / len(tokens),
        max_over_mean=float(load_imbalance(tokens).mean()),
        cv=float(load_variation(tokens).mean()),
        entropy=float(normalised_entropy(tokens).mean()),
        dead_ratio=len(dead) / len(total),
        dropped_ratio=dropped / assigned,
        busiest_expert=int(total.argmax()),
        busiest_share_ratio=float(total.max() / total.sum()),
        min_over_mean=float(total.min() / total.mean()),
        dead_experts=tuple(dead[:MAX_DEAD_NAMED].tolist()),
    )


# One rank -----------------------------------------------------------------------------------------


def _sum(index: Int64Array, values: Int64Array, length: int) -> Int64Array:
    total = np.zeros(length, dtype=np.int64)
    np.add.at(total, index, values)
    return total


def _calls(records: RankRecords) -> RoutedCalls | None:
    """Calls of the traced steps, or of the last steps if none was traced."""
    # the last traced steps of the log, or its last steps; as many as may be kept
    steps, calls = np.unique(records.routing["step"], return_counts=True)
    log = records.step_log
    traced = np.isin(steps, log["step"][log["is_traced"]])
    if traced.any():
        steps, calls = steps[traced], calls[traced]
    counts = calls[::-1].cumsum() * int(records.routing["num_experts"].max())
    most = min(MAX_CALL_STEPS, int((counts <= MAX_CALL_COUNTS).sum()))
    kept: Int64Array = steps[len(steps) - most :]
    rows = records.routing.take(np.isin(records.routing["step"], kept))
    if len(rows) == 0:
        return None
    layers, experts = rows.coded("layer"), rows["num_experts"]
    tokens = np.zeros((len(rows), int(experts.max(initial=0))), dtype=np.int64)
    for number in np.unique(experts).tolist():
        same_size = np.flatnonzero(experts == number)
        at = rows["first"][same_size][:, np.newaxis] + np.arange(number)
        tokens[same_size, :number] = records.expert_tokens[at]
    # without dropped tokens if the capacity explains these
    capacity, dropped = rows["capacity"], rows["dropped"]
    room = np.where(capacity == ABSENT, np.iinfo(np.int64).max, capacity)
    taken = np.minimum(tokens, room[:, np.newaxis])
    explained = tokens.sum(axis=1) - taken.sum(axis=1) == dropped
    return RoutedCalls(
        step=rows["step"],
        layer=layers.codes.astype(np.int64),
        micro_batch=rows["micro_batch"],
        dropped=np.where(explained, 0, dropped),
        num_experts=experts,
        tokens=np.where(explained[:, np.newaxis], taken, tokens),
        names=layers.values,
    )


# All ranks ----------------------------------------------------------------------------------------


def _stage(places: Mapping[int, Mapping[str, int]], rank: int) -> int:
    return places.get(rank, {}).get(MeshAxis.PP, 0)


def _by_layer(
    ranks: Sequence[Routing], places: Mapping[int, Mapping[str, int]]
) -> dict[str, list[LayerRouting]]:
    first = [rank for rank in ranks if places.get(rank.rank, {}).get(MeshAxis.TP, 0) == 0]
    by_stage: dict[str, dict[int, list[LayerRouting]]] = {}
    for rank in first:
        for name, layer in rank.layers.items():
            stages = by_stage.setdefault(name, {})
            stages.setdefault(_stage(places, rank.rank), []).append(layer)
    names = stage_names(first, places)
    return {
        names[name, stage]: parts
        for name, stages in by_stage.items()
        for stage, parts in sorted(stages.items())
    }


def _over_ranks(
    name: str, parts: Sequence[LayerRouting]
) -> tuple[MoeLayer, Int64Array, Int64Array] | None:
    """Figures of one layer over the steps that all these ranks logged, these steps, and tokens."""
    common = parts[0].steps
    for part in parts[1:]:
        common = np.intersect1d(common, part.steps)
    chosen = [np.searchsorted(part.steps, common) for part in parts]
    tokens = np.sum([p.tokens[i] for p, i in zip(parts, chosen, strict=True)], axis=0)
    routed = tokens.sum(axis=1) > 0
    if not routed.any():
        return None
    num_tokens = sum(int(p.num_tokens[i][routed].sum()) for p, i in zip(parts, chosen, strict=True))
    dropped = sum(int(p.dropped[i][routed].sum()) for p, i in zip(parts, chosen, strict=True))
    layer = layer_of_counts(
        name, tokens[routed], num_tokens=num_tokens, dropped=dropped, top_k=parts[0].top_k
    )
    return layer, common[routed], tokens[routed]


def _drift(name: str, steps: Int64Array, tokens: Int64Array) -> MoeDrift:
    """The first third of the steps compared with the last."""
    third = len(steps) // 3
    first, last = tokens[:third], tokens[-third:]
    load = load_imbalance(tokens)
    # Expected distance of two samples of the pooled distribution, by the normal approximation
    share = (first.sum(axis=0) + last.sum(axis=0)) / (first.sum() + last.sum())
    variance = share * (1 - share) * (1 / first.sum() + 1 / last.sum())
    return MoeDrift(
        layer=name,
        first_step=int(steps[0]),
        last_step=int(steps[-1]),
        distance=distribution_distance(first.sum(axis=0), last.sum(axis=0)),
        chance_distance=float(np.sqrt(2 / np.pi * variance).sum() / 2),
        first_max_over_mean=float(load[:third].mean()),
        last_max_over_mean=float(load[-third:].mean()),
    )


MISMATCH_RATIO = 0.01
"""Routing log and all-to-all sizes may differ by this share of the assignments."""

_MAX_SECTIONS = 3  # per call: forward, recomputation for a checkpoint, backward


class CallLabels(msgspec.Struct, frozen=True, kw_only=True):
    """Layer and call of each section of a group."""

    layer: Int64Array  # Index into ``names`` of each section, int64 ``(s,)``; ABSENT where unknown.
    names: tuple[str, ...]  # Layers as reported.
    # bool ``(s,)``: whether the section is the forward one of its call.
    is_first: Bools
    # Index into ``tokens`` of each section's call, int64 ``(s,)``; ABSENT without a log.
    logged: Int64Array
    # Assignments per expert of each logged call, summed over the group, int64 ``(calls, experts)``.
    tokens: Int64Array
    problems: tuple[str, ...] = ()  # Sentences on missing or contradictory data.


class LoggedCalls(msgspec.Struct, frozen=True, kw_only=True):
    """Logged calls of a group's members, in log order; all members logged the same calls."""

    step: Int64Array  # Index of the step of each call.
    layer: Int64Array  # Index into ``names`` of each call.
    names: tuple[str, ...]  # Layers as reported.
    tokens: Int64Array  # Assignments per expert, int64 ``(members, calls, experts)``.
    dropped: Int64Array  # int64 ``(members, calls)``.
    members: Int64Array  # Positions in the group of the members with a log.


def label_calls(
    group: GroupExchanges,
    routing: Sequence[Routing],
    places: Mapping[int, Mapping[str, int]],
    steps: Sequence[int],
) -> CallLabels:
    """Layer and call of each section of a group."""
    if not len(group.dispatch):
        return _unlabelled(group)
    log = logged_calls(group.ranks, routing, places, steps)
    if log is None:
        depth = _depth(group)
        if depth is None:
            return _unlabelled(
                group,
                "Without a routing log the layers of the expert all-to-alls cannot be "
                "distinguished, so times cover all layers together.",
            )
        names = tuple(f"layer {index}" for index in range(depth))
        return replace(_unlabelled(group), layer=group.call % depth, names=names)
    called = _calls_of_sections(group, log, len(steps))
    if called is None:
        return _unlabelled(
            group,
            "The expert all-to-alls do not match the calls in the routing log, so the times of "
            "individual layers are unknown.",
        )
    call, is_first = called
    labels = CallLabels(
        layer=log.layer[call],
        names=log.names,
        is_first=is_first,
        logged=call,
        tokens=log.tokens.sum(axis=0),
    )
    return _checked(group, log, labels)


def _unlabelled(group: GroupExchanges, *problems: str) -> CallLabels:
    unknown = np.full(len(group.dispatch), ABSENT, dtype=np.int64)
    return CallLabels(
        layer=unknown,
        names=(),
        is_first=group.is_first,
        logged=unknown,
        tokens=np.zeros((0, 1), dtype=np.int64),
        problems=problems,
    )


# With a log ---------------------------------------------------------------------------------------


def logged_calls(
    ranks: Sequence[int],
    routing: Sequence[Routing],
    places: Mapping[int, Mapping[str, int]],
    steps: Sequence[int] | None = None,
) -> LoggedCalls | None:
    """Logged calls of ranks that share experts; None if no rank logged any, or the calls differ.

    ``steps`` are the numbers of the steps to use, ascending; None for those in the first member's
    log.
    """
    by_rank = {log.rank: log.calls for log in routing if log.calls is not None}
    logging = [rank for rank in ranks if rank in by_rank]
    if not logging:
        return None
    if steps is None:
        steps = np.unique(by_rank[logging[0]].step).tolist()
    calls = [_in_steps(by_rank[rank], steps) for rank in logging]
    first = calls[0]
    if not len(first.step) or any(not _has_same_calls(first, other) for other in calls):
        return None
    stage = places.get(logging[0], {}).get(MeshAxis.PP, 0)
    shown = stage_names(routing, places)
    experts = int(first.num_experts.max())
    return LoggedCalls(
        step=np.searchsorted(np.array(steps), first.step),
        layer=first.layer,
        names=tuple(shown.get((name, stage), name) for name in first.names),
        tokens=np.array([c.tokens[:, :experts] for c in calls]),
        dropped=np.array([c.dropped for c in calls]),
        members=np.array([ranks.index(rank) for rank in logging], dtype=np.int64),
    )


def _in_steps(calls: RoutedCalls, steps: Sequence[int]) -> RoutedCalls:
    rows = np.flatnonzero(np.isin(calls.step, steps))
    rows = rows[np.argsort(calls.step[rows], kind="stable")]
    columns = [name for name in RoutedCalls.__struct_fields__ if name != "names"]
    return replace(calls, **{name: getattr(calls, name)[rows] for name in columns})


def _has_same_calls(first: RoutedCalls, other: RoutedCalls) -> bool:
    return (
        first.names == other.names
        and len(np.unique(first.num_experts)) == 1
        and all(
            np.array_equal(getattr(first, name), getattr(other, name))
            for name in ("step", "layer", "num_experts")
        )
    )


def _calls_of_sections(
    group: GroupExchanges, log: LoggedCalls, num_steps: int
) -> tuple[Int64Array, Bools] | None:
    """Logged call of each section, and whether it is the forward one; None if numbers differ."""
    logged = np.bincount(log.step, minlength=num_steps)
    step = group.step[group.dispatch]
    before = np.cumsum(logged) - logged
    if np.array_equal(group.calls_per_step, logged):
        return before[step] + group.call, group.is_first
    sections = np.bincount(step, minlength=num_steps)
    times = sections // np.maximum(logged, 1)
    fits = (times * logged == sections) & (times == times[0]) & (logged > 0)
    if not fits.all() or not 1 <= times[0] <= _MAX_SECTIONS:
        return None
    return _by_position(log, step, before, int(times[0]))


def _by_position(
    log: LoggedCalls, step: Int64Array, before: Int64Array, times: int
) -> tuple[Int64Array, Bools] | None:
    """The same by order alone, if sizes do not distinguish the exchanges.

    Each micro-batch goes forward through all layers, then back through them one by one, with
    recomputation, if any, and backward in each.
    """
    depth = len(np.unique(log.layer))
    position = np.arange(len(step)) - np.searchsorted(step, step)
    per_micro_batch = depth * times
    micro_batch, within = position // per_micro_batch, position % per_micro_batch
    is_first = within < depth
    back = depth - 1 - (within - depth) // max(times - 1, 1)
    call = before[step] + micro_batch * depth + np.where(is_first, within, back)
    whole = log.layer.reshape(-1, depth) if len(log.layer) % depth == 0 else None
    if whole is None or not (whole == whole[0]).all():
        return None
    return call, is_first


def _checked(group: GroupExchanges, log: LoggedCalls, labels: CallLabels) -> CallLabels:
    """The labels, checked against the sizes of the dispatches.

    What a member sent to a rank must equal what it logged for the experts of that rank.
    """
    both = np.flatnonzero(np.isin(group.members, log.members))
    first = np.flatnonzero(labels.is_first)
    if not group.has_sizes or not len(both) or not len(first):
        return labels
    at_log = np.searchsorted(log.members, group.members[both])
    sent = group.sent[group.dispatch[first]][:, both]
    call = labels.logged[first]
    tokens = log.tokens[at_log][:, call].swapaxes(0, 1)
    dropped = log.dropped[at_log][:, call].T
    mismatch = np.abs(tokens.sum(axis=2) - dropped - sent.sum(axis=2))
    mismatch = np.minimum(mismatch, np.abs(tokens.sum(axis=2) - sent.sum(axis=2)))
    if mismatch.sum() > MISMATCH_RATIO * tokens.sum():
        difference = np.abs(tokens.sum(axis=2) - sent.sum(axis=2))
        worst = int(difference.argmax())
        at, member = divmod(worst, difference.shape[1])
        rank = group.ranks[int(group.members[member])]
        sentence = (
            f"The routing log and the all-to-alls disagree: rank {rank} logged "
            f"{int(tokens[at, member].sum()):,} assignments but sent "
            f"{int(sent[at, member].sum()):,}. Ranks are compared by all-to-all sizes."
        )
        unknown = np.full(len(labels.logged), ABSENT, dtype=np.int64)
        return replace(labels, logged=unknown, problems=(sentence,))
    return labels


# Without a log ------------------------------------------------------------------------------------


def _depth(group: GroupExchanges) -> int | None:
    """Forward calls before the first repeated one, if they divide the calls of each step."""
    if not group.has_sizes:
        return None
    step = group.step[group.dispatch]
    depths = set()
    for number in np.unique(step).tolist():
        first = group.is_first[step == number]
        again = np.flatnonzero(~first)
        if not len(again):
            return None
        depths.add(int(again[0]))
    depth = depths.pop() if len(depths) == 1 else 0
    calls = group.calls_per_step[np.unique(step)]
    return depth if depth and not (calls % depth).any() else None
