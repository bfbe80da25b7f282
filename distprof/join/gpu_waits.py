"""How long each rank waits for others in a step, from the durations of its collectives on the GPU.

The members of a group leave an all-reduce, all-gather or reduce-scatter together. The last one to
arrive spends the least time in it, and the extra time of every other member is its wait. The cost
of a wait depends on whether the GPU computes at the same time. If it does (buckets of DDP), a rank
that is 5 ms early is 5 ms early in each of 10 buckets, and loses 5 ms in total. If it does not
(tensor parallelism), 10 such waits cost 50 ms. The recorder does not show which case applies, so
both bounds are kept. The lower bound is the longest single wait, because the step ends only when
all gradients have arrived. The upper bound is the sum of all waits.

The lower bound of a rank's lateness is taken from the collective in which it arrives latest after
the median of the others. Time that the rank may have waited itself is subtracted: all of its waits
in other groups, and the part of its earlier waits in the same group that exceeds those of the other
members. A rank that another rank delayed in a second group is therefore not blamed, and a rank is
not excused because all of them waited for a third one. This assumes that ranks run the same
program, and that a rank that is late in the middle of a step is not consistently faster than its
peers in the rest of it.

Queues hide lateness: if a bucket waits for the one before, its duration does not show which rank
was ready first. A rank that works 10 % longer in the whole step may then show only at an early
collective, by a small part of that. So lateness is also compared with the time that the peers need
up to the same collective. That is at most the step without what follows, because the collectives of
a group run one after the other on its stream. Both are means of the same steps (:class:`Rests`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distprof.artefacts.records import CollectivesRecord, GroupTimes

Floats = NDArray[np.float64]

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

    Of a single step, this is no better known than its duration: a CPU that runs ahead of its GPU
    waits for it only now and then, so only the mean of several steps is right. As for the duration,
    the longest is left out, which may contain a checkpoint. The mean is over the last
    ``num_steps``.
    """

    def __init__(self, num_steps: int) -> None:
        self._num_steps = num_steps
        self._recent: dict[Hashable, deque[Floats]] = {}

    def peers_until(self, group: Hashable, total: Floats, single: Floats, step_ns: float) -> Floats:
        """Upper bound of the time from the step's begin to the others' arrival at each part's last.

        Args:
            group: The group; its steps are taken in order.
            total: Durations of each part in this step, in order, shape (members, parts), ns.
            single: Durations of the last collective of each part.
            step_ns: Mean duration of the same steps.

        Returns:
            The bound for each member, ns, shape (members, parts), or (1, parts) in a large group;
            at least ``SHORTEST_PART`` of the step, and 1 ns.
        """
        until = step_ns - self._usual(group, _rest(total, single))
        bound: Floats = np.maximum(until, max(SHORTEST_PART * step_ns, 1.0))
        return bound

    def _usual(self, group: Hashable, rest: Floats) -> Floats:
        """The mean of a group's last steps, without the longest."""
        recent = self._recent.pop(group, None)
        if recent is None or recent[0].shape != rest.shape:
            recent = deque(maxlen=self._num_steps)
        self._recent[group] = recent  # now the last one
        if len(self._recent) > _MOST_GROUPS_KEPT:
            del self._recent[next(iter(self._recent))]
        recent.append(rest)
        return mean_without_longest(np.array(recent))


def mean_without_longest(steps: Floats) -> Floats:
    """Mean over steps, the first axis, without the longest, which may contain a checkpoint."""
    ordered = np.sort(steps, axis=0)
    mean: Floats = (ordered[:-1] if len(ordered) > 1 else ordered).mean(axis=0)
    return mean


def _rest(total: Floats, single: Floats) -> Floats:
    """Lower bound of the time from the others' arrival at each part's last to the step's end."""
    longest = total.max(axis=0)
    after = np.cumsum(longest[::-1])[::-1] - longest
    is_large = len(single) >= LEAST_PEERS  # then one member hardly changes the median
    others = np.median(single, axis=0)[np.newaxis] if is_large else medians_of_others(single)
    rest: Floats = after + others
    return rest


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
    return tuple(map(_bounded, record.groups[:_MOST_GROUPS]))


def _bounded(times: GroupTimes) -> GroupTimes:
    """Drop durations if there are more than a probe writes."""
    if len(times.total_ns) <= _MOST_PARTS and len(times.last_ns) <= _MOST_PARTS:
        return times
    return GroupTimes(group=times.group, kind=times.kind, num=times.num, num_untimed=times.num)


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
    waits = _Waits(found, step_ns, rests)
    for group, rows in _by_group(found).items():
        kind = next(iter(rows.values())).kind
        if kind == MESSAGES:
            waits.mark(rows, _has_unknown(rows))
        elif _match(rows):
            waits.of_collectives(group, rows, is_for_all=kind == ALL)
        else:
            waits.mark(rows, unknown=True)
    waits.of_messages(found, stages)
    values = (waits.least, waits.most, *waits.late())
    return StepWaits(step, *(waits.column(each, ranks) for each in values))


def _by_group(
    found: Mapping[int, Sequence[GroupTimes]],
) -> dict[tuple[str, str], dict[int, GroupTimes]]:
    rows: dict[tuple[str, str], dict[int, GroupTimes]] = {}
    for rank, groups in found.items():
        for times in groups:
            rows.setdefault((times.group, times.kind), {})[rank] = times
    return rows


def _has_unknown(rows: Mapping[int, GroupTimes]) -> bool:
    return any(times.num_untimed or not times.total_ns for times in rows.values())


def _match(rows: Mapping[int, GroupTimes]) -> bool:
    """Whether all members reported the same operations, with durations."""
    shapes = {
        (each.num_ranks, each.first, each.num, len(each.total_ns), len(each.last_ns))
        for each in rows.values()
    }
    return len(shapes) == 1 and shapes.pop()[0] == len(rows) and not _has_unknown(rows)


class _Arrivals(NamedTuple):
    """How late the members of a group arrive at its collectives."""

    ranks: tuple[int, ...]  # Its members.
    late_ns: Floats  # Lateness at each part of the collectives, shape (members, parts).
    # Upper bound of the time that the peers need up to there, of the same shape or the same for all
    # members.
    peers_ns: Floats
    waited_ns: Floats  # Waits in all collectives of the group, shape (members,).


class _Waits:
    """Bounds of the waits of one step, summed over groups."""

    def __init__(
        self, found: Mapping[int, Sequence[GroupTimes]], step_ns: float, rests: Rests
    ) -> None:
        # A rank that shares no operation with others gives no evidence of waits
        known = {
            rank for rank, groups in found.items() if any(each.num_ranks != 1 for each in groups)
        }
        self.least = dict.fromkeys(known, 0.0)
        self.most = dict.fromkeys(known, 0.0)
        self._step_ns = step_ns
        self._rests = rests
        self._arrivals: list[_Arrivals] = []

    def mark(self, ranks: Mapping[int, object], unknown: bool) -> None:
        """Make the waits of these ranks unknown, if ``unknown`` is set."""
        for rank in ranks if unknown else ():
            self.least.pop(rank, None)
            self.most.pop(rank, None)

    def of_collectives(
        self, group: Hashable, rows: Mapping[int, GroupTimes], *, is_for_all: bool
    ) -> None:
        total = _table([times.total_ns for times in rows.values()])
        single = _table([times.last_ns or times.total_ns for times in rows.values()])
        parts, ends = _waits(total), _waits(single)
        waited = parts.sum(axis=1)
        for rank, all_ns, longest_ns in zip(rows, waited, ends.max(axis=1), strict=True):
            if rank in self.most:
                self.most[rank] += float(all_ns)
                if is_for_all:
                    self.least[rank] = max(self.least[rank], float(longest_ns))
        if is_for_all and len(rows) > 1:
            late = arrivals(parts, ends)
            peers = self._rests.peers_until(group, total, single, self._step_ns)
            self._arrivals.append(_Arrivals(tuple(rows), late, peers, waited))

    def late(self) -> tuple[dict[int, float], dict[int, float]]:
        """Lower bound of the lateness that each rank itself caused, and its largest share."""
        late: dict[int, float] = {}
        share: dict[int, float] = {}
        for each in self._arrivals:
            in_groups = np.array([self.most.get(rank, np.nan) for rank in each.ranks])
            own = each.late_ns - (in_groups - each.waited_ns)[:, np.newaxis]
            most, shares = own.max(axis=1), (own / each.peers_ns).max(axis=1)
            for rank, ns, ratio in zip(each.ranks, most, shares, strict=True):
                if rank in self.most:
                    late[rank] = max(late.get(rank, -np.inf), float(ns))
                    share[rank] = max(share.get(rank, -np.inf), float(ratio))
        return late, share

    def of_messages(
        self, found: Mapping[int, Sequence[GroupTimes]], stages: Mapping[int, int]
    ) -> None:
        """Add possible waits in messages, beyond the least time in messages of the same stage."""
        took = {
            rank: float(_waits_and_transfers([each for each in groups if each.kind == MESSAGES]))
            for rank, groups in found.items()
        }
        usual: dict[int, float] = {}
        for rank, stage in stages.items():
            # A rank that did not report may not have waited at all
            usual[stage] = min(usual.get(stage, np.inf), took.get(rank, 0.0))
        for rank in self.most:
            of_stage = usual[stages[rank]] if rank in stages else 0.0
            self.most[rank] += took[rank] - of_stage

    def column(self, values: Mapping[int, float], ranks: Sequence[int]) -> Floats:
        """Values of these ranks; NaN if unknown."""
        return np.array([values.get(rank, np.nan) for rank in ranks], dtype=np.float64)


def arrivals(parts: Floats, single: Floats) -> Floats:
    """How much later than the others of its group each member arrives.

    Args:
        parts: Waits in each part of the step's collectives, in order, shape (members, parts).
        single: Waits in the last collective of each part; equal to ``parts`` if a part is a single
            collective.

    Returns:
        Lateness at the last collective of each part, shape (members, parts), less the time that the
        member waited longer than others before it arrived.
    """
    more = np.maximum(parts - medians_of_others(parts), 0.0)
    # A wait in a collective does not excuse a late arrival at the same collective
    before = np.cumsum(more, axis=1) - np.where(parts == single, more, 0.0)
    late: Floats = medians_of_others(single) - single - before
    return late


def _waits_and_transfers(groups: Sequence[GroupTimes]) -> int:
    """Total duration of all operations, ns."""
    return sum(min(max(ns, 0), _MOST_NS) for each in groups for ns in each.total_ns)


def _table(durations_ns: Sequence[Sequence[int]]) -> Floats:
    """Durations as an array, shape (members, operations)."""
    table: Floats = np.array(durations_ns, dtype=np.float64).clip(0, _MOST_NS)
    return table


def _waits(durations_ns: Floats) -> Floats:
    """Excess of each duration over that of the fastest member, shape (members, operations)."""
    waits: Floats = durations_ns - durations_ns.min(axis=0)
    return waits


# Peers --------------------------------------------------------------------------------------------


def excess_of_peers(own: Floats, groups: NDArray[np.int64]) -> tuple[Floats, Floats]:
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


def medians_of_others(values: Floats) -> Floats:
    """For each value, the median of all others along the first axis; needs at least two values."""
    order = np.argsort(values, axis=0, kind="stable")
    ordered = np.take_along_axis(values, order, axis=0)
    place = np.argsort(order, axis=0)
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


def lateness_of(waits: StepWaits, step_ns: float, groups: NDArray[np.int64]) -> Lateness:
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
    likely: Floats = np.where(late.excess > 0, late.excess, np.fmin(late.most_excess, 0.0))
    return likely


def usual_difference(usual: Floats) -> float:
    """Excess up to which peers differ by their usual spread; 0 for too few of them to know it."""
    if len(usual) < LEAST_PEERS:
        return 0.0
    return SPREADS * _SIGMA * float(np.median(np.abs(usual - np.median(usual))))
