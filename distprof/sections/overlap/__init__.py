"""Overlap of communication with computation, by rank and by axis."""

from __future__ import annotations

from distprof.artefacts.record import Record
from distprof.sections.base import Result


class RankOverlap(Record, frozen=True, kw_only=True):
    """One rank over all analysed steps. ``overlap_ratio`` is None without communication."""

    rank: int  # Global rank.
    computation_ns: int  # Time in which at least one computation kernel or operator runs.
    communication_ns: int  # Time in which at least one communication kernel or operation runs.
    overlapped_ns: int  # Part of it during which computation also runs.
    # The rest of the communication. Time blocked in gloo messages is left out, because it is
    # unknown when their data moved. ``breakdown`` counts it.
    exposed_comm_ns: int
    # Overlapped over communication, 0 to 1; null without communication.
    overlap_ratio: float | None


class AxisOverlap(Record, frozen=True, kw_only=True):
    """Communication of one mesh axis or process group description, summed over all ranks.

    Axes can communicate at the same time, so their sum may exceed the rank's communication.
    """

    axis: str  # Mesh axis, or the group's description.
    ranks: tuple[int, ...]  # Ranks that communicate along it.
    communication_ns: int  # Communication along it, summed over ranks.
    overlapped_ns: int  # Part of it during which computation also runs.
    exposed_comm_ns: int  # The rest, which does not overlap with computation.
    # Overlapped over communication, 0 to 1; null without communication.
    overlap_ratio: float | None


# Overlap of communication with computation: per rank, per process group or mesh axis -------------


class OverlapResult(Result, frozen=True, kw_only=True):
    """Overlap; source: formula sheet, "Measured from traces": |K ∩ C| / |C|."""

    needs_traces = True

    ranks: tuple[RankOverlap, ...]  # Each rank over all analysed steps.
    axes: tuple[AxisOverlap, ...]  # All ranks' communication by mesh axis or group description.
