"""All ranks' events as one graph, and the profiler's cost per event that explains untraced steps.

The graph repeats the recording if the profiler costs nothing. With a cost per event, the CPU's line
is shorter by that cost for each event on it, and everything else follows: when kernels start, when
calls that wait return, when collectives meet (event-based perturbation analysis: Malony, Reed and
Wijshoff 1992; formula sheet, "The profiler in the picture"). The cost is the one with which the
simulated steps take as long as steps without the profiler.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from distprof.replay import Graph, Times, simulate
from distprof.run.run import CollectiveMatches, Run
from distprof.schema import ABSENT, Int64Array
from distprof.sections.perturbation.events import Part, RankEvents

LEAST_LEFT = 0.1
"""Share of the CPU time between two checkpoints that is never removed."""

CALL_WEIGHT = 3.0
"""Cost of a launch over that of an operator, unless light steps show it. CUPTI's part of a launch
took 7 to 11 µs on H100 and H200, an operator 2 to 7 µs."""

LEAST_SHRINK = 0.2
"""Smallest factor on the CPU time that costs per event leave."""

NEARLY = 1.005
"""A step is at the pace of the GPU from this factor on: no cost is higher than that needs."""

MOST_NS = 200_000
"""Highest cost of an operator that is tried. On GPU hosts 2 to 7 µs were measured; on CPU ranks
that share cores, ten times as much."""

Factors: TypeAlias = Mapping[int, Mapping[int, float]]
"""Factors on loads and garbage collections: by rank, then by :class:`Part`."""

_TRIED = 17
"""Costs that are simulated at once."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What the profiler is taken to cost."""

    operator_ns: float = 0.0  # For each operator or annotation.
    call_ns: float = 0.0  # For each launch.
    # Factor on the CPU time that is left, below 1 if costs per event do not suffice.
    shrink: float = 1.0


class RankTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Simulated times of one rank's events, own clock."""

    events: RankEvents  # The events.
    check_ns: Int64Array  # int64 per checkpoint.
    start_ns: Int64Array  # int64 per activity.
    end_ns: Int64Array  # int64 per activity.

    def moved(self, times: Int64Array) -> Int64Array:
        """Where moments of the CPU's clock are in the simulation."""
        return _interpolated(times, self.events.check_ns, self.check_ns)

    def moved_on_gpu(self, times: Int64Array) -> Int64Array:
        """Where moments among the activities are in the simulation; on CPU ranks, on the CPU."""
        starts, ends = self.events.start_ns, self.events.end_ns
        if len(starts) == 0 or self.events.is_cpu:
            return self.moved(times)
        known = np.concatenate((starts, ends))
        order = np.argsort(known, kind="stable")
        known = known[order]
        moved = np.maximum.accumulate(np.concatenate((self.start_ns, self.end_ns))[order])
        result = _interpolated(times, known, moved)
        at = np.minimum(np.searchsorted(starts, times), len(starts) - 1)
        return np.where(starts[at] == times, self.start_ns[at], result)

    def boundaries(self, times: Int64Array) -> Int64Array:
        """Bounds of steps: when the CPU reached them and the GPU had ended the step."""
        moved = self.moved(times)
        rows = np.flatnonzero(self.events.is_main)
        if len(rows) == 0:
            return moved
        done = np.maximum.accumulate(self.end_ns[rows])
        last = np.searchsorted(self.events.start_ns[rows], times, side="left") - 1
        return np.where(last >= 0, np.maximum(moved, done[np.maximum(last, 0)]), moved)


def _interpolated(times: Int64Array, known: Int64Array, moved: Int64Array) -> Int64Array:
    """Piecewise linear; the same distance as from the nearest known moment outside of them."""
    base, to = int(known[0]), int(moved[0])
    shifted = (times - base).astype(np.float64)
    inside = np.interp(shifted, (known - base).astype(np.float64), (moved - to).astype(np.float64))
    after = np.maximum(shifted - float(known[-1] - base), 0)
    before = np.minimum(shifted, 0)
    return np.rint(inside + after + before).astype(np.int64) + to


class Model:
    """The graph of all ranks' events.

    Matched collectives of the run join the ranks; without a run, collectives keep their durations.
    Windows are by rank, own clock, shape ``(W, 2)``, the same number for all. Matched collectives
    that contradict each other are a CycleError.
    """

    def __init__(
        self, run: Run | None, events: Sequence[RankEvents], windows: Mapping[int, Int64Array]
    ) -> None:
        self._events = list(events)
        sizes = [one.num_checkpoints + one.num_activities for one in self._events]
        self._base = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
        self._windows = [windows[one.rank] for one in self._events]
        self._shift = [
            0 if run is None else int(run.clock.correction(one.rank, one.check_ns[:1])[0])
            for one in self._events
        ]
        self._build(run)

    def _build(self, run: Run | None) -> None:
        edges: list[tuple[Int64Array, Int64Array, Int64Array]] = []
        durations, releases, lines = [], [], []
        for one, base, shift in zip(self._events, self._base, self._shift, strict=False):
            count, total = one.num_checkpoints, one.num_checkpoints + one.num_activities
            edges.append((one.edges.source + base, one.edges.target + base, one.edges.delay_ns))
            release = np.zeros(total, np.int64)
            release[0] = one.check_ns[0] - shift
            release[count:] = np.where(one.release_ns, one.release_ns - shift, 0)
            durations.append(np.concatenate((np.zeros(count, np.int64), one.end_ns - one.start_ns)))
            releases.append(release)
            lines.append((base + np.arange(count - 1), base + np.arange(1, count)))
        duration, release = np.concatenate(durations), np.concatenate(releases)
        meeting = _Meetings.of(run, self._events, self._base, self._shift)
        source, target, delay = (np.concatenate([edge[i] for edge in edges]) for i in range(3))
        ends = np.arange(int(self._base[-1]), dtype=np.int64)
        ends[meeting.activity] = meeting.end_node
        duration[meeting.activity] = 0
        self._ends = ends
        line = [np.concatenate([part[i] for part in lines]) for i in range(2)]
        self._duration = np.concatenate((duration, meeting.duration))
        self._release = np.concatenate((release, np.zeros(len(meeting.duration), np.int64)))
        self._delay = np.concatenate((delay, meeting.delay))
        self._graph = Graph.of(
            len(self._duration),
            np.concatenate((line[0], ends[source], meeting.source)),
            np.concatenate((line[1], target, meeting.target)),
        )

    def _line_delays(self, costs: Sequence[Cost], factors: Factors) -> Int64Array:
        """CPU time of each edge of the lines, shape ``(L, k)``."""
        parts = []
        operator, call, shrink = (
            np.array([getattr(cost, name) for cost in costs])
            for name in ("operator_ns", "call_ns", "shrink")
        )
        for one in self._events:
            work = one.work_ns[1:, None].astype(np.float64)
            spent = one.half_ops[1:, None] * (operator / 2) + one.half_calls[1:, None] * (call / 2)
            left = np.maximum(work - spent, LEAST_LEFT * work) * shrink
            part = one.part[1:]
            for value, factor in factors.get(one.rank, {}).items():
                left = np.where((part == value)[:, None], work * factor, left)
            left = np.where((part == Part.WAIT)[:, None], np.minimum(work, 5_000), left)
            parts.append(np.rint(left).astype(np.int64))
        return np.concatenate(parts)

    def simulate(self, costs: Sequence[Cost], factors: Factors | None = None) -> Times:
        """Times of all events with each of these costs, on the common clock, shape ``(n, k)``."""
        line = self._line_delays(costs, factors or {})
        delay = np.concatenate(
            (line, np.broadcast_to(self._delay[:, None], (len(self._delay), len(costs))))
        )
        release = np.broadcast_to(self._release[:, None], (len(self._release), len(costs)))
        return simulate(self._graph, self._duration, delay=delay, release=release)

    def of_ranks(self, times: Times, which: int) -> list[RankTimes]:
        """The times of one simulation, rank by rank, own clock."""
        result = []
        for one, base, shift in zip(self._events, self._base, self._shift, strict=False):
            count = one.num_checkpoints
            first = slice(int(base), int(base) + count)
            acts = np.arange(int(base) + count, int(base) + count + one.num_activities)
            result.append(
                RankTimes(
                    events=one,
                    check_ns=times.start[first, which] + shift,
                    start_ns=times.start[acts, which] + shift,
                    end_ns=times.end[self._ends[acts], which] + shift,
                )
            )
        return result

    def steps(self, times: Times) -> NDArray[np.float64]:
        """Length of each window on each rank, shape ``(P, W, k)``."""
        found = np.empty((len(self._events), len(self._windows[0]), times.start.shape[1]))
        for which in range(times.start.shape[1]):
            for position, rank in enumerate(self.of_ranks(times, which)):
                bounds = rank.boundaries(self._windows[position])
                found[position, :, which] = bounds[:, 1] - bounds[:, 0]
        return found


class _Meetings(msgspec.Struct, frozen=True, kw_only=True):
    """Matched collectives as additional nodes: a transfer, and an end for each member."""

    # Node of each member's activity, which then lasts until the transfer starts.
    activity: Int64Array
    end_node: Int64Array  # Node whose end is the end of that activity.
    duration: Int64Array  # Durations of the additional nodes.
    source: Int64Array  # Edges to and from them, and between messages.
    target: Int64Array  # The same.
    delay: Int64Array  # The same.

    @staticmethod
    def of(
        run: Run | None, events: Sequence[RankEvents], base: Int64Array, shift: Sequence[int]
    ) -> _Meetings:
        position = {one.rank: i for i, one in enumerate(events)}
        next_node = int(base[-1])
        activity: list[int] = []
        end_node: list[int] = []
        duration: list[int] = []
        edges: list[tuple[int, int, int]] = []
        posts: dict[int, list[tuple[int, int, int]]] = {}
        matches = CollectiveMatches.none() if run is None else run.matches
        offsets, ranks, rows = (
            matches.offsets.tolist(),
            matches.member_rank.tolist(),
            matches.member_row.tolist(),
        )
        for low, high in pairwise(offsets):
            members = [
                (position[rank], row)
                for rank, row in zip(ranks[low:high], rows[low:high], strict=True)
                if rank in position
            ]
            if len(members) < 2:
                continue
            acts = [(p, int(events[p].of_collective[row])) for p, row in members]
            if any(act == ABSENT for _, act in acts):
                _note_posts(events, members, base, shift, posts)
                continue
            start = [int(events[p].start_ns[act] - shift[p]) for p, act in acts]
            end = [int(events[p].end_ns[act] - shift[p]) for p, act in acts]
            transfer = min(end) - max(start)
            if transfer < 0:
                continue
            node = next_node
            duration.append(transfer)
            next_node += 1
            for (p, act), ended in zip(acts, end, strict=True):
                of = int(base[p]) + events[p].num_checkpoints + act
                activity.append(of)
                end_node.append(next_node)
                duration.append(0)
                edges += ((of, node, 0), (node, next_node, ended - min(end)))
                next_node += 1
        for p, of_rank in posts.items():
            edges += _message_edges(events[p], int(base[p]), shift[p], of_rank)
        table = np.array(edges, np.int64).reshape(-1, 3)
        return _Meetings(
            activity=np.array(activity, np.int64),
            end_node=np.array(end_node, np.int64),
            duration=np.array(duration, np.int64),
            source=table[:, 0],
            target=table[:, 1],
            delay=table[:, 2],
        )


def _note_posts(
    events: Sequence[RankEvents],
    members: Sequence[tuple[int, int]],
    base: Int64Array,
    shift: Sequence[int],
    posts: dict[int, list[tuple[int, int, int]]],
) -> None:
    """For the receiver of a message: its own post, the sender's node, and the sender's post."""
    if len(members) != 2 or any(events[p].posted[row] == ABSENT for p, row in members):
        return
    is_receiver = [bool(events[p].receives[row]) for p, row in members]
    if sum(is_receiver) != 1:
        return
    at = is_receiver.index(True)
    (receiver, own), (sender, other) = members[at], members[1 - at]
    own_check, check = int(events[receiver].posted[own]), int(events[sender].posted[other])
    posts.setdefault(receiver, []).append(
        (
            int(events[receiver].check_ns[own_check] - shift[receiver]),
            int(base[sender]) + check,
            int(events[sender].check_ns[check] - shift[sender]),
        )
    )


def _message_edges(
    one: RankEvents, base: int, shift: int, posts: list[tuple[int, int, int]]
) -> Iterator[tuple[int, int, int]]:
    """Edges from the posts of messages to the ends of the waits for them, in order of posting."""
    posts.sort()
    taken = 0
    for begins, ends in zip(one.wait_start.tolist(), one.wait.tolist(), strict=True):
        begin, end = int(one.check_ns[begins]) - shift, int(one.check_ns[ends]) - shift
        if taken >= len(posts) or posts[taken][0] > end:
            yield base + begins, base + ends, end - begin
            continue
        _, node, sent = posts[taken]
        if sent > end:
            yield base + begins, base + ends, end - begin
            continue
        taken += 1
        rest = end - max(sent, begin)
        yield node, base + ends, rest if sent > begin else 0
        yield base + begins, base + ends, rest


# The cost that explains untraced steps ------------------------------------------------------------


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """The cost with which simulated steps take as long as untraced ones."""

    cost: Cost  # The cost.
    step_ns: float  # Mean simulated step with it.
    # Whether a higher cost would change nothing: the GPU, or the input, sets the pace.
    is_bound: bool


def fit(
    model: Model,
    target_ns: float,
    usual: NDArray[np.bool_],
    factors: Factors,
    call_ns: float | None = None,
) -> Fit:
    """Find the cost per event, given the mean step without the profiler.

    The target stands for the ``usual`` windows. ``call_ns`` is the cost of a launch if it was
    measured.
    """

    def costs(operators: NDArray[np.float64]) -> list[Cost]:
        calls = operators * CALL_WEIGHT if call_ns is None else np.full(len(operators), call_ns)
        return [
            Cost(operator_ns=float(a), call_ns=float(b))
            for a, b in zip(operators, calls, strict=True)
        ]

    def means(tried: Sequence[Cost]) -> NDArray[np.float64]:
        steps = model.steps(model.simulate(tried, factors))
        mean: NDArray[np.float64] = steps[:, usual].mean(axis=(0, 1))
        return mean

    most = replace(costs(np.array([float(MOST_NS)]))[0], shrink=LEAST_SHRINK)
    pace = float(means([most])[0])  # of the GPU, or of the input
    aim = max(target_ns, NEARLY * pace)
    low, high = 0.0, float(MOST_NS)
    for _ in range(4):
        operators = np.linspace(low, high, _TRIED)
        reached = np.flatnonzero(means(costs(operators)) <= aim)
        at = int(reached[0]) if len(reached) else _TRIED - 1
        low, high = operators[max(at - 1, 0)], operators[at]
    chosen = costs(np.array([float(high)]))[0]
    step = float(means([chosen])[0])
    if step > 1.01 * aim:
        tried = [replace(chosen, shrink=float(s)) for s in np.linspace(1.0, LEAST_SHRINK, _TRIED)]
        found = means(tried)
        reached = np.flatnonzero(found <= aim)
        at = int(reached[0]) if len(reached) else int(found.argmin())
        chosen, step = tried[at], float(found[at])
    return Fit(cost=chosen, step_ns=step, is_bound=step <= 1.02 * pace)
