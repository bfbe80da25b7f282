"""Dependencies in a step of pipeline- and data-parallel training, from a log of operations.

Source of the dependencies: J. Lin et al., "Understanding Stragglers in Large Model Training Using
What-if Analysis" (OSDI 2025), and the tables published with it; formula sheet, "What-if".

On each worker, the operations of a stream run in order. Computation, each direction of messages,
and data-parallel collectives are separate streams. A message waits for the computation whose result
it carries, and a computation for the message that it needs. Parameters are gathered before a
chunk's first forward. After the last backward come layer-norm and embedding gradients, the
reduce-scatter, the clip over all workers and the optimizer. Collectives and messages begin when
their last member does.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import msgspec
import numpy as np

from distprof.replay import Graph
from distprof.run.evidence import OperationLog
from distprof.run.tables import numbers_in, runs_of
from distprof.schema import Bools, Int64Array, Table
from distprof.units import few_names

KINDS = (
    "forward-compute",
    "backward-compute",
    "forward-send",
    "forward-recv",
    "backward-send",
    "backward-recv",
    "params-all-gather",
    "grads-reduce-scatter",
    "separate-grads-all-reduce",
    "layernorm-grads-all-reduce",
    "embedding-grads-all-reduce",
    "optimizer-clip-main-grad",
    "optimizer",
    "gc",
)
"""Kinds with a known place in a step; ``StepRows.kind`` is an index into them."""

MESSAGES = ("forward-send", "forward-recv", "backward-send", "backward-recv")
RowIndex = Int64Array


class StepRows(msgspec.Struct, frozen=True, kw_only=True):
    """n operations of one step, and when each ran in each of s steps."""

    steps: Int64Array  # int64, shape ``(s,)``, step numbers.
    kind: Int64Array  # int64, shape ``(n,)``, index into KINDS.
    lane: Int64Array  # int64, shape ``(n,)``: worker, numbered ``dp_rank * num_stages + stage``.
    worker: Int64Array  # int64, shape ``(n,)``: the same, numbered without gaps.
    rank: Int64Array  # int64, shape ``(n,)``, as the log numbers it.
    seq: Int64Array  # int64, shape ``(n,)``.
    chunk: Int64Array  # int64, shape ``(n,)``, 0 if the log does not give it.
    micro_batch: Int64Array  # int64, shape ``(n,)``, or absent.
    start: Int64Array  # int64 ns, shape ``(n, s)``.
    end: Int64Array  # int64 ns, shape ``(n, s)``.
    num_stages: int  # p.
    notes: tuple[str, ...] = ()  # What was left out and why, one sentence each.

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def stage(self) -> Int64Array:
        """int64, shape ``(n,)``."""
        return self.lane % self.num_stages

    @property
    def dp_rank(self) -> Int64Array:
        """int64, shape ``(n,)``."""
        return self.lane // self.num_stages

    def of(self, *kinds: str) -> Bools:
        """Mask of the operations of these kinds."""
        return np.isin(self.kind, [KINDS.index(kind) for kind in kinds])


def lay_out(log: OperationLog) -> StepRows | None:
    """The log's operations step by step; None if the place of none is known."""
    table = log.operations
    coded = table.coded("kind")
    codes = [KINDS.index(value) if value in KINDS else -1 for value in coded.values]
    kind = np.array([*codes, -1], np.int64)[coded.codes]
    known = np.flatnonzero(kind >= 0)
    if len(known) == 0:
        return None
    notes = _unknown_kinds(table, kind)
    num_stages = int(table["stage"].max()) + 1
    place = np.maximum(table["stage"], 0).astype(np.int64)
    lane = np.maximum(table["dp_rank"], 0).astype(np.int64) * max(num_stages, 1) + place
    order = known[np.lexsort((table["seq"][known], kind[known], lane[known], table["step"][known]))]
    keys = np.stack([lane[order], kind[order], table["seq"][order]], axis=1)
    steps, rows, left_out = _equal_steps(table["step"][order], keys)
    if left_out:
        notes.append(
            "Steps left out because their operations differ from those of most steps: "
            f"{left_out:,} of {left_out + len(steps):,}."
        )
    first, every = order[rows[:, 0]], order[rows]
    return StepRows(
        steps=steps,
        kind=kind[first],
        lane=lane[first],
        worker=np.unique(lane[first], return_inverse=True)[1],
        rank=table["rank"][first].astype(np.int64),
        seq=table["seq"][first],
        chunk=np.maximum(table["chunk"][first], 0).astype(np.int64),
        micro_batch=table["micro_batch"][first].astype(np.int64),
        start=table["start_ns"][every],
        end=table["end_ns"][every],
        num_stages=max(num_stages, 1),
        notes=tuple(notes),
    )


def _unknown_kinds(table: Table, kind: Int64Array) -> list[str]:
    unknown = table.coded("kind").take(kind < 0)
    if not len(unknown):
        return []
    names = sorted({unknown.values[code] for code in np.unique(unknown.codes).tolist()})
    return [
        "Operations left out because the dependencies of their kind are unknown: "
        f"{len(unknown):,} of {len(table):,} ({few_names(names, 5)})."
    ]


def _equal_steps(step: Int64Array, keys: Int64Array) -> tuple[Int64Array, RowIndex, int]:
    """Steps with the most common operations, their rows ``(n, s)``, and how many steps differ."""
    numbers, first = np.unique(step, return_index=True)
    bounds = [*first.tolist(), len(step)]
    signatures = [hash(keys[low:high].tobytes()) for low, high in pairwise(bounds)]
    common, _ = Counter(signatures).most_common(1)[0]
    chosen = np.array([i for i, sign in enumerate(signatures) if sign == common], np.int64)
    length = bounds[chosen[0] + 1] - bounds[chosen[0]]
    rows = first[chosen][np.newaxis, :] + np.arange(length)[:, np.newaxis]
    return numbers[chosen], rows, len(numbers) - len(chosen)


# Dependencies -------------------------------------------------------------------------------------

EPS_NS = 50_000
"""Tolerated clock error when distinguishing a message from one that was never sent."""

_COMPUTE = ("forward-compute", "backward-compute")

_AFTER = (
    ("gc",),
    ("layernorm-grads-all-reduce",),
    ("embedding-grads-all-reduce",),
    ("grads-reduce-scatter", "separate-grads-all-reduce"),
    ("optimizer-clip-main-grad",),
    ("optimizer",),
)

_ACROSS_DP = ("params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce")
Edges = tuple[Int64Array, Int64Array]


class StepGraph(msgspec.Struct, frozen=True, kw_only=True):
    """The graph of one step: n operations, then g meetings of operations that begin together."""

    graph: Graph  # n + g nodes.
    group: Int64Array  # int64, shape ``(n,)``: the meeting of each operation, -1 for none.
    notes: tuple[str, ...] = ()  # Inconsistencies of the log, one sentence each.

    @property
    def num_groups(self) -> int:
        """Number of meetings, g."""
        return self.graph.num_operations - len(self.group)


def graph_of(rows: StepRows) -> StepGraph:
    """Dependencies, by the order of the first step; CycleError if that contradicts them."""
    compute = _in_order(rows, rows.of(*_COMPUTE))
    message_edges, pairs, num_unpaired = _messages(rows)
    # A chunk's first forward waits for the last gather of its parameters
    gathers = np.flatnonzero(rows.of("params-all-gather"))
    forward = np.flatnonzero(rows.of("forward-compute"))
    last = _extreme(rows, gathers, -rows.seq[gathers])
    first = _extreme(rows, forward, rows.start[forward, 0])
    a, b = _joined(_chunk_key(rows, last), _chunk_key(rows, first))
    edges = [
        _chain(rows, compute),
        *message_edges,
        _first_backward_messages(rows, compute),
        _chain(rows, _in_order(rows, rows.of("params-all-gather", "grads-reduce-scatter"))),
        (last[a], first[b]),
        *_after_last_compute(rows, compute),
    ]
    if not rows.of(*MESSAGES).any():
        edges.append(_between_chunks(rows))
    source, target = (np.concatenate(ends) for ends in zip(*edges, strict=True))
    note = f"Messages per step without a partner in the log: {num_unpaired:,}."
    # Operations of a group wait, through a meeting, for all their sources.
    group = _groups(rows, pairs)
    members = np.flatnonzero(group >= 0)
    num, met = len(rows), group[target]
    graph = Graph.of(
        num + int(group.max(initial=-1)) + 1,
        np.concatenate([source, num + group[members]]),
        np.concatenate([np.where(met >= 0, num + met, target), members]),
    )
    return StepGraph(graph=graph, group=group, notes=(note,) if num_unpaired else ())


# Order --------------------------------------------------------------------------------------------


def _in_order(rows: StepRows, mask: Bools) -> Int64Array:
    """Operations of a mask by worker, in order of their start in the first step."""
    chosen = np.flatnonzero(mask)
    names = np.argsort(np.argsort(np.array(KINDS)))[rows.kind[chosen]]
    start = rows.start[chosen, 0]
    return chosen[np.lexsort((names, rows.seq[chosen], start, rows.lane[chosen]))]


def _chain(rows: StepRows, ordered: Int64Array) -> Edges:
    """Each operation waits for the one before it on the same worker."""
    same = rows.lane[ordered[1:]] == rows.lane[ordered[:-1]]
    return ordered[:-1][same], ordered[1:][same]


def _joined(left: Int64Array, right: Int64Array) -> Edges:
    """Positions on both sides of the common keys; keys are distinct on each side."""
    _, a, b = np.intersect1d(left, right, assume_unique=True, return_indices=True)
    return a, b


# Messages -----------------------------------------------------------------------------------------


def _messages(rows: StepRows) -> tuple[list[Edges], list[Edges], int]:
    """Edges of sends and receives, pairs that begin together, and how many lack a partner."""
    edges: list[Edges] = []
    pairs: list[Edges] = []
    num_unpaired = 0
    for way, step in (("forward", 1), ("backward", -1)):
        real = {}
        for side in ("send", "recv"):
            messages = _in_order(rows, rows.of(f"{way}-{side}"))
            edges.append(_chain(rows, messages))
            matched, real[side] = _matched(rows, messages, way, is_send=side == "send")
            edges += matched
        sends, receives = real["send"], real["recv"]
        a, b = _joined(_keys(rows, sends, step), _keys(rows, receives, 0))
        pairs.append((sends[a], receives[b]))
        num_unpaired += len(sends) + len(receives) - 2 * len(a)
    return edges, pairs, num_unpaired


def _keys(rows: StepRows, messages: Int64Array, step: int) -> Int64Array:
    """Keys of messages: where each arrives, and its number there."""
    lane, stages = rows.lane[messages], rows.num_stages
    there = lane // stages * stages + (lane % stages + step) % stages
    return there * (len(rows) + 1) + numbers_in(lane)


def _matched(
    rows: StepRows, messages: Int64Array, way: str, *, is_send: bool
) -> tuple[list[Edges], Int64Array]:
    """Edges between messages and computation, and the messages that were really sent."""
    # A log may contain messages that were never sent: before the first result, after the last need,
    # or beyond either end of the model.
    compute = _in_order(rows, rows.of(f"{way}-compute"))
    by_seq = compute[np.lexsort((rows.seq[compute], rows.lane[compute]))]
    launched = messages[_is_launched(rows, messages, compute, is_send=is_send)]
    # Whether the model has a chunk that the message goes to or comes from.
    place = rows.chunk * rows.num_stages + rows.stage
    there = place[by_seq] + (1 if (way == "forward") == is_send else -1)
    num_chunks = (int(rows.chunk.max(initial=0)) + 1) * rows.num_stages
    has_end = (there >= 0) & (there < num_chunks)
    number = _partner_numbers(rows, launched, by_seq, has_end, is_send=is_send)
    count = np.bincount(rows.worker[by_seq], minlength=int(rows.worker.max()) + 1)
    has_partner = number < count[rows.worker[launched]]
    launched, number = launched[has_partner], number[has_partner]
    if len(launched) == 0:
        return [], launched
    at = (np.cumsum(count) - count)[rows.worker[launched]] + number
    partner, sent = by_seq[at], launched[has_end[at]]
    if is_send:
        return [(partner, launched)], sent
    later = number > 0
    return [(launched, partner), (by_seq[at[later] - 1], launched[later])], sent


def _partner_numbers(
    rows: StepRows, launched: Int64Array, compute: Int64Array, has_end: Bools, *, is_send: bool
) -> Int64Array:
    """Number of the worker's computation that each message belongs to."""
    # Logs of interleaved schedules contain either a message for every computation, including those
    # beyond the ends of the model and sometimes without the first receive, or only messages that
    # were really sent.
    num_workers = int(rows.worker.max()) + 1
    worker, of_compute = rows.worker[launched], rows.worker[compute]
    messages, all_of, real = (
        np.bincount(workers, minlength=num_workers)
        for workers in (worker, of_compute, of_compute[has_end])
    )
    number = numbers_in(worker)
    only_real = (messages == real) & (messages < all_of)
    if not is_send:
        number = number + ((messages + 1 == all_of) & ~only_real)[worker]
    chosen = only_real[worker]
    among_real = numbers_in(of_compute)[has_end]
    first = (np.cumsum(real) - real)[worker[chosen]]
    number[chosen] = among_real[first + number[chosen]]
    return number


def _is_launched(
    rows: StepRows, messages: Int64Array, compute: Int64Array, *, is_send: bool
) -> Bools:
    num_workers = int(rows.worker.max()) + 1
    worker, of_compute = rows.worker[messages], rows.worker[compute]
    if is_send:
        first = np.full(num_workers, np.iinfo(np.int64).max)
        np.minimum.at(first, of_compute, rows.end[compute, 0])
        launched: Bools = rows.end[messages, 0] >= first[worker] - EPS_NS
        return launched
    last = np.full(num_workers, np.iinfo(np.int64).min // 2)
    np.maximum.at(last, of_compute, rows.start[compute, 0])
    launched = rows.start[messages, 0] <= last[worker] + EPS_NS
    return launched


def _first_backward_messages(rows: StepRows, compute: Int64Array) -> Edges:
    """A worker's first backward messages wait for the computation two before its first backward."""
    number = numbers_in(rows.lane[compute])
    backward = np.flatnonzero(rows.of("backward-compute")[compute])
    first = backward[runs_of(rows.lane[compute[backward]])[0]]
    first = first[number[first] >= 2]
    before = compute[first - 2]
    source, target = [], []
    for kind in ("backward-recv", "backward-send"):
        messages = _in_order(rows, rows.of(kind))
        opening = messages[runs_of(rows.lane[messages])[0]]
        a, b = _joined(rows.lane[before], rows.lane[opening])
        source.append(before[a])
        target.append(opening[b])
    return np.concatenate(source), np.concatenate(target)


def _between_chunks(rows: StepRows) -> Edges:
    """Without logged messages, chunks of the model wait for each other directly."""
    dp_rank, batches = rows.dp_rank, int(rows.micro_batch.max(initial=0)) + 2
    place = rows.chunk * rows.num_stages + rows.stage
    num_places = int(place.max(initial=0)) + 2
    source, target = [], []
    for way, step in (("forward", 1), ("backward", -1)):
        chosen = np.flatnonzero(rows.of(f"{way}-compute") & (rows.micro_batch >= 0))
        micro = dp_rank[chosen] * batches + rows.micro_batch[chosen]
        here = micro * (num_places + 1) + place[chosen] + 1
        if len(np.unique(here)) < len(here):
            continue  # parts of one computation: it is unknown which of them passes it on
        a, b = _joined(here + step, here)
        source.append(chosen[a])
        target.append(chosen[b])
    empty = np.empty(0, np.int64)
    return np.concatenate([empty, *source]), np.concatenate([empty, *target])


# Data parallelism and the end of the step ---------------------------------------------------------


def _chunk_key(rows: StepRows, chosen: Int64Array) -> Int64Array:
    return rows.lane[chosen] * (int(rows.chunk.max(initial=0)) + 1) + rows.chunk[chosen]


def _extreme(rows: StepRows, chosen: Int64Array, by: Int64Array) -> Int64Array:
    """The operation with the smallest ``by`` (aligned with ``chosen``) per worker and chunk."""
    chosen = chosen[np.lexsort((by, _chunk_key(rows, chosen)))]
    return chosen[runs_of(_chunk_key(rows, chosen))[0]]


def _after_last_compute(rows: StepRows, compute: Int64Array) -> list[Edges]:
    """Chain of the operations that follow the last computation of a worker."""
    # If gradients of whole chunks are reduced while others are computed (then there is a separate
    # all-reduce), the reduce-scatters run at the same time as the computation.
    overlaps = bool(rows.of("separate-grads-all-reduce").any())
    phase = np.full(len(KINDS), -1)
    for number, kinds in enumerate(_AFTER):
        phase[[KINDS.index(kind) for kind in kinds]] = number
    if overlaps:
        phase[KINDS.index("grads-reduce-scatter")] = -1
    tail = np.flatnonzero(phase[rows.kind] >= 0)
    tail = tail[np.lexsort((rows.seq[tail], phase[rows.kind[tail]], rows.lane[tail]))]
    latest = compute[np.lexsort((-rows.end[compute, 0], rows.lane[compute]))]
    last = latest[runs_of(rows.lane[latest])[0]]
    edges = [_chain(rows, tail), _to_first(rows, last, tail)]
    if overlaps:
        scatters = np.flatnonzero(rows.of("grads-reduce-scatter"))
        backward = np.flatnonzero(rows.of("backward-compute"))
        done = _extreme(rows, backward, -rows.end[backward, 0])
        begins = _extreme(rows, scatters, rows.seq[scatters])
        a, b = _joined(_chunk_key(rows, done), _chunk_key(rows, begins))
        closing = scatters[np.lexsort((-rows.seq[scatters], rows.lane[scatters]))]
        closing = closing[runs_of(rows.lane[closing])[0]]
        after = tail[rows.kind[tail] != KINDS.index("gc")]
        edges += [(done[a], begins[b]), _to_first(rows, closing, after)]
    return edges


def _to_first(rows: StepRows, source: Int64Array, ordered: Int64Array) -> Edges:
    """Edges from one operation of each worker to the worker's first in ``ordered``."""
    first = ordered[runs_of(rows.lane[ordered])[0]]
    a, b = _joined(rows.lane[source], rows.lane[first])
    return source[a], first[b]


# Meetings -----------------------------------------------------------------------------------------


def _groups(rows: StepRows, pairs: list[Edges]) -> Int64Array:
    """Meeting of each operation, -1 if it begins alone."""
    stages, seq = rows.num_stages, rows.seq
    wide = int(seq.max(initial=0)) + 1
    group = np.full(len(rows), -1, dtype=np.int64)
    used = 0
    for kind in _ACROSS_DP:  # all workers of a stage
        used = _number(group, rows.of(kind), rows.stage * wide + seq, used)
    used = _number(group, rows.of("optimizer-clip-main-grad"), seq, used)
    ends = rows.of("embedding-grads-all-reduce") & np.isin(rows.stage, (0, stages - 1))
    used = _number(group, ends, rows.dp_rank * wide + seq, used)
    for first, second in pairs:
        numbers = used + np.arange(len(first))
        group[first], group[second] = numbers, numbers
        used += len(first)
    return group


def _number(group: Int64Array, mask: Bools, key: Int64Array, used: int) -> int:
    """Number the operations of a mask by key; returns how many numbers are used so far."""
    distinct, index = np.unique(key[mask], return_inverse=True)
    group[mask] = used + index
    return used + len(distinct)
