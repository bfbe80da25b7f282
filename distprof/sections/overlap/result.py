"""Overlap of communication with computation, by rank and by axis."""

from __future__ import annotations

from distprof.schema import Record
from distprof.sections.base import Result

__all__ = ["AxisOverlap", "OverlapResult", "RankOverlap"]


class RankOverlap(Record, frozen=True, kw_only=True):
    """One rank over all analysed steps. ``overlap_ratio`` is None without communication."""

    rank: int
    computation_ns: int
    communication_ns: int
    overlapped_ns: int
    exposed_comm_ns: int
    overlap_ratio: float | None


class AxisOverlap(Record, frozen=True, kw_only=True):
    """Communication of one mesh axis or process group description, summed over all ranks.

    Axes can communicate at the same time, so their sum may exceed the rank's communication.
    """

    axis: str
    ranks: tuple[int, ...]
    communication_ns: int
    overlapped_ns: int
    exposed_comm_ns: int
    overlap_ratio: float | None


# Overlap of communication with computation: per rank, per process group or mesh axis -------------


class OverlapResult(Result, frozen=True, kw_only=True):
    """Overlap; source: formula sheet, "Measured from traces": |K ∩ C| / |C|."""

    needs_traces = True

    ranks: tuple[RankOverlap, ...]
    axes: tuple[AxisOverlap, ...]
