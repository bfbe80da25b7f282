"""Which collectives of one rank carry the gradients of DistributedDataParallel, and when they run.

An all-reduce carries gradients if its elements are floating-point numbers, it has at least
:data:`SMALL_BYTES`, and it is enqueued after a ``DistributedDataParallel.forward`` and before the
update (``Optimizer.step#…``). torch marks both in the trace. Groups of tensor and pipeline
parallelism carry no gradients, and neither does a group that all-reduces within forward. Without
the marks no collective counts as gradients, because tensor parallelism in an unnamed group looks
the same.

A *reduction* is the gradients of one backward, whose buckets follow one forward. Backward is the
computation from the end of that forward (on a GPU: from the first kernel that autograd's thread
launches after it) until the last bucket is ready.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from distprof.intervals import EMPTY, Intervals, covered, covered_ns, subtract, union
from distprof.run.tables import NO_THREAD, RankTables, intervals_of, join_launches, runs_of
from distprof.schema import ABSENT, Int64Array, Table
from distprof.sections.context import ExposedRows, RankContext, RankGradients, Timeline
from distprof.sections.idle.measure import IdleCauses
from distprof.terms import ActivityKind, CollectiveKind, MeshAxis

DDP_FORWARD = "DistributedDataParallel.forward"
SEARCH = "torch.distributed.ddp.reducer::search_unused_parameters"
"""The search that DDP runs after each forward with ``find_unused_parameters=True``."""

UPDATE = "Optimizer.step#"
SMALL_BYTES = 4_096  # Smaller all-reduces carry a loss, a norm or a metric

_FLOATS = re.compile(r"^(c10::)?(b?float\d*|double|half|bfloat16)$", re.IGNORECASE)
_INTEGERS = re.compile(r"^(c10::)?int(32)?$", re.IGNORECASE)
_OTHER_AXES = (MeshAxis.TP, MeshAxis.PP)
"""Axes that carry no gradients. Ranks along any other axis may be replicas of weights."""


def rank_gradients(
    tables: RankTables,
    context: RankContext,
    timeline: Timeline,
    causes: IdleCauses | None,
    collective_step: NDArray[np.int32],
    exposed: ExposedRows,
) -> RankGradients | None:
    """The reductions of one rank inside its windows; None without marks of DDP or collectives.

    ``collective_step`` is the window of each row of COLLECTIVES.
    """
    forwards = _marked(tables.host, DDP_FORWARD)
    if not tables.has_host or forwards.size == 0 or len(tables.collectives) == 0:
        return None
    updates = _marked(tables.host, UPDATE).start
    enqueued, segment = _segments(tables.collectives, forwards, updates)
    window = collective_step
    chosen = _carry_gradients(tables.collectives, context, enqueued, forwards, segment)
    picked = np.flatnonzero(chosen & (window >= 0) & (segment >= 0))
    search, search_exposed = _search(tables, context, timeline, segment, exposed.ns)
    order = np.lexsort((enqueued[picked], context.axis[picked], segment[picked]))
    picked = picked[order]
    first, length = runs_of(segment[picked], context.axis[picked])
    last = first + length - 1
    start = tables.collectives["start_ns"]
    ready = enqueued if context.is_cpu else start
    number = segment[picked][first]
    updated = _update_of(forwards, updates)
    begin = _backward_begins(tables, context, forwards, causes, picked)[number]
    size = tables.collectives["bytes"]
    wait = np.maximum(exposed.wait_ns, 0)
    computed = timeline.computation
    known = begin != ABSENT
    since_begin = [
        np.where(known, covered(Intervals(begin, at), computed), ABSENT)
        for at in (_reduced(edge, ready[picked], first) for edge in (np.minimum, np.maximum))
    ]
    is_unmatched = _reduced(np.minimum, exposed.wait_ns[picked], first) < 0
    return RankGradients(
        axis=context.axis[picked][first],
        window=window[picked][first].astype(np.int64),
        update=updated[number],
        num_buckets=length,
        rows=picked,
        bytes=_reduced(np.add, size[picked], first),
        exposed_ns=_reduced(np.add, exposed.ns[picked], first),
        wait_ns=np.where(is_unmatched, ABSENT, _reduced(np.add, wait[picked], first)),
        transfer_ns=_transfer(tables.collectives, context, picked, first, last),
        last_bytes=size[picked][last],
        last_exposed_ns=(exposed.ns - wait)[picked][last],
        before_first_ns=since_begin[0],
        backward_ns=since_begin[1],
        num_forwards=np.bincount(updated).astype(np.int64)[updated[number]],
        dtypes=_dtypes(tables.collectives, context, picked),
        marks_updates=bool(len(updates)),
        row_bytes=size[picked],
        row_moving_ns=_moving(tables.collectives, context, picked),
        search_ns=search,
        search_exposed_ns=search_exposed,
    )


# Marks --------------------------------------------------------------------------------------------


def _marked(host: Table, prefix: str) -> Intervals:
    """Outermost host rows whose names begin with the prefix, by start."""
    names = host.coded("name")
    is_marked = [name.startswith(prefix) for name in names.values]
    return union(intervals_of(host.take(names.where(is_marked)))) if any(is_marked) else EMPTY


def _segments(
    collectives: Table, forwards: Intervals, updates: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Enqueue time of each row, and the forward that it follows; ABSENT after its update."""
    enqueued = collectives["enqueue_ns"]
    enqueued = np.where(enqueued == ABSENT, collectives["start_ns"], enqueued)
    number = np.searchsorted(forwards.start, enqueued, side="right") - 1
    at = np.maximum(number, 0)
    is_over = np.searchsorted(updates, enqueued, side="right") > _update_of(forwards, updates)[at]
    return enqueued, np.where((number < 0) | is_over, ABSENT, number).astype(np.int64)


def _update_of(forwards: Intervals, updates: Int64Array) -> Int64Array:
    """The update that each forward belongs to; without marks, each forward has its own update."""
    if not len(updates):
        return np.arange(forwards.size, dtype=np.int64)
    return np.searchsorted(updates, forwards.start, side="right").astype(np.int64)


def _carry_gradients(
    collectives: Table,
    context: RankContext,
    enqueued: Int64Array,
    forwards: Intervals,
    segment: Int64Array,
) -> NDArray[np.bool_]:
    """Mask of the COLLECTIVES rows that carry gradients."""
    dtype = collectives.coded("dtype")
    is_float = [not name or bool(_FLOATS.match(name)) for name in dtype.values]
    large = (collectives["kind"] == CollectiveKind.ALL_REDUCE) & dtype.where(is_float)
    large &= collectives["bytes"] >= SMALL_BYTES
    within = (segment >= 0) & (enqueued < forwards.end[np.maximum(segment, 0)])
    other = [code for code, name in enumerate(context.axis_names) if name in _OTHER_AXES]
    other += np.unique(context.axis[large & within]).tolist()
    result: NDArray[np.bool_] = large & ~np.isin(context.axis, other)
    return result


def _backward_begins(
    tables: RankTables,
    context: RankContext,
    forwards: Intervals,
    causes: IdleCauses | None,
    picked: NDArray[np.intp],
) -> Int64Array:
    """When backward begins to compute after each forward; ABSENT if no launch was recorded.

    Kernels of backward are launched by autograd's thread, which also enqueues the reductions.
    Kernels that the program launches between forward and backward are left out.
    """
    if context.is_cpu:
        return forwards.end
    result = np.full(forwards.size, ABSENT, dtype=np.int64)
    if causes is None:
        return result
    launches = causes.launches
    threads = join_launches(tables.collectives["correlation"][picked], tables.host).thread
    computes = (tables.activity["kind"] == ActivityKind.COMPUTATION) & launches.known
    rows = np.flatnonzero(computes & np.isin(launches.thread, np.setdiff1d(threads, NO_THREAD)))
    rows = rows[np.argsort(launches.start[rows], kind="stable")]
    launched = launches.start[rows]
    at = np.searchsorted(launched, forwards.end, side="left")
    until = np.searchsorted(launched, np.append(forwards.start[1:], np.iinfo(np.int64).max))
    some = at < until
    result[some] = tables.activity["start_ns"][rows[at[some]]]
    return result


# Sums over reductions -----------------------------------------------------------------------------


def _reduced(ufunc: np.ufunc, values: Int64Array, first: Int64Array) -> Int64Array:
    return ufunc.reduceat(values, first) if len(first) else np.empty(0, np.int64)


def _transfer(
    collectives: Table,
    context: RankContext,
    picked: NDArray[np.intp],
    first: Int64Array,
    last: Int64Array,
) -> Int64Array:
    """Time during which data of each reduction moves; ABSENT if a bucket was not matched."""
    start, end = (column[picked] for column in intervals_of(collectives))
    moving = np.clip(context.wait_end_ns[picked], start, end)
    known = _reduced(np.minimum, context.wait_end_ns[picked], first) != ABSENT
    result = np.full(len(first), ABSENT, dtype=np.int64)
    for index in np.flatnonzero(known).tolist():  # one per micro-batch, a handful of buckets each
        rows = slice(int(first[index]), int(last[index]) + 1)
        busy = union(Intervals(moving[rows], end[rows]))
        result[index] = int((busy.end - busy.start).sum())
    return result


def _moving(collectives: Table, context: RankContext, picked: NDArray[np.intp]) -> Int64Array:
    """Time during which data of each bucket moves; its whole time if it was not matched."""
    start, end = (column[picked] for column in intervals_of(collectives))
    since = context.wait_end_ns[picked]
    return np.where(since == ABSENT, end - start, end - np.clip(since, start, end))


def _dtypes(
    collectives: Table, context: RankContext, picked: NDArray[np.intp]
) -> dict[int, tuple[str, ...]]:
    """Element types on the wire by axis, spelled the same for all backends."""
    dtype, axis = collectives.coded("dtype"), context.axis[picked]
    return {
        int(number): tuple(
            sorted(
                {
                    _dtype_name(dtype.values[code])
                    for code in np.unique(dtype.codes[picked][axis == number])
                }
            )
        )
        for number in np.unique(axis)
    }


def _dtype_name(dtype: str) -> str:
    word = dtype.removeprefix("c10::").lower()
    return {"float": "float32", "half": "float16", "double": "float64"}.get(word, word)


def _search(
    tables: RankTables,
    context: RankContext,
    timeline: Timeline,
    segment: Int64Array,
    exposed: Int64Array,
) -> tuple[int, int]:
    """Time of the search for unused parameters, and the exposed part of it.

    On a CPU the search runs on the training thread, so all of it is exposed. The exposed part
    includes the all-reduce of the bitmap of used parameters that follows the search.
    """
    ranges = _marked(tables.host, SEARCH)
    windows = union(context.windows)
    searched = covered_ns(ranges, windows)
    if not searched:
        return 0, 0
    dtype = tables.collectives.coded("dtype")
    is_integer = [_INTEGERS.match(name) is not None for name in dtype.values]
    bitmap = (tables.collectives["kind"] == CollectiveKind.ALL_REDUCE) & (segment >= 0)
    bitmap &= dtype.where(is_integer)
    bitmap_exposed = int(exposed[bitmap].sum())
    if context.is_cpu:
        return searched, searched + bitmap_exposed
    alone = subtract(subtract(ranges, timeline.computation), timeline.communication)
    return searched, covered_ns(alone, windows) + bitmap_exposed
