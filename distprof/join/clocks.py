"""Clock offsets from matching and from timestamps, and the robust estimators of the alignment.

How closely a collective ends together depends on the library: over gloo, ranks notice the end
milliseconds apart, whereas an exchanged timestamp is accurate to half of its round trip. If both
agree within their uncertainties, the more certain one is used; clocks that no collective connects
are related by timestamps alone; if the two contradict each other, the collectives count.

Source: D. Mills et al., RFC 5905 (NTP), section 8: the offset between two clocks is accurate to
half of the delay; of several exchanges, those with the least delay are best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

import msgspec
import numpy as np
from msgspec.structs import replace

from distprof.join.shifts import Expectation
from distprof.run.run import ClockAlignment, Rank
from distprof.run.tables import distinct
from distprof.schema import ABSENT, Floats, Int64Array, Table
from distprof.units import NS_PER_US, format_duration

_HUBER = 1.345  # 95 % efficiency on normal noise
_MAD_TO_SIGMA = 1.4826
_MIN_SCALE_NS = 1.0  # times are whole nanoseconds
_ITERATIONS = 8
_SETTLED = 1e-3  # of the scale: a smaller change is not worth another iteration
_MIN_FOR_SLOPE = 8
_MIN_ERROR = 1e-12
_GRAPH_ITERATIONS = 50
_GRAPH_SIGMAS = 3.0  # an edge with a larger residual than this loses weight
_MIN_WEIGHT = 1e-12  # keeps the equations solvable if a node has only a poor edge
_CONVERGED = 0.01  # of the smallest error


class Line(msgspec.Struct, frozen=True):
    """A fitted slope; its standard error is ``scale / leverage``."""

    slope: float  # Of ``y`` over ``x``.
    scale: float  # Robust standard deviation of ``y`` around the line.
    # Root of the weighted sum of squares of centred ``x``; 0 if nothing can be fitted.
    leverage: float


def location(values: Floats) -> tuple[float, float]:
    """Huber's estimate of the middle of ``values``, and their robust standard deviation.

    Source: P. J. Huber, "Robust Estimation of a Location Parameter", 1964.
    """
    center = float(np.median(values))
    for _ in range(_ITERATIONS):
        before = center
        weight, scale = _weights(values - center)
        center = float((weight * values).sum() / weight.sum())
        if abs(center - before) <= _SETTLED * scale:
            break
    _, scale = _weights(values - center)
    return center, scale


def fit_line(x: Int64Array, y: Int64Array) -> Line:
    """Huber regression of ``y`` on ``x``, both int64 ns; no leverage with fewer than 8 points."""
    if len(x) < _MIN_FOR_SLOPE or x.min() == x.max():
        return Line(0.0, _MIN_SCALE_NS, 0.0)
    u = (x - x[0]).astype(np.float64)
    v = (y - y[0]).astype(np.float64)
    weight, slope, length = np.ones(len(u)), 0.0, float(np.ptp(u))
    # the first residuals are those of a constant, so that a far outlier does not set the weights
    residual = v - np.median(v)
    for _ in range(_ITERATIONS):
        before = slope
        weight, scale = _weights(residual)
        centred = u - float((weight * u).sum() / weight.sum())
        slope = float((weight * centred * v).sum() / (weight * centred**2).sum())
        residual = v - slope * centred
        residual -= np.median(residual)
        if abs(slope - before) * length <= _SETTLED * scale:
            break
    _, scale = _weights(residual)
    return Line(slope, scale, float(np.sqrt((weight * centred**2).sum())))


def pooled_scale(scales: Floats, counts: Int64Array) -> float:
    """Median of the samples' standard deviations, weighted by the size of each sample.

    A small sample can agree by chance, so its own scale would understate its error.
    """
    order = np.argsort(scales)
    cumulated = np.cumsum(counts[order])
    middle = int(np.searchsorted(cumulated, cumulated[-1] / 2))
    return float(scales[order][middle])


def _weights(residual: Floats) -> tuple[Floats, float]:
    """Huber weights, and the scale that they are based on."""
    scale = max(_MAD_TO_SIGMA * float(np.median(np.abs(residual))), _MIN_SCALE_NS)
    weight = np.minimum(1.0, _HUBER * scale / np.maximum(np.abs(residual), _MIN_SCALE_NS))
    return weight, scale


def solve_graph(
    count: int, edges: Int64Array, difference: Floats, error: Floats
) -> tuple[Floats, Floats]:
    """Solve for the values of nodes from differences along edges by weighted robust least squares.

    The lowest node of each connected component has the value 0. ``edges``, shape ``(n, 2)``, have
    the lower node first; a difference is the second node's value minus the first's, with its
    standard error. Values and standard errors, 0 and 0 for a node without an edge.
    """
    error = np.maximum(error, _MIN_ERROR)
    value, value_error = np.zeros(count), np.zeros(count)
    label = components_of(count, edges)
    of_edge = label[edges[:, 0]] if len(edges) else np.empty(0, np.int64)
    for component in distinct(of_edge):
        nodes = np.flatnonzero(label == component)
        inside = of_edge == component
        position = np.searchsorted(nodes, edges[inside])
        solved = _solve_component(len(nodes), position, difference[inside], error[inside])
        value[nodes], value_error[nodes] = solved
    return value, value_error


def _solve_component(
    count: int, edges: Int64Array, difference: Floats, error: Floats
) -> tuple[Floats, Floats]:
    """Solve with node 0 fixed at 0 and Huber weights for edges that disagree with the rest."""
    scale = float(error.min())  # keeps the weights near one
    weight = (scale / error) ** 2
    robust, value = np.ones(len(edges)), np.zeros(count)
    for _ in range(_GRAPH_ITERATIONS):
        before = value
        value = _Equations(count, edges, weight * robust, difference).solution()
        residual = np.abs(difference - value[edges[:, 1]] + value[edges[:, 0]])
        limit = _GRAPH_SIGMAS * np.maximum(error, np.median(residual))
        robust = np.minimum(1.0, limit / np.maximum(residual, _MIN_ERROR))
        # a tree leaves no residual
        if len(edges) < count or np.abs(value - before).max() < _CONVERGED * scale:
            break
    variance = _Equations(count, edges, weight * robust, difference).variance() * scale**2
    return value, np.sqrt(np.maximum(variance, 0.0))


_FEW = 16
"""A node with at most this many neighbours is eliminated; the rest is solved as a full matrix."""


class _Equations:
    """Normal equations of a connected graph with node 0 fixed at 0, and their solution.

    Each clock is compared with few others, so eliminating nodes with few neighbours first takes
    linear time. Takahashi's equations give the diagonal of the inverse from entries of the
    elimination.

    Source: K. Takahashi, J. Fagan, M.-S. Chin, "Formation of a sparse bus impedance matrix and its
    application to short circuit study", 8th PICA Conference, 1973.
    """

    def __init__(self, count: int, edges: Int64Array, weight: Floats, difference: Floats) -> None:
        self._rows: list[dict[int, float]] = [{} for _ in range(count)]
        self._diagonal = [0.0] * count
        self._right = [0.0] * count
        weights = np.maximum(weight, _MIN_WEIGHT).tolist()
        for (a, b), w, d in zip(edges.tolist(), weights, difference.tolist(), strict=True):
            for one, other, sign in ((a, b, -1.0), (b, a, 1.0)):
                self._diagonal[one] += w
                self._right[one] += sign * w * d
                if one and other:
                    self._rows[one][other] = self._rows[one].get(other, 0.0) - w
        self._order = self._eliminated(count)
        gone = {0, *self._order}
        self._core = [node for node in range(count) if node not in gone]

    def _eliminated(self, count: int) -> list[int]:
        """Eliminate nodes and return them in order; their rows stay as they were at elimination."""
        order: list[int] = []
        waiting = [(len(self._rows[node]), node) for node in range(1, count)]
        heapify(waiting)
        done = [False] * count
        while waiting:
            degree, node = heappop(waiting)
            if degree > _FEW:
                break
            row, pivot = self._rows[node], self._diagonal[node]
            if done[node] or degree != len(row):
                continue
            done[node] = True
            order.append(node)
            for one, value in row.items():
                share = value / pivot
                mine = self._rows[one]
                del mine[node]
                self._right[one] -= share * self._right[node]
                self._diagonal[one] -= share * value
                for other, of_other in row.items():
                    if other != one:
                        mine[other] = mine.get(other, 0.0) - share * of_other
            for other in row:
                heappush(waiting, (len(self._rows[other]), other))
        return order

    def _full(self) -> Floats:
        """The matrix of the nodes that were not eliminated."""
        place = {node: i for i, node in enumerate(self._core)}
        full = np.zeros((len(place), len(place)))
        for node, i in place.items():
            full[i, i] = self._diagonal[node]
            for other, value in self._rows[node].items():
                full[i, place[other]] = value
        return full

    def solution(self) -> Floats:
        value = np.zeros(len(self._rows))
        if self._core:
            right = np.array([self._right[node] for node in self._core])
            value[self._core] = np.linalg.solve(self._full(), right)
        found: list[float] = value.tolist()
        for node in reversed(self._order):
            known = sum(part * found[other] for other, part in self._rows[node].items())
            found[node] = (self._right[node] - known) / self._diagonal[node]
        return np.array(found)

    def variance(self) -> Floats:
        """The variance of each value, for edges whose variance is one over their weight."""
        pairs: list[dict[int, float]] = [{} for _ in self._rows]
        if self._core:
            inverse = np.linalg.inv(self._full())
            for i, node in enumerate(self._core):
                pairs[node] = dict(zip(self._core, inverse[i].tolist(), strict=True))
        for node in reversed(self._order):
            pivot, own = self._diagonal[node], pairs[node]
            share = {other: part / pivot for other, part in self._rows[node].items()}
            for one in share:
                own[one] = -sum(part * pairs[other][one] for other, part in share.items())
                pairs[one][node] = own[one]
            own[node] = 1 / pivot - sum(part * own[other] for other, part in share.items())
        return np.array([own.get(node, 0.0) for node, own in enumerate(pairs)])


def components_of(count: int, edges: Int64Array) -> Int64Array:
    """Connected components of a graph: for each node, the lowest node of its component."""
    label = np.arange(count)
    while len(edges):
        low = np.minimum(label[edges[:, 0]], label[edges[:, 1]])
        new = label.copy()
        np.minimum.at(new, edges[:, 0], low)
        np.minimum.at(new, edges[:, 1], low)
        new = new[new]
        if (new == label).all():
            break
        label = new
    return label


# Clock offsets found during matching --------------------------------------------------------------

SAME_CLOCK_NS = 50 * NS_PER_US  # GPUs of one host agree within this
SEPARATE_NS = 20 * SAME_CLOCK_NS  # ends on one host that differ by more are on two clocks
MAX_DRIFT_RATIO = 5e-5  # between two quartz clocks


class ClockLinks:
    """Clocks of a run's ranks and the offsets between them that are known so far.

    Ranks of one node share a clock, unless their times do not count from the epoch. Offsets are
    transitive: those from A to B and from B to C give the one from A to C.
    """

    def __init__(self, ranks: Sequence[Rank], nodes: Mapping[str, tuple[int, ...]]) -> None:
        node_of = {number: name for name, members in nodes.items() for number in members}
        numbers: dict[str, int] = {}
        self.clock_of: dict[int, int] = {}  # rank to the number of its clock
        self._has_epoch: list[bool] = []
        self._root: list[int] = []
        self._from_root_ns: list[float] = []  # own clock minus the root's
        span = max((r.capture_end_ns - r.capture_start_ns for r in ranks), default=0)
        self._known_error_ns = SAME_CLOCK_NS + MAX_DRIFT_RATIO * span
        self.num_links = 0
        for rank in ranks:
            shared = rank.has_epoch and rank.rank in node_of
            name = f"node {node_of[rank.rank]}" if shared else f"rank {rank.rank}"
            if name not in numbers:
                numbers[name] = self._new_clock(has_epoch=rank.has_epoch)
            self.clock_of[rank.rank] = numbers[name]

    def _new_clock(self, *, has_epoch: bool) -> int:
        clock = len(self._root)
        self._has_epoch.append(has_epoch)
        self._root.append(clock)
        self._from_root_ns.append(0.0)
        return clock

    def separate(self, rank: int) -> None:
        """Give a rank a separate clock, because its traces contradict its node's clock."""
        self.clock_of[rank] = self._new_clock(has_epoch=self._has_epoch[self.clock_of[rank]])

    def knows(self, a: int, b: int) -> bool:
        """Whether the offset between two clocks is known."""
        return self._root[a] == self._root[b]

    def learn(self, a: int, b: int, offset_ns: float) -> None:
        """Record clock ``b`` minus clock ``a``, unless the offset is known already."""
        if self.knows(a, b):
            return
        moved = self._from_root_ns[a] + offset_ns - self._from_root_ns[b]
        gone, kept = self._root[b], self._root[a]
        for clock, root in enumerate(self._root):
            if root == gone:
                self._root[clock] = kept
                self._from_root_ns[clock] += moved
        self.num_links += 1

    def expected(self, a: int, b: int) -> Expectation:
        """The expected value of clock ``b`` minus clock ``a``."""
        if a == b:
            return Expectation(usual_error_ns=SAME_CLOCK_NS)
        if self.knows(a, b):
            return Expectation(
                offset_ns=self._from_root_ns[b] - self._from_root_ns[a],
                usual_error_ns=self._known_error_ns,
            )
        if self._has_epoch[a] and self._has_epoch[b]:
            return Expectation()
        return Expectation(usual_error_ns=np.inf)


# Timestamps ---------------------------------------------------------------------------------------

_FAR_NS = 120_000_000_000  # exchanges farther from the capture are used only if none is nearer
_MAX_NAMED = 5
_TIMES_BEST = 1.5  # exchanges up to this many times as long as the fastest are used


class StampedClock(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's clock relative to rank 0's, measured with timestamps."""

    offset_ns: int  # Own clock minus rank 0's.
    error_ns: int  # Uncertainty of the offset.


def clock_of_stamps(stamps: Table, around_ns: int) -> StampedClock | None:
    """The clock offset from one rank's CLOCK_STAMPS near a moment, own clock; None without any."""
    sent, received = stamps["t_sent_ns"], stamps["t_received_ns"]
    if len(sent) == 0:
        return None
    near = np.abs(sent - around_ns) <= max(_FAR_NS, int(np.abs(sent - around_ns).min()))
    sent, received, server = sent[near], received[near], stamps["t_server_ns"][near]
    delay = received - sent
    good = delay <= _TIMES_BEST * delay.min()
    offset = (sent - server)[good] + delay[good] // 2
    base = int(offset[0])  # floats lose nanoseconds of large offsets
    middle = base + round(float(np.median(offset - base)))
    spread = int(np.abs(offset - middle).max())
    return StampedClock(offset_ns=middle, error_ns=max(int(delay.min()) // 2, spread, 1))


def with_stamps(clock: ClockAlignment, stamped: Mapping[int, StampedClock]) -> ClockAlignment:
    """The alignment, improved by timestamps if they are more accurate, with notes on agreement.

    ``stamped`` clocks are relative to rank 0's, which has no offset itself.
    """
    stamped = {0: StampedClock(offset_ns=0, error_ns=0), **stamped}
    best: dict[int, StampedClock] = {}  # of each domain, the most accurate one
    for domain, ranks in enumerate(clock.domains):
        if known := [stamped[rank] for rank in ranks if rank in stamped]:
            best[domain] = min(known, key=lambda one: one.error_ns)
    if len(clock.domains) < 2 or len(best) < 2:
        return clock
    anchor, *others = sorted(best)
    result, agreed, notes = clock, [], list(clock.notes)
    for domain in others:
        offset = best[domain].offset_ns - best[anchor].offset_ns + float(clock.offset_ns[anchor])
        error = best[domain].error_ns + best[anchor].error_ns
        name = clock.names[domain]
        residual = int(max(clock.residual_ns[domain], clock.residual_ns[anchor]))
        apart = abs(offset - float(clock.offset_ns[domain]))
        if result.component[domain] != result.component[anchor]:
            result = _connected(result, anchor, domain, offset, error)
            notes.append(
                f"The clock of {name} is known only from timestamps (± {format_duration(error)})."
            )
        elif apart > residual + error:
            notes.append(
                f"Timestamps and collectives disagree on the clock of {name} by "
                f"{format_duration(apart)}, more than the error of either: distprof uses the "
                "collectives."
            )
        else:
            agreed.append(name)
            if error < residual:
                offsets, residuals = result.offset_ns.copy(), result.residual_ns.copy()
                offsets[domain], residuals[domain] = offset, error
                result = replace(result, offset_ns=offsets, residual_ns=residuals)
    if agreed:
        notes.append(f"Timestamps confirm the clocks of {', '.join(agreed[:_MAX_NAMED])}.")
    return replace(_with_anchor_error(result, anchor), notes=tuple(notes))


def _with_anchor_error(clock: ClockAlignment, anchor: int) -> ClockAlignment:
    """The alignment with the anchor's residual at most the smallest one of the other domains."""
    residual: Int64Array = clock.residual_ns.copy()
    known = np.delete(residual, anchor)
    known = known[known != ABSENT]
    if len(known) and (residual[anchor] == ABSENT or residual[anchor] > known.min()):
        residual[anchor] = known.min()
    return replace(clock, residual_ns=residual)


def _connected(
    clock: ClockAlignment, anchor: int, domain: int, offset: float, error: int
) -> ClockAlignment:
    """The alignment with the component of ``domain`` moved to the offset and joined to anchor's."""
    moved = clock.component == clock.component[domain]
    shift = offset - float(clock.offset_ns[domain])
    residual = np.where(moved, np.maximum(clock.residual_ns, 0) + error, clock.residual_ns)
    return replace(
        clock,
        offset_ns=np.where(moved, clock.offset_ns + shift, clock.offset_ns),
        component=np.where(moved, clock.component[anchor], clock.component).astype(np.int32),
        residual_ns=residual.astype(np.int64),
    )
