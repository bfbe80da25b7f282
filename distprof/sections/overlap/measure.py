"""Overlap of communication with computation: per rank, per process group or mesh axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from distprof.artefacts.record import grouped
from distprof.intervals import Intervals, covered_ns, intersect, union
from distprof.run.tables import distinct, intervals_of
from distprof.schema import Table
from distprof.sections.context import RankAnalyses, Timeline
from distprof.sections.overlap import AxisOverlap, OverlapResult, RankOverlap


def rank_overlap(rank: int, windows: Intervals, timeline: Timeline) -> RankOverlap:
    """Overlap of one rank inside its windows.

    Source:
        Formula sheet, "Measured from traces": overlap = |K ∩ C| / |C|.
    """
    communication = covered_ns(windows, timeline.communication)
    exposed = covered_ns(windows, timeline.exposed_comm)
    return RankOverlap(
        rank=rank,
        computation_ns=covered_ns(windows, timeline.computation),
        communication_ns=communication,
        overlapped_ns=communication - exposed,
        exposed_comm_ns=exposed,
        overlap_ratio=_ratio(communication - exposed, communication),
    )


def rank_axes(
    rank: int,
    windows: Intervals,
    timeline: Timeline,
    collectives: Table,
    row_axis: NDArray[np.int32],
    row_axis_names: Sequence[str],
) -> tuple[AxisOverlap, ...]:
    """Overlap of each axis's communication with all computation of the rank."""
    return tuple(
        _axis_overlap(rank, row_axis_names[index], windows, timeline, rows)
        for index, rows in _rows_by_axis(collectives, row_axis)
    )


def analyze_overlap(analyses: RankAnalyses) -> OverlapResult:
    """All ranks, and each axis summed over the ranks that communicate along it."""
    by_axis = grouped(
        [(axis.axis, axis) for analysis in analyses.values() for axis in analysis.axes]
    )
    return OverlapResult(
        ranks=tuple(analysis.overlap for analysis in analyses.values()),
        axes=tuple(_add_up(by_axis[name]) for name in sorted(by_axis)),
    )


def _rows_by_axis(collectives: Table, axis: NDArray[np.int32]) -> Iterator[tuple[int, Intervals]]:
    """Rows with known times, by axis."""
    rows, timed = intervals_of(collectives), collectives["is_timed"]
    for index in distinct(axis[timed]).tolist():
        of_axis = (axis == index) & timed
        yield index, Intervals(rows.start[of_axis], rows.end[of_axis])


def _axis_overlap(
    rank: int, name: str, windows: Intervals, timeline: Timeline, rows: Intervals
) -> AxisOverlap:
    busy = union(rows)
    overlapped = covered_ns(windows, intersect(busy, timeline.computation))
    return _of_axis(name, (rank,), covered_ns(windows, busy), overlapped)


def _add_up(parts: Sequence[AxisOverlap]) -> AxisOverlap:
    return _of_axis(
        parts[0].axis,
        tuple(sorted(rank for part in parts for rank in part.ranks)),
        sum(part.communication_ns for part in parts),
        sum(part.overlapped_ns for part in parts),
    )


def _of_axis(axis: str, ranks: tuple[int, ...], communication: int, overlapped: int) -> AxisOverlap:
    return AxisOverlap(
        axis=axis,
        ranks=ranks,
        communication_ns=communication,
        overlapped_ns=overlapped,
        exposed_comm_ns=communication - overlapped,
        overlap_ratio=_ratio(overlapped, communication),
    )


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
