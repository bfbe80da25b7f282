"""What the CPU did instead of launching: waits for the GPU, loads, collections, named ranges.

A GPU runs dry when its CPU launches nothing for a while. The recording names most of these pauses:
a call that waits for the GPU or manages its memory, a batch that is loaded, a garbage collection, a
range that the program annotated (``save_checkpoint``), or else code outside of PyTorch. Threads
that launch take turns, so their pauses form one line.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from distprof.intervals import Intervals, covered, intersect, subtract, total, union
from distprof.run.tables import Launches, RankTables, distinct, intervals_of
from distprof.schema import Coded, Int64Array, Table
from distprof.sections.context import PauseStats
from distprof.sections.idle import COLLECTION, COMPILES, PYTHON
from distprof.sections.idle.gaps import blocking_calls, is_loading, named
from distprof.terms import Labelled


class PauseKind(Labelled):
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
    managing = host.take(np.flatnonzero(named(host, MEMORY_CALLS) & on_line))
    waiting = blocking_calls(tables, launches)
    frees = named(waiting, MEMORY_CALLS)
    on_threads = np.isin(waiting.coded("thread").codes, threads)
    waiting = waiting.take(np.flatnonzero(~frees & on_threads))
    loads = union(intervals_of(host.take(np.flatnonzero(is_loading(host) & on_line))))
    known = _merged(
        [
            *(
                _pauses(intervals_of(calls), kind, names.codes, names.values)
                for calls, kind in ((managing, PauseKind.MEMORY), (waiting, PauseKind.SYNC))
                for names in (calls.coded("name"),)
            ),
            _pauses(loads, PauseKind.INPUT, np.zeros(loads.size), ("input",)),
            _pauses(collections, PauseKind.COLLECTION, np.zeros(collections.size), (COLLECTION,)),
        ]
    )
    window_ns = float(np.median(windows.end - windows.start)) if windows.size else 0.0
    silent = _silent(launches, known, windows, window_ns)
    return _merged([known, _explained(silent, known, host, on_line, window_ns)])


def _pauses(
    found: Intervals, kind: PauseKind, codes: NDArray[Any], names: tuple[str, ...]
) -> Pauses:
    kinds = np.full(found.size, kind, np.int8)
    name = codes.astype(np.int32)
    return Pauses(start=found.start, end=found.end, kind=kinds, name=name, names=names)


def _merged(parts: list[Pauses]) -> Pauses:
    """The outermost of all pauses, in order. Of two that overlap, the second begins later."""
    # Calls one after another may overlap, because the profiler rounds their times.
    start, end, kind = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("start", "end", "kind")
    )
    names = Coded.concat([Coded(part.name, part.names) for part in parts])
    kept = np.lexsort((-end, start))
    before = np.concatenate(([_LOW], np.maximum.accumulate(end[kept])))[: len(kept)]
    is_outer = end[kept] > before
    kept, before = kept[is_outer], before[is_outer]
    return Pauses(
        start=np.maximum(start[kept], before),
        end=end[kept],
        kind=kind[kept],
        name=names.codes[kept],
        names=names.values,
    )


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
    is_range = host.coded("category").equals("annotation") & on_line
    ranges = host.take(np.flatnonzero(is_range))
    ranges = ranges.take(np.flatnonzero(~named(ranges, _STRUCTURE)))
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


WORTH_RATIO = 0.01
"""Share of the windows that calls must leave the GPU idle, so that their callers are searched."""

MOST_CALLS = 2_000
"""Calls of one name that are looked up."""

LEAST_OPERATOR_NS = 500_000
"""A shorter operator explains no pause."""

MOSTLY = 0.6
"""Share of the pauses that an operator must cover, and of its own time that must be pauses."""

_COMPILES = re.compile(r"^(entire_(frame|backward)_compile|_?compile|compile_attempt|dynamo\b)")

_INNER = ("aten::_local_scalar_dense", "aten::copy_", "aten::_to_copy", "aten::to", "aten::clone")
"""Operators that others are made of: the one around them says more."""


def callers_of(
    stats: tuple[PauseStats, ...],
    pauses: Pauses,
    inside: Intervals,
    load_host: Callable[[], Table] | None,
) -> tuple[PauseStats, ...]:
    """The statistics with callers, where the calls cost enough and host rows can be read again.

    These are the operators and ranges that made the call, or that ran in the meantime.
    """
    least = WORTH_RATIO * total(inside)
    worth = [one for one in stats if one.kind in _SEARCHES and one.idle_ns >= least > 0]
    if not worth or load_host is None:
        return stats
    host, found = load_host(), {}
    for one in worth:
        is_it = pauses.name == pauses.names.index(one.name)
        rows = np.flatnonzero(is_it & (pauses.kind == PauseKind[one.kind.upper()]))
        start = pauses.start[rows]
        rows = rows[covered(Intervals(start, start + 1), inside) > 0][:MOST_CALLS]
        found[one.name] = _SEARCHES[one.kind](pauses.start[rows], pauses.end[rows], host)
    return tuple(replace(one, caller=found.get(one.name, "")) for one in stats)


def _caller(start: Int64Array, end: Int64Array, host: Table) -> str:
    """The operator, or the named range around it, of most of these calls."""
    operators = np.flatnonzero(host.coded("category").isin(("cpu_op", "annotation")))
    names = host.coded("name")
    begin, finish = (times[operators] for times in intervals_of(host))
    order = np.argsort(begin, kind="stable")
    begin, finish, operators = begin[order], finish[order], operators[order]
    counts: Counter[str] = Counter()
    for low, high in zip(start.tolist(), end.tolist(), strict=True):
        last = int(np.searchsorted(begin, low, side="right"))
        near = slice(max(last - 64, 0), last)
        around = np.flatnonzero(finish[near] >= high)[::-1] + near.start
        texts = [names.values[names.codes[operators[at]]] for at in around.tolist()]
        called = [text for text in texts if text.startswith("aten::")]
        outer = [text for text in called if text not in _INNER]
        counts[next(iter(outer or called or texts), "")] += 1  # the one that says most
    text, _ = counts.most_common(1)[0] if counts else ("", 0)
    return text


def _operator(start: Int64Array, end: Int64Array, host: Table) -> str:
    """The operator that runs for most of these pauses: the innermost one of those that do."""
    silent = union(Intervals(start, end))
    rows = np.flatnonzero(host.coded("category").equals("cpu_op"))
    begin, finish = (times[rows] for times in intervals_of(host))
    long = np.flatnonzero(finish - begin >= LEAST_OPERATOR_NS)
    rows, spans = rows[long], Intervals(begin[long], finish[long])
    names = host.coded("name")
    codes, shared = names.codes[rows], covered(spans, silent)
    times: dict[str, int] = {}
    for code in distinct(codes).tolist():
        text = names.values[code]
        is_own = (codes == code) & (shared >= MOSTLY * (spans.end - spans.start))
        chosen = union(Intervals(spans.start[is_own], spans.end[is_own]))
        what = COMPILES if _COMPILES.search(text) else text
        times[what] = max(times.get(what, 0), total(intersect(chosen, silent)))
    mostly = [text for text, ns in times.items() if ns >= MOSTLY * total(silent)]
    if COMPILES in mostly:  # its phases are operators, too
        return COMPILES
    return min(mostly, key=times.__getitem__, default="")


_SEARCHES = {"sync": _caller, "memory": _caller, "python": _operator}
"""How to name what made the pauses of a kind."""
