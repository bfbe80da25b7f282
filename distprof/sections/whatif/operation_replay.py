"""A log's steps, simulated as measured, as ideal, and with any mixture of both.

They show who and what slows the job down: S by kind, data-parallel row, stage and worker.

Source of the definitions: J. Lin et al., "Understanding Stragglers in Large Model Training Using
What-if Analysis" (OSDI 2025); formula sheet, "What-if".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from distprof.replay import Times, simulate
from distprof.run.tables import runs_of
from distprof.schema import ABSENT, Bools, Floats, Int64Array
from distprof.sections.whatif.operation_graph import KINDS, MESSAGES, StepGraph, StepRows, graph_of

CLOCK_TOLERANCE_NS = 10_000_000
"""A transfer that is more negative than this is wrong and counted as 0."""

MAX_CELLS = 1_000_000
"""Operations times simulations that are in memory at once."""

# The ideal length of communication is the median, that of all other kinds the mean.
_COMMUNICATION = (
    *MESSAGES,
    "params-all-gather",
    "grads-reduce-scatter",
    "separate-grads-all-reduce",
    "layernorm-grads-all-reduce",
    "embedding-grads-all-reduce",
    "optimizer-clip-main-grad",
)

Mask = Bools


class OperationReplay(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs to simulate n operations in s steps."""

    rows: StepRows  # The operations.
    graph: StepGraph  # Their dependencies.
    # int64 ns, shape ``(n, s)``: how long each took; for operations that begin together, from the
    # start of the last member.
    actual: Int64Array
    # int64 ns, shape ``(n,)``: mean of the kind of computation, median of the kind of
    # communication.
    ideal: Int64Array
    notes: tuple[str, ...] = ()  # What was left out or inconsistent, one sentence each.

    @property
    def num_steps(self) -> int:
        """Number of steps, s."""
        return int(self.actual.shape[1])

    def measured(self) -> Int64Array:
        """int64 ns, shape ``(s,)``: the steps as they were."""
        length: Int64Array = self.rows.end.max(axis=0) - self.rows.start.min(axis=0)
        return length

    def simulated(self) -> Int64Array:
        """int64 ns, shape ``(s,)``: the steps with nothing changed, except no late launches."""
        length: Int64Array = self.lengths(1, lambda _, step: self.actual[:, step])[0]
        return length

    def ideal_step(self) -> int:
        """The step of ideal operations, ns."""
        return int(self._run(self.ideal[:, np.newaxis]).end.max())

    def keeping(self, masks: Sequence[Mask]) -> Int64Array:
        """int64 ns, shape ``(masks, s)``: everything ideal except the operations of a mask."""
        return self.keeping_each(len(masks), masks.__getitem__)

    def keeping_each(self, count: int, mask: Callable[[int], Mask]) -> Int64Array:
        """The same for many masks, each created when it is needed."""
        return self.lengths(
            count,
            lambda i, step: np.where(
                mask(i)[:, np.newaxis], self.actual[:, step], self.ideal[:, np.newaxis]
            ),
        )

    def fixing(self, masks: Sequence[Mask]) -> Int64Array:
        """int64 ns, shape ``(masks, s)``: the operations of a mask ideal, all others measured."""
        return self.lengths(
            len(masks),
            lambda i, step: np.where(
                masks[i][:, np.newaxis], self.ideal[:, np.newaxis], self.actual[:, step]
            ),
        )

    def times(self, step: int) -> Times:
        """One step, simulated as it was; shape ``(n + g,)``, the last g its meetings."""
        times = self._run(self.actual[:, step : step + 1])
        return Times(start=times.start[:, 0], end=times.end[:, 0])

    def lengths(self, count: int, duration: Callable[[int, slice], Int64Array]) -> Int64Array:
        """Lengths of the steps in scenarios, ns, shape ``(count, s)``; as many at once as fit.

        ``duration`` gives lengths of operations in a scenario and k of the steps, ``(n, k)``.
        """
        steps = self.num_steps
        result = np.empty((count, steps), dtype=np.int64)
        for batch in self.batches(count * steps):
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

    def batches(self, columns: int) -> list[slice]:
        """Slices of as many columns at once as memory allows."""
        size = max(1, MAX_CELLS // max(self.graph.graph.num_operations, 1))
        return [slice(low, min(low + size, columns)) for low in range(0, columns, size)]

    def _run(self, duration: Int64Array) -> Times:
        meetings = np.zeros((self.graph.num_groups, duration.shape[1]), dtype=np.int64)
        return simulate(self.graph.graph, np.concatenate([duration, meetings]))


def replay_of(rows: StepRows) -> OperationReplay:
    """Prepare the simulation of a log; CycleError if its order contradicts the dependencies."""
    graph = graph_of(rows)
    actual, num_wrong = _actual(rows, graph)
    notes = [*rows.notes, *graph.notes]
    if num_wrong:
        notes.append(
            f"Transfers that end more than {CLOCK_TOLERANCE_NS // 10**6} ms before their last "
            f"member begins, counted as 0: {num_wrong:,}."
        )
    ideal = np.zeros(len(rows), dtype=np.int64)
    communication = {KINDS.index(kind) for kind in _COMMUNICATION}
    for kind in np.unique(rows.kind).tolist():
        values = actual[rows.kind == kind]
        middle = np.median(values) if kind in communication else values.mean()
        ideal[rows.kind == kind] = round(float(middle))
    return OperationReplay(rows=rows, graph=graph, actual=actual, ideal=ideal, notes=tuple(notes))


def _actual(rows: StepRows, graph: StepGraph) -> tuple[Int64Array, int]:
    """How long each operation took once it could begin, and how many of these times are wrong."""
    actual = rows.end - rows.start
    members = np.flatnonzero(graph.group >= 0)
    if len(members) == 0:
        return actual, 0
    members = members[np.argsort(graph.group[members], kind="stable")]
    first = runs_of(graph.group[members])[0]
    begins = np.maximum.reduceat(rows.start[members], first, axis=0)
    transfer = rows.end[members] - begins[graph.group[members]]
    wrong = transfer <= -CLOCK_TOLERANCE_NS
    transfer[wrong] = 0
    actual[members] = transfer
    return actual, int(wrong.sum())


# Who and what slows the job down ------------------------------------------------------------------

SLOWEST_PERCENT = 3

MAX_SIMULATED_CELLS = 500_000_000
"""Operations times steps times rows up to which rows are simulated one by one: about a minute."""

COMPUTE = ("forward-compute", "backward-compute")

_TOGETHER = {
    "forward-pp-comm": ("forward-send", "forward-recv"),
    "backward-pp-comm": ("backward-send", "backward-recv"),
}


class Workers(msgspec.Struct, frozen=True, kw_only=True):
    """Workers of the log in order of rank, arrays of shape ``(w,)``."""

    rank: Int64Array  # As the log numbers it.
    dp_rank: Int64Array  # Row of the mesh.
    stage: Int64Array  # Column of the mesh.


def workers_of(rows: StepRows) -> Workers:
    """All workers of the operations."""
    rank, first = np.unique(rows.rank, return_index=True)
    return Workers(rank=rank, dp_rank=rows.dp_rank[first], stage=rows.stage[first])


def masks_by_kind(rows: StepRows) -> dict[str, Mask]:
    """Operations of each kind in the log; sends and receives of one direction are one kind."""
    grouped = {kind: name for name, kinds in _TOGETHER.items() for kind in kinds}
    names = dict.fromkeys(grouped.get(KINDS[code], KINDS[code]) for code in np.unique(rows.kind))
    return {name: rows.of(*_TOGETHER.get(name, (name,))) for name in names}


def by_kind(replay: OperationReplay) -> dict[str, Int64Array]:
    """int64 ns, shape ``(s,)`` per kind: everything ideal except operations of the kind."""
    masks = masks_by_kind(replay.rows)
    return dict(zip(masks, replay.keeping(list(masks.values())), strict=True))


def by_stage(replay: OperationReplay) -> Int64Array:
    """int64 ns, shape ``(p, s)``: everything ideal except one pipeline stage."""
    stage = replay.rows.stage
    return replay.keeping_each(replay.rows.num_stages, lambda number: stage == number)


def by_dp_rank(replay: OperationReplay) -> Int64Array | None:
    """int64 ns, shape ``(d, s)``: everything ideal except one data-parallel row.

    If all rows have the same operations, the ideal rows are identical, and one of them can stand
    for all: a simulation of two rows instead of d. None if rows differ and are too many.
    """
    dp_rank = replay.rows.dp_rank
    num = int(dp_rank.max()) + 1
    pair = _as_pair(replay, num)
    if pair is None:
        if num * replay.actual.size > MAX_SIMULATED_CELLS:
            return None
        return replay.keeping_each(num, lambda number: dp_rank == number)
    length: Int64Array = pair.keeping([pair.rows.dp_rank == 0])[0]
    return length.reshape(num, replay.num_steps)


def _as_pair(replay: OperationReplay, num: int) -> OperationReplay | None:
    """Two rows, the first of which is each row in turn; None if rows differ in their operations."""
    rows = replay.rows
    if num < 3 or len(rows) % num:
        return None
    size = len(rows) // num
    keys = np.stack([rows.lane % rows.num_stages, rows.kind, rows.seq, rows.chunk])
    keys = keys.reshape(len(keys), num, size)
    if (keys != keys[:, :1]).any():
        return None
    two = slice(0, 2 * size)
    pair = replace(
        rows,
        kind=rows.kind[two],
        lane=rows.lane[two],
        worker=rows.worker[two],
        rank=rows.rank[two],
        seq=rows.seq[two],
        chunk=rows.chunk[two],
        micro_batch=np.tile(rows.micro_batch[:size], 2),
        start=np.tile(rows.start[:size], (2, 1)),
        end=np.tile(rows.end[:size], (2, 1)),
    )
    by_row = replay.actual.reshape(num, size, replay.num_steps).swapaxes(0, 1)
    in_turn = by_row.reshape(size, num * replay.num_steps)
    return OperationReplay(
        rows=pair,
        graph=graph_of(pair),
        actual=np.concatenate([in_turn, in_turn]),
        ideal=replay.ideal[two],
    )


def slowest(workers: Workers, slowdown: Floats) -> Int64Array:
    """Ranks of the slowest 3 %, rounded up; among equally slow workers, the lower ranks."""
    num = -(-len(workers.rank) * SLOWEST_PERCENT // 100)
    order = np.lexsort((workers.rank, -slowdown))
    return workers.rank[order[:num]]


def level_stages(replay: OperationReplay) -> Floats:
    """float64, shape ``(n,)``: factors that make every stage compute as long as the mean stage.

    Lengths are scaled, so differences between micro-batches and workers of a stage remain.
    """
    factor = np.ones(len(replay.rows))
    for members, whole in _by_kind_and_stage(replay):
        mean = replay.actual[members].mean()
        factor[members] = replay.actual[whole].mean() / mean if mean > 0 else 1.0
    return factor


def level_micro_batches(replay: OperationReplay) -> Int64Array:
    """int64 ns, shape ``(n,)``: mean computation of the kind and stage; ABSENT for other kinds."""
    level = np.full(len(replay.rows), ABSENT, np.int64)
    for members, _ in _by_kind_and_stage(replay):
        level[members] = round(float(replay.actual[members].mean()))
    return level


def _by_kind_and_stage(replay: OperationReplay) -> Iterator[tuple[Mask, Mask]]:
    """Computation of each kind and stage, compared with that of the kind on all stages."""
    rows = replay.rows
    for kind in COMPUTE:
        whole = rows.of(kind)
        for stage in np.unique(rows.stage[whole]).tolist():
            yield whole & (rows.stage == stage), whole


def micro_batch_correlation(replay: OperationReplay) -> float | None:
    """Correlation of the deviations of forward and backward; None if nothing deviates."""
    forward, backward = (_deviations(replay, kind) for kind in COMPUTE)
    if forward.shape != backward.shape or forward.size < 8:
        return None
    if forward.std() == 0 or backward.std() == 0:
        return None
    return float(np.corrcoef(forward.ravel(), backward.ravel())[0, 1])


def _deviations(replay: OperationReplay, kind: str) -> Floats:
    """Lengths over the mean of their stage, by worker, chunk and micro-batch."""
    rows = replay.rows
    chosen = np.flatnonzero(rows.of(kind) & (rows.micro_batch >= 0))
    keys = (rows.micro_batch[chosen], rows.chunk[chosen], rows.lane[chosen])
    chosen = chosen[np.lexsort(keys)]
    length = replay.actual[chosen].astype(np.float64)
    for stage in np.unique(rows.stage[chosen]).tolist():
        members = rows.stage[chosen] == stage
        length[members] /= max(length[members].mean(), 1.0)
    return length
