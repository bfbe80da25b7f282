"""Collectives of one rank by axis, in the order in which they were asked for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distprof.run.run import Rank
from distprof.schema import ABSENT, Int64Array, Table
from distprof.sections.context import RankAnalysis
from distprof.terms import CollectiveKind

__all__ = ["AxisRows", "Flags", "traffic_of"]

Flags = NDArray[np.bool_]

_BESIDE_RATIO = 0.05

_ELEMENT_BYTES = {
    "float": 4,
    "float32": 4,
    "half": 2,
    "float16": 2,
    "bfloat16": 2,
    "double": 8,
    "float64": 8,
}
"""What parameters and gradients are made of. Bytes may be anything, packed together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisRows:
    """Collectives of one rank along one axis inside its windows, in the order of asking.

    ``elements`` are ABSENT where size or type is not known, ``wait_ns`` where members were not
    matched; ``among_kernels`` is empty on a CPU.
    """

    axis: str
    group_size: int | None
    num_steps: int
    kind: NDArray[np.int8]
    step: Int64Array
    bytes: Int64Array
    elements: Int64Array
    duration_ns: Int64Array
    hidden_ns: Int64Array
    ahead: Flags
    exposed_ns: Int64Array
    wait_ns: Int64Array
    among_kernels: Flags

    def of(self, *kinds: CollectiveKind) -> Flags:
        """Mask of the rows of these kinds."""
        return np.isin(self.kind, kinds)


def traffic_of(analysis: RankAnalysis, rank: Rank) -> list[AxisRows]:
    """What one rank moves, by axis; only axes with rows inside the windows."""
    table = rank.collectives
    if not len(table) or len(analysis.row_hidden_ns) != len(table):
        return []
    asked = np.where(table["enqueue_ns"] == ABSENT, table["start_ns"], table["enqueue_ns"])
    inside = np.flatnonzero((analysis.collective_step >= 0) & table["is_timed"])
    inside = inside[np.argsort(asked[inside], kind="stable")]
    axis = analysis.row_axis[inside]
    return [
        _rows(analysis, rank, analysis.row_axis_names[number], inside[axis == number])
        for number in range(len(analysis.row_axis_names))
        if (axis == number).any()
    ]


def _rows(analysis: RankAnalysis, rank: Rank, axis: str, rows: NDArray[np.intp]) -> AxisRows:
    table = rank.collectives
    duration = (table["end_ns"] - table["start_ns"])[rows]
    hidden = analysis.row_hidden_ns[rows]
    among = analysis.row_among_kernels
    sizes = set(table["group_size"][rows].tolist())
    size = sizes.pop() if len(sizes) == 1 else ABSENT
    return AxisRows(
        axis=axis,
        group_size=size if size > 0 else None,
        num_steps=len(analysis.steps),
        kind=table["kind"][rows],
        step=analysis.collective_step[rows],
        bytes=table["bytes"][rows],
        elements=_elements(table, rows),
        duration_ns=duration,
        hidden_ns=hidden,
        ahead=analysis.row_begins_beside[rows] | (hidden >= _BESIDE_RATIO * duration),
        exposed_ns=analysis.exposed_ns[rows],
        wait_ns=analysis.exposed_wait_ns[rows],
        among_kernels=among[rows] if len(among) else among,
    )


def _elements(table: Table, rows: NDArray[np.intp]) -> Int64Array:
    dtype = table.coded("dtype")
    width = [_ELEMENT_BYTES.get(_plain(name), 0) for name in dtype.values] or [0]
    of_row = np.array(width, dtype=np.int64)[dtype.codes[rows]]
    size: Int64Array = table["bytes"][rows]
    return np.where((of_row > 0) & (size >= 0), size // np.maximum(of_row, 1), ABSENT)


def _plain(dtype: str) -> str:
    return dtype.lower().removeprefix("c10::").removeprefix("torch.")
