"""How long each rank waits for others in a step, from the durations of its collectives on the GPU.

The members of a group leave an all-reduce, all-gather or reduce-scatter together. The last one to
arrive spends the least time in it, and the extra time of every other member is its wait. If the
GPU computes meanwhile (buckets of DDP), a step loses the longest wait of a rank; if it does not
(tensor parallelism), it loses their sum. The recorder does not show which, so both bounds are kept.

A rank's lateness is bounded by the collective in which it arrives latest after the median of the
others, less the time that it may have waited itself: in other groups, and in earlier collectives
of the group more than others did. Queues hide lateness, so a rank that works 10 % longer may show
only early in the step: lateness is also compared with the time that the peers need up to the same
collective (:class:`Rests`).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distprof.artefacts.records import CollectivesRecord, GroupTimes
from distprof.schema import Floats, Int64Array

MESSAGES: Final = "messages"
ALL: Final = "all"
_MOST_GROUPS = 1_000  # of a rank and step
_MOST_PARTS = 64
_MOST_NS = 1 << 53
SHORTEST_PART: Final = 0.2
"""Least part of the step with which lateness is compared.

A delay at the beginning of a step is a large share of the little time before it.
"""

_MOST_GROUPS_KEPT = 1 << 14
SPREADS: Final = 6.0
LEAST_PEERS: Final = 16
"""Minimum size of a group for an estimate of its spread."""

_SIGMA = 1.4826  # median absolute deviation of a normal distribution to its standard deviation


class Rests:
    """How long steps usually last after the peers have arrived at each collective of a group.

    The mean of the last ``num_steps`` without the longest, which may contain a checkpoint: a CPU
    that runs ahead of its GPU waits for it only now and then, so a single step says little.
    """

    def __init__(self, num_steps: int) -> None:
        self._num_steps = num_steps
        self._recent: dict[Hashable, deque[Floats]] = {}

    def peers_until(self, group: Hashable, total: Floats, single: Floats, step_ns: float) -> Floats:
        """Upper bound of the time from the step's begin to the others' arrival at each part's last.

        ``total`` holds the durations of each part in the group's next step, in order, shape
        (members, parts), ``single`` those of the last collective of each part, and ``step_ns`` is
        the mean of the same steps. Shape (members, parts), or (1, parts) in a large group, ns; at
        least ``SHORTEST_PART`` of the step, and 1 ns.
        """
        longest = total.max(axis=0)
        after = np.cumsum(longest[::-1])[::-1] - longest
        is_large = len(single) >= LEAST_PEERS  # then one member hardly changes the median
        others = np.median(single, axis=0)[np.newaxis] if is_large else medians_of_others(single)
        rest = after + others  # lower bound of the time from that arrival to the step's end
        recent = self._recent.pop(group, None)
        if recent is None or recent[0].shape != rest.shape:
            recent = deque(maxlen=self._num_steps)
        self._recent[group] = recent  # now the last one
        if len(self._recent) > _MOST_GROUPS_KEPT:
            del self._recent[next(iter(self._recent))]
        recent.append(rest)
        until = step_ns - mean_without_longest(np.array(recent))
        return np.maximum(until, max(SHORTEST_PART * step_ns, 1.0))


def mean_without_longest(steps: Floats) -> Floats:
    """Mean over steps, the first axis, without the longest, which may contain a checkpoint."""
    ordered = np.sort(steps, axis=0)
    mean: Floats = (ordered[:-1] if len(ordered) > 1 else ordered).mean(axis=0)
    return mean


class StepWaits(NamedTuple):
    """Time that ranks waited for others in one step, each of shape (ranks,); NaN if unknown."""

    step: int  # Number of the step.
    least_ns: Floats  # Lower bound of the wait.
    most_ns: Floats  # Upper bound of the wait.
    # Lower bound of the lateness that the rank itself caused; negative if it may have arrived
    # early.
    late_ns: Floats
    # Largest lower bound of its lateness at a collective, as a share of the time that its peers
    # need up to there.
    late_ratio: Floats


def bounded_groups(record: CollectivesRecord) -> tuple[GroupTimes, ...]:
    """The groups of a rank and step, without durations where there are more than a probe writes."""
    return tuple(
        each
        if max(len(each.total_ns), len(each.last_ns)) <= _MOST_PARTS
        else GroupTimes(group=each.group, kind=each.kind, num=each.num, num_untimed=each.num)
        for each in record.groups[:_MOST_GROUPS]
    )


def waits_of(
    step: int,
    found: Mapping[int, Sequence[GroupTimes]],
    ranks: Sequence[int],
    stages: Mapping[int, int],
    step_ns: float,
    rests: Rests,
) -> StepWaits:
    """Time that each rank waited for others in a step.

    ``step_ns`` is the usual duration of a step; this step is added to the ``rests``. The waits are
    NaN for ranks that reported nothing, and for members of a group if an operation has no duration,
    a member did not report, or members recorded different operations.
    """
    # a rank that shares no operation with others gives no evidence of waits
    known = [rank for rank, groups in found.items() if any(each.num_ranks != 1 for each in groups)]
    least, most = dict.fromkeys(known, 0.0), dict.fromkeys(known, 0.0)
    by_group: dict[tuple[str, str], dict[int, GroupTimes]] = defaultdict(dict)
    for rank, groups in found.items():
        for times in groups:
            by_group[times.group, times.kind][rank] = times
    arrived: list[_Arrivals] = []
    for group, rows in by_group.items():
        is_unknown = any(times.num_untimed or not times.total_ns for times in rows.values())
        if is_unknown or (group[1] != MESSAGES and not _recorded_alike(rows)):
            for rank in rows:
                least.pop(rank, None)
                most.pop(rank, None)
        elif group[1] != MESSAGES:
            arrived += _add_collectives(least, most, group, rows, step_ns, rests)
    took = {  # in messages
        rank: sum(
            min(max(ns, 0), _MOST_NS)
            for each in groups
            if each.kind == MESSAGES
            for ns in each.total_ns
        )
        for rank, groups in found.items()
    }
    usual: dict[int, float] = {}  # the least time in messages of a stage
    for rank, stage in stages.items():
        # a rank that did not report may not have waited at all
        usual[stage] = min(usual.get(stage, np.inf), float(took.get(rank, 0)))
    for rank in most:
        most[rank] += float(took[rank]) - (usual[stages[rank]] if rank in stages else 0.0)
    values = (least, most, *_lateness(arrived, most))
    columns = (np.array([each.get(rank, np.nan) for rank in ranks], np.float64) for each in values)
    return StepWaits(step, *columns)


def _recorded_alike(rows: Mapping[int, GroupTimes]) -> bool:
    """Whether all members of a group reported the same operations."""
    shapes = {
        (each.num_ranks, each.first, each.num, len(each.total_ns), len(each.last_ns))
        for each in rows.values()
    }
    return len(shapes) == 1 and shapes.pop()[0] == len(rows)


class _Arrivals(NamedTuple):
    """How late the members of a group arrive at its collectives."""

    ranks: tuple[int, ...]  # Its members.
    late_ns: Floats  # Lateness at each part of the collectives, shape (members, parts).
    # Upper bound of the time that the peers need up to there, of the same shape or the same for all
    # members.
    peers_ns: Floats
    waited_ns: Floats  # Waits in all collectives of the group, shape (members,).


def _add_collectives(
    least: dict[int, float],
    most: dict[int, float],
    group: tuple[str, str],
    rows: Mapping[int, GroupTimes],
    step_ns: float,
    rests: Rests,
) -> list[_Arrivals]:
    """Add the waits in a group's collectives to the bounds; how late its members arrive at them."""
    total, single = (
        np.array(durations, dtype=np.float64).clip(0, _MOST_NS)
        for durations in (
            [times.total_ns for times in rows.values()],
            [times.last_ns or times.total_ns for times in rows.values()],
        )
    )
    # the excess of each duration over that of the fastest member
    parts, ends = total - total.min(axis=0), single - single.min(axis=0)
    waited, is_for_all = parts.sum(axis=1), group[1] == ALL
    for rank, all_ns, longest_ns in zip(rows, waited, ends.max(axis=1), strict=True):
        if rank in most:
            most[rank] += float(all_ns)
            if is_for_all:
                least[rank] = max(least[rank], float(longest_ns))
    if not is_for_all or len(rows) < 2:
        return []
    peers = rests.peers_until(group, total, single, step_ns)
    return [_Arrivals(tuple(rows), arrivals(parts, ends), peers, waited)]


def _lateness(
    arrived: Sequence[_Arrivals], most: Mapping[int, float]
) -> tuple[dict[int, float], dict[int, float]]:
    """Lower bound of the lateness that each rank itself caused, and its largest share."""
    late: dict[int, float] = {}
    share: dict[int, float] = {}
    for each in arrived:
        in_groups = np.array([most.get(rank, np.nan) for rank in each.ranks])
        own = each.late_ns - (in_groups - each.waited_ns)[:, np.newaxis]
        largest, shares = own.max(axis=1), (own / each.peers_ns).max(axis=1)
        for rank, ns, ratio in zip(each.ranks, largest, shares, strict=True):
            if rank in most:
                late[rank] = max(late.get(rank, -np.inf), float(ns))
                share[rank] = max(share.get(rank, -np.inf), float(ratio))
    return late, share


def arrivals(parts: Floats, single: Floats) -> Floats:
    """How much later than the others of its group each member arrives at the last of each part.

    ``parts`` are the waits in each part of the step's collectives, in order, and ``single`` those
    in the last collective of each part, shape (members, parts). Less the time that the member
    waited longer than others before it arrived.
    """
    more = np.maximum(parts - medians_of_others(parts), 0.0)
    # A wait in a collective does not excuse a late arrival at the same collective
    before = np.cumsum(more, axis=1) - np.where(parts == single, more, 0.0)
    late: Floats = medians_of_others(single) - single - before
    return late


# Peers --------------------------------------------------------------------------------------------


def excess_of_peers(own: Floats, groups: Int64Array) -> tuple[Floats, Floats]:
    """Excess of each rank's own time over its peers' median, as a share of it, and that median.

    Peers are the other ranks with the same number in ``groups``. Times are in any unit; where that
    of the rank or of all its peers is unknown, NaN, so are the results. All have the shape
    (ranks,).
    """
    peers = np.full(own.shape, np.nan)
    known = np.flatnonzero(np.isfinite(own))
    for group in np.unique(groups[known]):
        members = known[groups[known] == group]
        if len(members) > 1:
            peers[members] = medians_of_others(own[members])
    with np.errstate(divide="ignore", invalid="ignore"):
        excess = np.where(peers > 0, own / peers - 1, np.nan)
    return excess, peers


def medians_of_others(values: NDArray[Any]) -> Floats:
    """For each value, the median of all others along the first axis; needs at least two values."""
    order = np.argsort(values, axis=0, kind="stable")
    ordered = np.take_along_axis(values, order, axis=0)
    place = np.empty_like(order)
    number = np.arange(len(values)).reshape(-1, *[1] * (values.ndim - 1))
    np.put_along_axis(place, order, number, axis=0)
    low, high = (len(values) - 2) // 2, (len(values) - 1) // 2
    below = np.take_along_axis(ordered, low + (place <= low), axis=0)
    above = np.take_along_axis(ordered, high + (place <= high), axis=0)
    medians: Floats = (below + above) / 2
    return medians


class Lateness(NamedTuple):
    """How late ranks are in one step, each of shape (ranks,); NaN if unknown."""

    # Lower bound of the difference between a rank's own time and that of its peers; negative if the
    # rank may be faster.
    late_ns: Floats
    late_most_ns: Floats  # Upper bound of the same difference.
    # Lower bound of the difference up to a collective, as a share of the time that the peers need
    # up to there: the largest one.
    excess: Floats
    most_excess: Floats  # Upper bound of the difference, as a share of the peers' time.


def lateness_of(waits: StepWaits, step_ns: float, groups: Int64Array) -> Lateness:
    """Bounds of lateness."""
    least, most = (excess_of_peers(ns, groups)[1] for ns in (waits.least_ns, waits.most_ns))
    late_most = np.minimum(most - waits.least_ns, step_ns)
    late = np.minimum(waits.late_ns, late_most)
    peers = step_ns - least
    with np.errstate(divide="ignore", invalid="ignore"):
        of_step, most_excess = (np.where(peers > 0, ns / peers, np.nan) for ns in (late, late_most))
        until = waits.late_ratio * np.where(late > 0, late / waits.late_ns, np.nan)
    return Lateness(late, late_most, np.fmax(of_step, until), most_excess)


def likely_excess(late: Lateness) -> Floats:
    """Likely value of the excess: the one closest to 0 that the bounds allow.

    Uncertainty must not count as spread.
    """
    return np.where(late.excess > 0, late.excess, np.fmin(late.most_excess, 0.0))


def usual_difference(usual: Floats) -> float:
    """Excess up to which peers differ by their usual spread; 0 for too few of them to know it."""
    if len(usual) < LEAST_PEERS:
        return 0.0
    return SPREADS * _SIGMA * float(np.median(np.abs(usual - np.median(usual))))
