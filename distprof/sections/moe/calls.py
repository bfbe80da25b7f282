"""Assigns the sections between expert exchanges to layers and calls.

The n-th call in a step is the n-th call that the routing log holds for this step. Without a log,
layers are numbered: the forward calls of a step up to the first section that repeats one belong to
one micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from distprof.schema import ABSENT, Int64Array
from distprof.sections.moe.exchange import GroupExchanges
from distprof.sections.moe.routing import RoutedCalls, Routing, stage_names
from distprof.terms import MeshAxis

MISMATCH_RATIO = 0.01
"""Routing log and all-to-all sizes may differ by this share of the assignments."""

_MAX_SECTIONS = 3  # per call: forward, recomputation for a checkpoint, backward


class CallLabels(msgspec.Struct, frozen=True, kw_only=True):
    """Layer and call of each section of a group."""

    layer: Int64Array  # Index into ``names`` of each section, int64 ``(s,)``; ABSENT where unknown.
    names: tuple[str, ...]  # Layers as reported.
    # bool ``(s,)``: whether the section is the forward one of its call.
    is_first: NDArray[np.bool_]
    # Index into ``tokens`` of each section's call, int64 ``(s,)``; ABSENT without a log.
    logged: Int64Array
    # Assignments per expert of each logged call, summed over the group, int64 ``(calls, experts)``.
    tokens: NDArray[np.int64]
    problems: tuple[str, ...] = ()  # Sentences on missing or contradictory data.


class LoggedCalls(msgspec.Struct, frozen=True, kw_only=True):
    """Logged calls of a group's members, in log order; all members logged the same calls."""

    step: Int64Array  # Index of the step of each call.
    layer: Int64Array  # Index into ``names`` of each call.
    names: tuple[str, ...]  # Layers as reported.
    tokens: NDArray[np.int64]  # Assignments per expert, int64 ``(members, calls, experts)``.
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
    return RoutedCalls(
        step=calls.step[rows],
        layer=calls.layer[rows],
        micro_batch=calls.micro_batch[rows],
        dropped=calls.dropped[rows],
        num_experts=calls.num_experts[rows],
        tokens=calls.tokens[rows],
        names=calls.names,
    )


def _has_same_calls(first: RoutedCalls, other: RoutedCalls) -> bool:
    return (
        first.names == other.names
        and np.array_equal(first.step, other.step)
        and np.array_equal(first.layer, other.layer)
        and np.array_equal(first.num_experts, other.num_experts)
        and len(np.unique(first.num_experts)) == 1
    )


def _calls_of_sections(
    group: GroupExchanges, log: LoggedCalls, num_steps: int
) -> tuple[Int64Array, NDArray[np.bool_]] | None:
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
) -> tuple[Int64Array, NDArray[np.bool_]] | None:
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
