"""What the CPU did instead of launching: waits for the GPU, loads, collections, named ranges.

A GPU runs dry when its CPU launches nothing for a while. The recording names most of these pauses:
a call that waits for the GPU or manages its memory, a batch that is loaded, a garbage collection, a
range that the program annotated (``save_checkpoint``), or else code outside of PyTorch. Threads
that launch take turns, so their pauses form one line.
"""

from __future__ import annotations

import re
from enum import IntEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.intervals import Intervals, covered, subtract, union
from distprof.run.tables import Launches, RankTables, intervals_of
from distprof.schema import Int64Array, Table
from distprof.sections.idle.gaps import blocking_calls, is_loading
from distprof.sections.idle.result import COLLECTION, PYTHON


class PauseKind(IntEnum):
    """Why a CPU launched nothing."""

    SYNC = 0  # a call that waits for the GPU
    INPUT = 1  # waiting for a batch, or loading it
    COLLECTION = 2  # Python's garbage collector
    MEMORY = 3  # calls that allocate or free memory of the GPU
    RANGE = 4  # a range that the program annotated
    PYTHON = 5  # code outside of PyTorch


class Pauses(msgspec.Struct, frozen=True, kw_only=True):
    """Pauses of the launching threads, in order, disjoint."""

    start: Int64Array  # int64.
    end: Int64Array  # int64.
    kind: NDArray[np.int8]  # int8, a :class:`PauseKind`.
    name: NDArray[np.int32]  # int32, index into ``names``.
    names: tuple[str, ...]  # Calls and ranges; for the other kinds what was done.

    def __len__(self) -> int:
        return len(self.start)


MEMORY_CALLS = re.compile(
    r"^(cuda|hip)(Malloc|Free|HostAlloc|HostRegister|HostUnregister|FreeHost|HostFree|HostMalloc"
    r"|MallocHost|MallocManaged)$|^cuMem(Alloc|Free|Create|Release|Map|Unmap|SetAccess|Address)"
)
"""Calls that allocate or free memory; those that free wait for the GPU first."""

LEAST_SHARE, LEAST_NS = 0.03, 1_000_000
"""Share of a window, and time, from which a stretch without launches in a named range is a pause.
"""

LEAST_SHARE_UNNAMED, LEAST_NS_UNNAMED = 0.08, 2_000_000
"""The same without a name: a loop does many small things between its steps."""

_LOW = np.iinfo(np.int64).min

LEAST_OF_THREAD = 0.01
"""Share of the launches from which a thread is one of those that launch."""

COVERS = 0.6
"""Share of a pause that a range must cover to name it."""

MOSTLY_SILENT = 0.5
"""Share of a range, apart from pauses known otherwise, that must be such stretches: a range with
many launches in it, such as a whole step, explains none of them."""

_STRUCTURE = re.compile(
    r"^ProfilerStep#|^distprof:(phase|input|cut|pp)|^nn\.Module|^autograd::|^DistributedDataParallel"
    r"|^Optimizer\.(step|zero_grad)#|^(FSDP|FullyShardedDataParallel)|^## |^Torch-Compiled Region"
    r"|^forward$|^backward$|^train(ing)?(_step|_batch)?$|^step$|^Iteration\b|^\[pl\]"
    r"|CompiledFunction|^PyTorch Profiler"
)
"""Ranges that divide a step into its usual parts and explain no pause."""


def launching_threads(launches: Launches) -> NDArray[np.int32]:
    """Codes of the threads that launch."""
    known = launches.thread[launches.known]
    if len(known) == 0:
        return np.empty(0, np.int32)
    count = np.bincount(known)
    return np.flatnonzero(count >= max(LEAST_OF_THREAD * len(known), 1)).astype(np.int32)


def cpu_pauses(
    tables: RankTables, launches: Launches, collections: Intervals, windows: Intervals
) -> Pauses:
    """All pauses of the launching threads.

    ``collections`` are garbage collections of the training thread, a set. The windows determine how
    long a stretch without launches must be.
    """
    host = tables.host
    threads = launching_threads(launches)
    on_line = np.isin(host.coded("thread").codes, threads)
    parts = [
        _named(_memory_calls(host, on_line), PauseKind.MEMORY),
        _named(_sync_calls(tables, launches, threads), PauseKind.SYNC),
        _called(_loads(host, on_line), PauseKind.INPUT, "input"),
        _called(collections, PauseKind.COLLECTION, COLLECTION),
    ]
    known = _merged(parts)
    window_ns = float(np.median(windows.end - windows.start)) if windows.size else 0.0
    silent = _silent(launches, known, windows, window_ns)
    return _merged([known, _explained(silent, known, host, on_line, window_ns)])


def _named(calls: Table, kind: PauseKind) -> Pauses:
    start, end = intervals_of(calls)
    names = calls.coded("name")
    return Pauses(
        start=start,
        end=end,
        kind=np.full(len(start), kind, np.int8),
        name=names.codes.astype(np.int32),
        names=names.values,
    )


def _called(found: Intervals, kind: PauseKind, name: str) -> Pauses:
    return Pauses(
        start=found.start,
        end=found.end,
        kind=np.full(found.size, kind, np.int8),
        name=np.zeros(found.size, np.int32),
        names=(name,),
    )


def _merged(parts: list[Pauses]) -> Pauses:
    """The outermost of all pauses, in order. Of two that overlap, the second begins later.

    Calls one after another may overlap, because the profiler rounds their times.
    """
    start, end, kind = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("start", "end", "kind")
    )
    names: dict[str, int] = {}
    codes = [
        np.array([names.setdefault(name, len(names)) for name in part.names], np.int32)[part.name]
        if len(part)
        else np.empty(0, np.int32)
        for part in parts
    ]
    kept = np.lexsort((-end, start))
    before = np.concatenate(([_LOW], np.maximum.accumulate(end[kept])))[: len(kept)]
    is_outer = end[kept] > before
    kept, before = kept[is_outer], before[is_outer]
    return Pauses(
        start=np.maximum(start[kept], before),
        end=end[kept],
        kind=kind[kept],
        name=np.concatenate(codes)[kept],
        names=tuple(names),
    )


def _memory_calls(host: Table, on_line: NDArray[np.bool_]) -> Table:
    names = host.coded("name")
    matches = names.where([MEMORY_CALLS.search(name) is not None for name in names.values])
    return host.take(np.flatnonzero(matches & on_line))


def _sync_calls(tables: RankTables, launches: Launches, threads: NDArray[np.int32]) -> Table:
    calls = blocking_calls(tables, launches)
    names = calls.coded("name")
    frees = names.where([MEMORY_CALLS.search(name) is not None for name in names.values])
    return calls.take(np.flatnonzero(~frees & np.isin(calls.coded("thread").codes, threads)))


def _loads(host: Table, on_line: NDArray[np.bool_]) -> Intervals:
    return union(intervals_of(host.take(np.flatnonzero(is_loading(host) & on_line))))


def _silent(launches: Launches, known: Pauses, windows: Intervals, window_ns: float) -> Intervals:
    """Long stretches in which nothing was launched and no other pause is known."""
    start = launches.start[launches.known]
    if len(start) == 0 or not window_ns:
        return Intervals(start[:0], start[:0])
    order = np.argsort(start, kind="stable")
    edges = windows.start[:1], windows.end[-1:]
    start = np.concatenate((start[order], np.maximum(edges[1], start.max())))
    end = np.concatenate((np.minimum(edges[0], start[0]), launches.end[launches.known][order]))
    between = union(Intervals(np.maximum.accumulate(end), start))
    left = subtract(between, union(Intervals(known.start, known.end)))
    long_enough = left.end - left.start >= max(LEAST_NS, LEAST_SHARE * window_ns)
    return Intervals(left.start[long_enough], left.end[long_enough])


def _explained(
    silent: Intervals, known: Pauses, host: Table, on_line: NDArray[np.bool_], window_ns: float
) -> Pauses:
    """What the program did in these stretches: the shortest range that covers most of each."""
    categories = host.coded("category")
    ranges = host.take(np.flatnonzero(categories.equals("annotation") & on_line))
    names = ranges.coded("name")
    tells = names.where([_STRUCTURE.search(name) is None for name in names.values])
    ranges = ranges.take(np.flatnonzero(tells))
    spans = intervals_of(ranges)
    rest = spans.end - spans.start - covered(spans, union(Intervals(known.start, known.end)))
    ranges = ranges.take(np.flatnonzero(covered(spans, silent) >= MOSTLY_SILENT * rest))
    start, end = intervals_of(ranges)
    order = np.argsort(end - start, kind="stable")
    start, end, codes = start[order], end[order], ranges.coded("name").codes[order]
    name = np.full(silent.size, len(ranges.coded("name").values), np.int32)
    for i, (low, high) in enumerate(zip(silent.start.tolist(), silent.end.tolist(), strict=True)):
        shared = np.minimum(end, high) - np.maximum(start, low)
        fits = np.flatnonzero(shared >= COVERS * (high - low))
        if len(fits):
            name[i] = codes[fits[0]]
    values = (*ranges.coded("name").values, PYTHON)
    is_named = name < len(values) - 1
    least = max(LEAST_NS_UNNAMED, LEAST_SHARE_UNNAMED * window_ns)
    kept = is_named | (silent.end - silent.start >= least)
    return Pauses(
        start=silent.start[kept],
        end=silent.end[kept],
        kind=np.where(is_named, PauseKind.RANGE, PauseKind.PYTHON).astype(np.int8)[kept],
        name=name[kept],
        names=values,
    )
