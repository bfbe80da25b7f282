"""Robust estimates: a middle, a line, and values on a graph from differences along its edges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distprof.run.codes import distinct
from distprof.schema import Int64Array

__all__ = ["Line", "components_of", "fit_line", "location", "pooled_scale", "solve_graph"]

Floats = NDArray[np.float64]

_HUBER = 1.345  # 95 % efficiency on normal noise
_MAD_TO_SIGMA = 1.4826
_MIN_SCALE_NS = 1.0  # times are whole nanoseconds
_ITERATIONS = 8
_SETTLED = 1e-3  # of the scale: a smaller change is not worth another iteration
_MIN_FOR_SLOPE = 8
_MIN_ERROR = 1e-12
_GRAPH_ITERATIONS = 50
_GRAPH_SIGMAS = 3.0  # an edge that far from the others' opinion loses weight
_MIN_WEIGHT = 1e-12  # keeps the equations solvable where a node hangs on a poor edge
_CONVERGED = 0.01  # of the smallest error


@dataclass(frozen=True, slots=True)
class Line:
    """A fitted slope; its standard error is ``scale / leverage``.

    Args:
        slope: Of ``y`` over ``x``.
        scale: Robust standard deviation of ``y`` around the line.
        leverage: Root of the weighted sum of squares of ``x``; 0 where there is nothing to fit.
    """

    slope: float
    scale: float
    leverage: float


def location(values: Floats) -> tuple[float, float]:
    """Huber's estimate of the middle of ``values``, and their robust standard deviation.

    Source: P. J. Huber, "Robust Estimation of a Location Parameter", 1964.
    """
    center = float(np.median(values))
    for _ in range(_ITERATIONS):
        before = center
        weight, scale = _weights(values - center)
        center = _mean(values, weight)
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
    # the first residuals are taken from a constant: weights must not follow a far outlier
    residual = v - np.median(v)
    for _ in range(_ITERATIONS):
        before = slope
        weight, scale = _weights(residual)
        centred = u - _mean(u, weight)
        slope = float((weight * centred * v).sum() / (weight * centred**2).sum())
        residual = v - slope * centred
        residual -= np.median(residual)
        if abs(slope - before) * length <= _SETTLED * scale:
            break
    _, scale = _weights(residual)
    return Line(slope, scale, float(np.sqrt((weight * (u - _mean(u, weight)) ** 2).sum())))


def pooled_scale(scales: Floats, counts: Int64Array) -> float:
    """The standard deviation that at least half of all values show, given those of their samples.

    A handful of values can agree by chance: their own scale would claim a certainty they have not.
    """
    order = np.argsort(scales)
    cumulated = np.cumsum(counts[order])
    middle = int(np.searchsorted(cumulated, cumulated[-1] / 2))
    return float(scales[order][middle])


def _mean(values: Floats, weight: Floats) -> float:
    return float((weight * values).sum() / weight.sum())


def _weights(residual: Floats) -> tuple[Floats, float]:
    """Huber weights and the scale they rest on."""
    scale = max(_MAD_TO_SIGMA * float(np.median(np.abs(residual))), _MIN_SCALE_NS)
    weight = np.minimum(1.0, _HUBER * scale / np.maximum(np.abs(residual), _MIN_SCALE_NS))
    return weight, scale


def solve_graph(
    count: int, edges: Int64Array, difference: Floats, error: Floats
) -> tuple[Floats, Floats]:
    """Values of nodes from differences along edges: weighted robust least squares.

    The lowest node of each connected component has the value 0.

    Args:
        count: Number of nodes.
        edges: Shape ``(n, 2)``, lower node first.
        difference: Value of the second node minus that of the first.
        error: Standard error of each difference.

    Returns:
        Values and their standard errors, one per node; a node without edge has 0 and 0.
    """
    error = np.maximum(error, _MIN_ERROR)
    value, value_error = np.zeros(count), np.zeros(count)
    label = components_of(count, edges)
    for component in distinct(label[edges[:, 0]]) if len(edges) else ():
        nodes = np.flatnonzero(label == component)
        inside = np.isin(edges[:, 0], nodes)
        position = np.searchsorted(nodes, edges[inside])
        solved = _solve_component(len(nodes), position, difference[inside], error[inside])
        value[nodes], value_error[nodes] = solved
    return value, value_error


def _solve_component(
    count: int, edges: Int64Array, difference: Floats, error: Floats
) -> tuple[Floats, Floats]:
    """Node 0 fixed at 0; edges that disagree with the rest are weighted down, as by Huber."""
    scale = float(error.min())  # keeps the weights near one
    weight = (scale / error) ** 2
    robust, value = np.ones(len(edges)), np.zeros(count)
    for _ in range(_GRAPH_ITERATIONS):
        before = value
        normal, right = _normal_equations(count, edges, weight * robust, difference)
        value = np.concatenate(([0.0], np.linalg.solve(normal[1:, 1:], right[1:])))
        residual = np.abs(difference - value[edges[:, 1]] + value[edges[:, 0]])
        limit = _GRAPH_SIGMAS * np.maximum(error, np.median(residual))
        robust = np.minimum(1.0, limit / np.maximum(residual, _MIN_ERROR))
        # a tree leaves no residual
        if len(edges) < count or np.abs(value - before).max() < _CONVERGED * scale:
            break
    normal, _ = _normal_equations(count, edges, weight * robust, difference)
    variance = np.diag(np.linalg.inv(normal[1:, 1:])) * scale**2
    return value, np.sqrt(np.concatenate(([0.0], np.maximum(variance, 0.0))))


def _normal_equations(
    count: int, edges: Int64Array, weight: Floats, difference: Floats
) -> tuple[Floats, Floats]:
    weight = np.maximum(weight, _MIN_WEIGHT)
    normal, right = np.zeros((count, count)), np.zeros(count)
    first, second = edges[:, 0], edges[:, 1]
    np.add.at(normal, (first, first), weight)
    np.add.at(normal, (second, second), weight)
    np.add.at(normal, (first, second), -weight)
    np.add.at(normal, (second, first), -weight)
    np.add.at(right, second, weight * difference)
    np.add.at(right, first, -weight * difference)
    return normal, right


def components_of(count: int, edges: Int64Array) -> NDArray[np.int64]:
    """Connected components of a graph: for each node the lowest node it is connected with.

    Args:
        count: Number of nodes.
        edges: Shape ``(n, 2)``.
    """
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
