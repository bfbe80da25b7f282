"""How long each rank waits for others in a step, from the time of its collectives on the GPU.

The members of a group leave an all-reduce, all-gather or reduce-scatter together, so the last one
to arrive takes the shortest time in it, and every other one has waited for what it took longer.
What that costs depends on what the GPU does meanwhile. If it computes (DDP's buckets), a rank that
is early by 5 ms is early by 5 ms in each of ten buckets, and loses 5 ms in all. If it does nothing
(tensor parallelism), ten such waits are 50 ms. The recorder does not say which it was, so both ends
are kept: a rank has waited at least for the longest single wait, since its step ends when all
gradients have arrived, and at most for the sum of all waits.

A rank is late at least by as much as it arrives after the median of the others, in that collective
where it is most, less what it may have waited itself: all of its waits in other groups, and in the
same group what it waited more than others did before. So no rank is blamed that was kept waiting by
another one in a second group, and no rank is excused because all had to wait for a third. This
supposes that ranks run the same program, and that one that is late in the middle of a step is not
faster than its peers in the rest of it, step after step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from distprof.artefacts.records import CollectivesRecord, GroupTimes
from distprof.verbs.watch.lateness import Floats, medians_of_others

__all__ = ["CAPACITY", "StepWaits", "WaitTable", "arrivals", "waits_of"]

CAPACITY: Final = 128
"""Steps that may wait for ranks that have not reported them."""

MESSAGES: Final = "messages"
ALL: Final = "all"

_MOST_GROUPS = 1_000  # of a rank and step
_MOST_PARTS = 64
_MOST_NS = 1 << 53
_MOST_STEPS = 1 << 53
_MOST_AHEAD = 100_000  # steps: a rank that claims more is wrong


class StepWaits(NamedTuple):
    """What ranks waited for others in one step.

    Args:
        step: Its number.
        least_ns: They waited at least for this long, shape (ranks,); NaN where unknown.
        most_ns: And at most for this long.
        late_ns: How much later they arrive than others for a reason of their own, at least;
            negative where that may be earlier.
    """

    step: int
    least_ns: Floats
    most_ns: Floats
    late_ns: Floats


class WaitTable:
    """Steps that not all ranks have reported yet.

    Attributes:
        ranks: Ranks that have reported a step.
    """

    def __init__(self) -> None:
        self.ranks: set[int] = set()
        self._steps: dict[int, dict[int, tuple[GroupTimes, ...]]] = {}
        self._last: dict[int, int] = {}
        self._next = 0

    def add(self, rank: int, record: CollectivesRecord) -> None:
        """Take a step of a rank; one that was judged already is left out."""
        if not 0 <= record.step < (self._next + _MOST_AHEAD if self._next else _MOST_STEPS):
            return
        self.ranks.add(rank)
        self._last[rank] = max(self._last.get(rank, -1), record.step)
        if record.step >= self._next:
            groups = record.groups[:_MOST_GROUPS]
            self._steps.setdefault(record.step, {})[rank] = tuple(map(_bounded, groups))

    def complete(self, living: set[int]) -> Iterator[tuple[int, dict[int, tuple[GroupTimes, ...]]]]:
        """Steps that are complete by now, ascending, each once.

        Args:
            living: Ranks that can still report.
        """
        waiting = [self._last[rank] for rank in self.ranks & living]
        reported = min(waiting, default=max(self._last.values(), default=-1))
        for step in sorted(self._steps):
            if step > reported and len(self._steps) <= CAPACITY:
                return
            self._next = step + 1
            yield step, self._steps.pop(step)


def _bounded(times: GroupTimes) -> GroupTimes:
    """Without more than a probe writes."""
    if len(times.total_ns) <= _MOST_PARTS and len(times.last_ns) <= _MOST_PARTS:
        return times
    return GroupTimes(group=times.group, kind=times.kind, num=times.num, num_untimed=times.num)


def waits_of(
    step: int,
    found: Mapping[int, Sequence[GroupTimes]],
    ranks: Sequence[int],
    stages: Mapping[int, int],
) -> StepWaits:
    """What each rank waited for others in a step.

    Args:
        step: Its number.
        found: Rank to its groups.
        ranks: Which rank each position of the result is about.
        stages: Rank to its pipeline stage, where that is known.

    Returns:
        NaN for ranks that reported nothing, and for members of groups whose waits are unknown
        because an operation has no duration, a member did not report, or members differ.
    """
    waits = _Waits(found)
    for rows in _by_group(found).values():
        kind = next(iter(rows.values())).kind
        if kind == MESSAGES:
            waits.mark(rows, _has_unknown(rows))
        elif _match(rows):
            waits.of_collectives(rows, is_for_all=kind == ALL)
        else:
            waits.mark(rows, unknown=True)
    waits.of_messages(found, stages)
    sums = (waits.least, waits.most, waits.late())
    return StepWaits(step, *(waits.column(values, ranks) for values in sums))


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


class _Waits:
    """Sums of one step."""

    def __init__(self, found: Mapping[int, Sequence[GroupTimes]]) -> None:
        # A rank without an operation that it shares with others says nothing of waiting
        known = {
            rank for rank, groups in found.items() if any(each.num_ranks != 1 for each in groups)
        }
        self.least = dict.fromkeys(known, 0.0)
        self.most = dict.fromkeys(known, 0.0)
        self._after_others: dict[int, list[tuple[float, float]]] = {rank: [] for rank in known}

    def mark(self, ranks: Mapping[int, object], unknown: bool) -> None:
        """Where unknown, forget these ranks."""
        for rank in ranks if unknown else ():
            self.least.pop(rank, None)
            self.most.pop(rank, None)

    def of_collectives(self, rows: Mapping[int, GroupTimes], *, is_for_all: bool) -> None:
        """Add the waits in a group's collectives."""
        parts = _waits([times.total_ns for times in rows.values()])
        single = _waits([times.last_ns or times.total_ns for times in rows.values()])
        waited = parts.sum(axis=1)
        for rank, all_ns, longest_ns in zip(rows, waited, single.max(axis=1), strict=True):
            if rank in self.most:
                self.most[rank] += float(all_ns)
                if is_for_all:
                    self.least[rank] = max(self.least[rank], float(longest_ns))
        if is_for_all and len(rows) > 1:
            for rank, late_ns, all_ns in zip(rows, arrivals(parts, single), waited, strict=True):
                if rank in self.most:
                    self._after_others[rank].append((float(late_ns), float(all_ns)))

    def late(self) -> dict[int, float]:
        """How much later than others a rank arrives for a reason of its own, at least."""
        return {
            rank: max(late_ns - (self.most[rank] - waited_ns) for late_ns, waited_ns in found)
            for rank, found in self._after_others.items()
            if rank in self.most and found
        }

    def of_messages(
        self, found: Mapping[int, Sequence[GroupTimes]], stages: Mapping[int, int]
    ) -> None:
        """Add what ranks may have waited in messages beyond what all of their stage wait."""
        took = {
            rank: float(_waits_and_transfers([each for each in groups if each.kind == MESSAGES]))
            for rank, groups in found.items()
        }
        usual: dict[int, float] = {}
        for rank, stage in stages.items():
            # One that did not report may have waited for nothing
            usual[stage] = min(usual.get(stage, np.inf), took.get(rank, 0.0))
        for rank in self.most:
            of_stage = usual[stages[rank]] if rank in stages else 0.0
            self.most[rank] += took[rank] - of_stage

    def column(self, values: Mapping[int, float], ranks: Sequence[int]) -> Floats:
        """Values of these ranks, NaN where unknown."""
        return np.array([values.get(rank, np.nan) for rank in ranks], dtype=np.float64)


def arrivals(parts: Floats, single: Floats) -> Floats:
    """How much later than others of a group each member arrives, where that is most.

    Args:
        parts: Waits in each part of the step's collectives, in order, shape (members, parts).
        single: Waits in the last collective of each part; equal to ``parts`` where each is one.

    Returns:
        Shape (members,), less what a member waited more than others before it arrived.
    """
    more = np.maximum(parts - medians_of_others(parts), 0.0)
    # What was waited in a collective is no excuse for arriving late at it
    before = np.cumsum(more, axis=1) - np.where(parts == single, more, 0.0)
    late: Floats = (medians_of_others(single) - single - before).max(axis=1)
    return late


def _waits_and_transfers(groups: Sequence[GroupTimes]) -> int:
    """Time of all operations, ns."""
    return sum(min(max(ns, 0), _MOST_NS) for each in groups for ns in each.total_ns)


def _waits(durations_ns: Sequence[Sequence[int]]) -> Floats:
    """How much longer each member took than the shortest, shape (members, operations)."""
    table = np.array(durations_ns, dtype=np.float64).clip(0, _MOST_NS)
    waits: Floats = table - table.min(axis=0)
    return waits
