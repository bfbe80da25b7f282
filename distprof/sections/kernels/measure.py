"""Which kernels take the most time, and on which rank they are slower than on its peers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from distprof.intervals import Intervals, index_of
from distprof.join.waits import index_type
from distprof.run.tables import distinct, runs_of
from distprof.schema import ABSENT, Int64Array, Table
from distprof.sections.context import KernelStats, KernelSteps, RankAnalyses, RankAnalysis
from distprof.sections.kernels import CategoryTime, KernelRow, KernelsResult, RankSpeed
from distprof.terms import ActivityKind

TABLE_LIMIT = 200

EQUAL_COUNT_RATIO = 0.02  # ranks that launch a kernel about equally often do the same work with it


class _Cells(msgspec.Struct, frozen=True, kw_only=True):
    """Kernel statistics of all ranks, one entry per rank and kernel; arrays of one length.

    ``kernel`` numbers the distinct (kind, name) pairs; entries are sorted by it, then by median.
    """

    keys: tuple[tuple[int, str], ...]
    ranks: tuple[int, ...]
    kernel: Int64Array
    rank: Int64Array
    count: Int64Array
    total_ns: Int64Array
    median_ns: Int64Array
    first: Int64Array  # first entry of each kernel
    num_ranks: Int64Array  # entries of each kernel


def analyze_kernels(analyses: RankAnalyses) -> KernelsResult:
    """The kernel table of all ranks, and how fast each rank runs the kernels that it shares.

    At most :data:`TABLE_LIMIT` kernels are listed; the last row sums up the rest. The median of an
    even number of ranks is the lower one, so of two ranks the faster is the reference.
    """
    cells = _cells_of(list(analyses.values()))
    total_ns = _add_per_kernel(cells, cells.total_ns)
    count = _add_per_kernel(cells, cells.count)
    median_ns = _median_per_kernel(cells, cells.median_ns)
    names = [key[1] for key in cells.keys]
    by_name = np.array(sorted(range(len(names)), key=names.__getitem__), np.int64)
    order = by_name[np.argsort(-total_ns[by_name], kind="stable")]
    shown = order if len(order) <= TABLE_LIMIT else order[: TABLE_LIMIT - 1]
    rows = [_kernel_row(cells, k, count, total_ns, median_ns) for k in shown.tolist()]
    rest = order[len(shown) :]
    if len(rest):
        rows.append(_folded_row(count[rest], total_ns[rest], median_ns[rest]))
    kind = np.array([key[0] for key in cells.keys], dtype=np.int64)[cells.kernel]
    return KernelsResult(
        categories=tuple(
            CategoryTime(
                kind=ActivityKind(number).label,
                count=int(cells.count[kind == number].sum()),
                total_ns=int(cells.total_ns[kind == number].sum()),
            )
            for number in distinct(kind).tolist()
        ),
        kernels=tuple(rows),
        ranks=tuple(
            replace(speed, stretched_ns_per_step=_stretched_ns(analyses[speed.rank].kernel_steps))
            for speed in _rank_speeds(cells)
        ),
    )


def _stretched_ns(steps: KernelSteps | None) -> int | None:
    """Time of kernels beyond their usual duration in the fastest step, mean per step."""
    if steps is None or steps.count.size == 0:
        return None
    middle = steps.quartile_ns[:, :, [0, 2]].mean(axis=2)  # a few that are stretched do not count
    usual = np.where(steps.count > 0, middle, np.inf).min(axis=1)
    usual = np.where(np.isfinite(usual), usual, 0)
    more = np.maximum(steps.total_ns - steps.count * usual[:, None], 0)
    return round(float(more.sum(axis=0).mean()))


def _cells_of(analyses: Sequence[RankAnalysis]) -> _Cells:
    numbers: dict[tuple[int, str], int] = {}
    rows = [
        (
            numbers.setdefault((kernel.kind, kernel.name), len(numbers)),
            position,
            kernel.count,
            kernel.total_ns,
            kernel.median_ns,
        )
        for position, analysis in enumerate(analyses)
        for kernel in analysis.kernels
    ]
    kernel, rank, count, total_ns, median_ns = np.array(rows, dtype=np.int64).reshape(-1, 5).T
    order = np.lexsort((rank, median_ns, kernel))
    num_ranks = np.bincount(kernel, minlength=len(numbers)).astype(np.int64)
    return _Cells(
        keys=tuple(numbers),
        ranks=tuple(analysis.rank for analysis in analyses),
        kernel=kernel[order],
        rank=rank[order],
        count=count[order],
        total_ns=total_ns[order],
        median_ns=median_ns[order],
        first=np.cumsum(num_ranks) - num_ranks,
        num_ranks=num_ranks,
    )


def _add_per_kernel(cells: _Cells, values: Int64Array) -> Int64Array:
    return np.add.reduceat(values, cells.first) if len(values) else np.empty(0, np.int64)


def _median_per_kernel(cells: _Cells, values: Int64Array) -> Int64Array:
    """Lower median over the ranks that run each kernel."""
    order = np.lexsort((values, cells.kernel))
    middle: Int64Array = values[order][cells.first + (cells.num_ranks - 1) // 2]
    return middle


def _kernel_row(
    cells: _Cells, k: int, count: Int64Array, total_ns: Int64Array, median_ns: Int64Array
) -> KernelRow:
    kind, name = cells.keys[k]
    slowest = int(cells.first[k] + cells.num_ranks[k] - 1)  # entries are sorted by median
    comparable = cells.num_ranks[k] > 1 and median_ns[k] > 0
    return KernelRow(
        name=name,
        kind=ActivityKind(kind).label,
        count=int(count[k]),
        total_ns=int(total_ns[k]),
        median_ns=int(median_ns[k]),
        slowest_rank=cells.ranks[int(cells.rank[slowest])] if comparable else None,
        spread=float(cells.median_ns[slowest] / median_ns[k]) if comparable else None,
    )


def _folded_row(count: Int64Array, total_ns: Int64Array, median_ns: Int64Array) -> KernelRow:
    order = np.argsort(median_ns, kind="stable")
    half = np.searchsorted(np.cumsum(count[order]), (count.sum() + 1) // 2)
    return KernelRow(
        name=f"({len(count)} other kernels)",
        kind="other",
        count=int(count.sum()),
        total_ns=int(total_ns.sum()),
        median_ns=int(median_ns[order][half]),
        slowest_rank=None,
        spread=None,
    )


def _rank_speeds(cells: _Cells) -> tuple[RankSpeed, ...]:
    """How the shared computation kernels of each rank compare with the typical rank."""
    kind = np.array([key[0] for key in cells.keys], dtype=np.int64)
    shared = (kind == ActivityKind.COMPUTATION) & (cells.num_ranks > 1)
    typical_ns = _median_per_kernel(cells, cells.median_ns)
    typical_count = _median_per_kernel(cells, cells.count)
    weight = _median_per_kernel(cells, cells.total_ns)
    mine = shared[cells.kernel]
    expected = typical_count[cells.kernel]
    equal = mine & (np.abs(cells.count - expected) <= EQUAL_COUNT_RATIO * expected)
    equal &= typical_ns[cells.kernel] > 0
    ratio = cells.median_ns / np.maximum(typical_ns, 1)[cells.kernel]
    weights = np.where(equal, weight[cells.kernel], 0).astype(np.float64)
    time = _per_rank(cells, ratio * weights)
    weight_sum = _per_rank(cells, weights)
    work = _per_rank(cells, np.where(mine, cells.count * typical_ns[cells.kernel], 0))
    typical_work = float(np.sort(work)[(len(work) - 1) // 2]) if len(work) else 0.0
    num_shared = np.bincount(cells.rank[equal], minlength=len(cells.ranks))
    return tuple(
        RankSpeed(
            rank=rank,
            relative_time=float(time[i] / weight_sum[i]) if weight_sum[i] > 0 else None,
            relative_work=float(work[i] / typical_work) if typical_work > 0 else None,
            num_shared_kernels=int(num_shared[i]),
        )
        for i, rank in enumerate(cells.ranks)
    )


def _per_rank(cells: _Cells, values: NDArray[Any]) -> NDArray[np.float64]:
    sums = np.bincount(cells.rank, weights=values, minlength=len(cells.ranks))
    return sums.astype(np.float64)


# Statistics of one rank's kernels by name --------------------------------------------------------

_NUM_KINDS = len(ActivityKind)


def rank_inside(activity: Table, windows: Intervals) -> NDArray[np.bool_]:
    """Mask of the activities that start inside a window."""
    return index_of(activity["start_ns"], windows) >= 0


def rank_kernels(activity: Table, inside: NDArray[np.bool_]) -> tuple[KernelStats, ...]:
    """Count, total and median duration of each kernel, copy or operator name, longest first."""
    rows = np.flatnonzero(inside & (activity["kind"] != ActivityKind.ANNOTATION))
    names = activity.coded("name")
    key = names.codes[rows].astype(np.int64) * _NUM_KINDS + activity["kind"][rows]
    duration = (activity["end_ns"] - activity["start_ns"])[rows]
    key, duration = _sort_pairs(key, duration)
    first, count = runs_of(key)
    total = np.add.reduceat(duration, first) if len(first) else duration
    median = (duration[first + (count - 1) // 2] + duration[first + count // 2]) // 2
    order = np.lexsort((key[first], -total))
    columns = (column[order].tolist() for column in (key[first], count, total, median))
    return tuple(
        KernelStats(
            name=names.values[pair // _NUM_KINDS],
            kind=pair % _NUM_KINDS,
            count=times,
            total_ns=total_ns,
            median_ns=median_ns,
        )
        for pair, times, total_ns, median_ns in zip(*columns, strict=True)
    )


def _sort_pairs(key: Int64Array, value: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Both arrays in order of key, then value; a single sort of packed numbers if they fit."""
    if len(key) == 0:
        return key, value
    base = int(value.max()) + 1
    if (int(key.max()) + 1) * base >= 2**63:
        order = np.lexsort((value, key))
        return key[order], value[order]
    packed = np.sort(key * base + value)
    return packed // base, packed % base


# Kernels of one rank step by step ----------------------------------------------------------------

MOST_NAMES = 64
"""Number of kernels that are compared step by step. The longest take nearly all of the time."""


def rank_kernel_steps(activity: Table, windows: Intervals) -> KernelSteps:
    """Number, time and quartiles of the longest computation kernels that start in each window."""
    names = activity.coded("name")
    start, num_steps = activity["start_ns"], windows.size
    at = index_of(start, windows)
    rows = np.flatnonzero((activity["kind"] == ActivityKind.COMPUTATION) & (at >= 0))
    duration = (activity["end_ns"] - start)[rows]
    total = np.bincount(names.codes[rows], weights=duration, minlength=len(names.values))
    kept = np.argsort(-total, kind="stable")[:MOST_NAMES]
    kept = kept[total[kept] > 0]
    place = np.full(len(names.values), -1, dtype=np.int64)
    place[kept] = np.arange(len(kept))
    among = place[names.codes[rows]] >= 0
    cell = place[names.codes[rows[among]]] * max(num_steps, 1) + at[rows[among]]
    blocks = activity["blocks"][rows[among]]
    kept_names = tuple(names.values[code] for code in kept.tolist())
    duration = duration[among]
    size = len(kept_names) * num_steps
    # thread blocks of each cell; ABSENT unless they are known for all of its kernels
    all_blocks = np.bincount(cell, weights=blocks, minlength=size).astype(np.int64)
    all_blocks[cell[blocks == ABSENT]] = ABSENT
    cell, duration = _sort_pairs(cell, duration)
    count = np.bincount(cell, minlength=size).astype(np.int64)
    total = np.bincount(cell, weights=duration, minlength=size).astype(np.int64)
    first = np.cumsum(count) - count
    quartiles = np.zeros((size, 3), dtype=np.int64)
    held = np.flatnonzero(count)
    place = np.multiply.outer(count[held] - 1, (0.25, 0.5, 0.75))
    low, high = (first[held, None] + edge(place).astype(np.int64) for edge in (np.floor, np.ceil))
    quartiles[held] = (duration[low] + duration[high]) // 2
    shape = (len(kept_names), num_steps)
    return KernelSteps(
        names=kept_names,
        count=_narrow(count).reshape(shape),
        total_ns=_narrow(total).reshape(shape),
        quartile_ns=_narrow(quartiles).reshape(*shape, 3),
        blocks=_narrow(all_blocks).reshape(shape),
    )


def _narrow(values: Int64Array) -> NDArray[np.signedinteger[Any]]:
    """The values in a smaller type if they fit, because all ranks' cells are kept at once."""
    return values.astype(index_type(int(values.max(initial=0))), copy=False)
