"""Dependency graphs of operations, and their simulation.

An operation starts as soon as all its dependencies have ended, and takes its given duration. A wait
for several others is an operation with several incoming edges, so waiting is a result and never an
input. Many sets of durations can be simulated at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.kernel import kernel
from distprof.schema import Int64Array


class CycleError(ValueError):
    """Operations depend on each other in a cycle; ``operations`` are some of them."""

    def __init__(self, operations: tuple[int, ...]) -> None:
        self.operations = operations
        shown = ", ".join(map(str, operations[:8]))
        super().__init__(f"operations wait for each other in a cycle, among them {shown}")


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Start and end times of operations, in the shape of the durations: ``(n,)`` or ``(n, k)``."""

    start: NDArray[Any]
    end: NDArray[Any]

    @property
    def makespan(self) -> Any:
        """Time from 0 to the last end, one per set of durations."""
        return self.end.max(axis=0) if len(self.end) else np.zeros(self.end.shape[1:])


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    """Operations ``0 … n - 1`` and their dependencies. Made by :meth:`of`."""

    num_operations: int  # n.
    # int64 per edge, the operation that the target waits for; edges sorted by level.
    source: Int64Array
    target: Int64Array  # int64 per edge, the operation that waits.
    edge: Int64Array  # int64 per edge, its index among the given edges.
    # Slices of the edges whose targets can be computed together, in order.
    levels: tuple[tuple[int, int], ...]

    @staticmethod
    def of(num_operations: int, source: NDArray[Any], target: NDArray[Any]) -> Graph:
        """Sort the operations topologically; linear in operations and edges.

        Args:
            num_operations: n.
            source: Integer per edge: this operation ends before …
            target: … this one starts.

        Raises:
            CycleError: If operations wait for each other.
            ValueError: If an edge names an operation that does not exist.
        """
        source, target = np.asarray(source, np.int64), np.asarray(target, np.int64)
        if len(source) != len(target):
            raise ValueError(f"{len(source)} edge sources and {len(target)} edge targets")
        for ends in (source, target):
            if len(ends) and (ends.min() < 0 or ends.max() >= num_operations):
                raise ValueError(
                    f"an edge names an operation outside the {num_operations} of the graph"
                )
        depth = _depths(num_operations, source, target)
        order = np.lexsort((target, depth[target]))
        bounds = np.flatnonzero(np.diff(depth[target[order]], prepend=-1, append=-1))
        return Graph(
            num_operations=num_operations,
            source=source[order],
            target=target[order],
            edge=order,
            levels=tuple(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)),
        )


def simulate(
    graph: Graph,
    duration: NDArray[Any],
    *,
    delay: NDArray[Any] | None = None,
    release: NDArray[Any] | None = None,
) -> Times:
    """Compute when every operation starts and ends.

    Args:
        graph: Operations and their dependencies.
        duration: Duration of each operation, shape ``(n,)``, or ``(n, k)`` for k simulations.
        delay: Minimum time on each edge, in the order of the given edges, shape ``(e,)`` or
            ``(e, k)``; None for 0.
        release: Earliest start of each operation, shape ``(n,)`` or ``(n, k)``; None for 0.

    Returns:
        Start and end, in the type of the durations: integers stay exact.
    """
    if len(duration) != graph.num_operations:
        raise ValueError(f"{len(duration)} durations for {graph.num_operations} operations")
    parts = [part for part in (duration, delay, release) if part is not None]
    shape = (graph.num_operations, *max((part.shape[1:] for part in parts), key=len))
    start = np.zeros(shape, np.result_type(*parts))
    if release is not None:
        start += _as_wide(release, shape)
    wide_duration = _as_wide(duration, shape)
    end = np.add(start, wide_duration, order="C")
    compiled = kernel()
    if compiled is not None and start.size and _is_for_kernel(start.dtype, parts):
        compiled.simulate(  # the same additions, with results in the last two arguments
            graph.num_operations,
            start.shape[1] if start.ndim > 1 else 1,
            start.dtype == np.float64,
            *map(np.ascontiguousarray, (graph.source, graph.target, graph.edge)),
            np.ascontiguousarray(duration, start.dtype),
            None if delay is None else np.ascontiguousarray(delay, start.dtype),
            start,
            end,
        )
        return Times(start=start, end=end)
    on_edge = None if delay is None else _as_wide(delay, shape)[graph.edge]
    for low, high in graph.levels:
        target = graph.target[low:high]
        arrival = end[graph.source[low:high]]
        if on_edge is not None:
            arrival = arrival + on_edge[low:high]
        first = np.flatnonzero(np.diff(target, prepend=-1))
        if len(first) < len(target):
            arrival, target = np.maximum.reduceat(arrival, first, axis=0), target[first]
        begins = np.maximum(start[target], arrival)
        start[target] = begins
        end[target] = begins + wide_duration[target]
    return Times(start=start, end=end)


def _is_for_kernel(dtype: np.dtype[Any], parts: Sequence[NDArray[Any]]) -> bool:
    """Whether the kernel supports these values: int64, or float64 without NaN and infinity."""
    if dtype == np.int64:
        return True
    return dtype == np.float64 and all(bool(np.isfinite(part).all()) for part in parts)


def critical_path(graph: Graph, times: Times, *, delay: NDArray[Any] | None = None) -> Int64Array:
    """Operations that determine the end, first to last: each starts when the previous one ends.

    int64; one path if several are equally long. ``times`` are of one simulation, shape ``(n,)``,
    with that ``delay``.
    """
    if graph.num_operations == 0:
        return np.empty(0, np.int64)
    by_target = np.argsort(graph.target, kind="stable")
    bounds = np.searchsorted(graph.target[by_target], np.arange(graph.num_operations + 1))
    arrival = times.end[graph.source]
    if delay is not None:
        arrival = arrival + delay[graph.edge]
    path = [int(times.end.argmax())]
    while True:
        edges = by_target[bounds[path[-1]] : bounds[path[-1] + 1]]
        edges = edges[arrival[edges] >= times.start[path[-1]]]
        if len(edges) == 0:
            return np.array(path[::-1], dtype=np.int64)
        path.append(int(graph.source[edges[0]]))


def _as_wide(values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """One-dimensional values as a column that broadcasts over many simulations."""
    return values[:, np.newaxis] if values.ndim < len(shape) else values


def _depths(num_operations: int, source: Int64Array, target: Int64Array) -> Int64Array:
    """Length of the longest chain that leads to each operation."""
    compiled = kernel()
    if compiled is None:
        depth, open_edges = _depths_by_level(num_operations, source, target)
    else:
        found = compiled.depths(num_operations, *map(np.ascontiguousarray, (source, target)))
        depth, open_edges = (np.frombuffer(values, np.int64) for values in found)
    if open_edges.any():
        raise CycleError(tuple(np.flatnonzero(open_edges > 0)[:100].tolist()))
    return depth


def _depths_by_level(
    num_operations: int, source: Int64Array, target: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Depths, and the unresolved dependencies of each operation: 0 everywhere without a cycle."""
    order = np.argsort(source, kind="stable")
    followers = target[order]
    first = np.searchsorted(source[order], np.arange(num_operations + 1))
    open_edges = np.bincount(target, minlength=num_operations)
    depth = np.zeros(num_operations, dtype=np.int64)
    ready = np.flatnonzero(open_edges == 0)
    level = 0
    while len(ready):
        reached = followers[_ranges(first[ready], first[ready + 1])]
        level += 1
        depth[reached] = level
        np.subtract.at(open_edges, reached, 1)
        ready = np.unique(reached[open_edges[reached] == 0])
    return depth, open_edges


def _ranges(low: Int64Array, high: Int64Array) -> Int64Array:
    """The concatenated ranges from each ``low`` up to, not including, its ``high``."""
    length = high - low
    skipped = np.cumsum(length) - length
    return np.repeat(low - skipped, length) + np.arange(length.sum())
