"""A log's steps simulated as they were, as they would ideally be, and anything between.

Source of the definitions: J. Lin et al., "Understanding Stragglers in Large Model Training Using
What-if Analysis" (OSDI 2025); formula sheet, "What-if".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distprof.replay import Times, simulate
from distprof.schema import Int64Array
from distprof.sections.whatif.operation_graph import KINDS, MESSAGES, StepGraph, StepRows, graph_of

__all__ = ["Mask", "OperationReplay", "replay_of"]

CLOCK_TOLERANCE_NS = 10_000_000
"""A transfer or launch delay that is negative by more is wrong; taken as 0."""

MAX_CELLS = 1_000_000
"""Operations times simulations that are in memory at once."""

# The ideal length: of communication the median, of all else the mean.
_COMMUNICATION = (
    *MESSAGES,
    "params-all-gather",
    "grads-reduce-scatter",
    "separate-grads-all-reduce",
    "layernorm-grads-all-reduce",
    "embedding-grads-all-reduce",
    "optimizer-clip-main-grad",
)

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationReplay:
    """What is needed to simulate n operations in s steps.

    Args:
        rows: The operations.
        graph: What waits for what.
        actual: int64 ns, shape ``(n, s)``: how long each took; for what begins together, from the
            start of its last member.
        ideal: int64 ns, shape ``(n,)``: mean of computation, median of communication, of a kind.
        notes: What did not fit, one sentence each.
    """

    rows: StepRows
    graph: StepGraph
    actual: Int64Array
    ideal: Int64Array
    notes: tuple[str, ...] = ()

    @property
    def num_steps(self) -> int:
        """How many steps, s."""
        return int(self.actual.shape[1])

    def measured(self) -> Int64Array:
        """int64 ns, shape ``(s,)``: the steps as they were."""
        length: Int64Array = self.rows.end.max(axis=0) - self.rows.start.min(axis=0)
        return length

    def simulated(self) -> Int64Array:
        """int64 ns, shape ``(s,)``: nothing changed, but nothing launched late."""
        length: Int64Array = self._many(1, lambda _, step: self.actual[:, step])[0]
        return length

    def ideal_step(self) -> int:
        """The step of ideal operations, ns."""
        return int(self._run(self.ideal[:, np.newaxis]).end.max())

    def keeping(self, masks: Sequence[Mask]) -> Int64Array:
        """int64 ns, shape ``(masks, s)``: all is ideal but the operations of a mask."""
        return self.keeping_each(len(masks), masks.__getitem__)

    def keeping_each(self, count: int, mask: Callable[[int], Mask]) -> Int64Array:
        """The same for many masks, each made when it is needed."""
        return self._many(
            count,
            lambda i, step: np.where(
                mask(i)[:, np.newaxis], self.actual[:, step], self.ideal[:, np.newaxis]
            ),
        )

    def fixing(self, masks: Sequence[Mask]) -> Int64Array:
        """int64 ns, shape ``(masks, s)``: all is as it was but the operations of a mask, ideal."""
        return self._many(
            len(masks),
            lambda i, step: np.where(
                masks[i][:, np.newaxis], self.ideal[:, np.newaxis], self.actual[:, step]
            ),
        )

    def scaled(self, factor: NDArray[np.float64]) -> Int64Array:
        """int64 ns, shape ``(s,)``: each operation takes ``factor`` times what it took."""
        wide = factor[:, np.newaxis]
        length: Int64Array = self._many(
            1, lambda _, step: np.rint(self.actual[:, step] * wide).astype(np.int64)
        )[0]
        return length

    def times(self, step: int) -> Times:
        """One step, simulated as it was; shape ``(n + g,)``, the last g its meetings."""
        times = self._run(self.actual[:, step : step + 1])
        return Times(start=times.start[:, 0], end=times.end[:, 0])

    def with_delays(self) -> Int64Array:
        """int64 ns, shape ``(s,)``: the steps simulated with their launch delays."""
        lengths = []
        for step in self._batches(self.num_steps):
            delay, release = self._delays(step)
            times = self._run(self.actual[:, step], delay, release)
            lengths.append(times.end.max(axis=0))
        return np.concatenate(lengths)

    def _many(self, count: int, duration: Callable[[int, slice], Int64Array]) -> Int64Array:
        """Lengths of the steps in ``count`` scenarios, as many at once as memory allows."""
        steps = self.num_steps
        result = np.empty((count, steps), dtype=np.int64)
        for batch in self._batches(count * steps):
            columns, places = [], []
            for i in range(batch.start // steps, (batch.stop - 1) // steps + 1):
                low, high = max(batch.start - i * steps, 0), min(batch.stop - i * steps, steps)
                columns.append(duration(i, slice(low, high)))
                places.append((i, slice(low, high)))
            ends = self._run(np.concatenate(columns, axis=1)).end.max(axis=0)
            for i, part in places:
                width = part.stop - part.start
                result[i, part], ends = ends[:width], ends[width:]
        return result

    def _batches(self, columns: int) -> list[slice]:
        size = max(1, MAX_CELLS // max(self.graph.graph.num_operations, 1))
        return [slice(low, min(low + size, columns)) for low in range(0, columns, size)]

    def _run(
        self,
        duration: Int64Array,
        delay: Int64Array | None = None,
        release: Int64Array | None = None,
    ) -> Times:
        meetings = np.zeros((self.graph.num_groups, duration.shape[1]), dtype=np.int64)
        duration = np.concatenate([duration, meetings])
        return simulate(self.graph.graph, duration, delay=delay, release=release)

    def _delays(self, step: slice) -> tuple[Int64Array, Int64Array]:
        """Launch delays per edge of the graph, and first starts of what waits for nothing."""
        graph, rows = self.graph, self.rows
        ready, waits = _ready(graph, rows.end[:, step])
        delay = rows.start[:, step] - ready
        delay = np.where(delay <= -CLOCK_TOLERANCE_NS, 0, delay)
        on_edge = np.zeros((len(graph.edge_of), delay.shape[1]), dtype=np.int64)
        real = graph.edge_of >= 0
        on_edge[real] = delay[graph.waits[1][graph.edge_of[real]]]
        release = np.zeros((graph.graph.num_operations, delay.shape[1]), dtype=np.int64)
        free = np.flatnonzero(~waits)
        met = graph.group[free]
        node = np.where(met >= 0, len(rows) + met, free)
        np.maximum.at(release, node, delay[free])
        return on_edge, release


def replay_of(rows: StepRows) -> OperationReplay:
    """Make ready to simulate.

    Raises:
        CycleError: If the order of the log contradicts the dependencies.
    """
    graph = graph_of(rows)
    actual, num_wrong = _actual(rows, graph)
    notes = [*rows.notes, *graph.notes]
    if num_wrong:
        notes.append(
            f"Transfers that end more than {CLOCK_TOLERANCE_NS // 10**6} ms before their last "
            f"member begins, taken as 0: {num_wrong:,}."
        )
    return OperationReplay(
        rows=rows, graph=graph, actual=actual, ideal=_ideal(rows, actual), notes=tuple(notes)
    )


def _actual(rows: StepRows, graph: StepGraph) -> tuple[Int64Array, int]:
    """How long each operation took once it could begin, and how many are absurd."""
    actual = rows.end - rows.start
    members = np.flatnonzero(graph.group >= 0)
    if len(members) == 0:
        return actual, 0
    members = members[np.argsort(graph.group[members], kind="stable")]
    first = np.flatnonzero(np.diff(graph.group[members], prepend=-1))
    begins = np.maximum.reduceat(rows.start[members], first, axis=0)
    transfer = rows.end[members] - begins[graph.group[members]]
    wrong = transfer <= -CLOCK_TOLERANCE_NS
    transfer[wrong] = 0
    actual[members] = transfer
    return actual, int(wrong.sum())


def _ideal(rows: StepRows, actual: Int64Array) -> Int64Array:
    ideal = np.zeros(len(rows), dtype=np.int64)
    communication = {KINDS.index(kind) for kind in _COMMUNICATION}
    for kind in np.unique(rows.kind).tolist():
        mask = rows.kind == kind
        values = actual[mask]
        middle = np.median(values) if kind in communication else values.mean()
        ideal[mask] = round(float(middle))
    return ideal


def _ready(graph: StepGraph, end: Int64Array) -> tuple[Int64Array, Mask]:
    """When all that an operation waits for has ended, and whether it waits for anything."""
    source, target = graph.waits
    ready = np.zeros_like(end)
    waits = np.zeros(len(end), dtype=np.bool_)
    if len(target):
        order = np.argsort(target, kind="stable")
        first = np.flatnonzero(np.diff(target[order], prepend=-1))
        ready[target[order][first]] = np.maximum.reduceat(end[source[order]], first, axis=0)
        waits[target] = True
    return ready, waits
