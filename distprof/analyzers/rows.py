"""Rows of results that are measured on one rank alone."""

from __future__ import annotations

from distprof.analyzers.result import Record

__all__ = [
    "AxisOverlap",
    "RankBreakdown",
    "RankIdle",
    "RankOverlap",
    "RankWaterfall",
    "StepBreakdown",
]


class StepBreakdown(Record, frozen=True, kw_only=True):
    """One rank and step; the last four add up to ``span_ns`` exactly."""

    rank: int
    step: int
    span_ns: int
    computation_ns: int
    exposed_comm_ns: int
    exposed_copy_ns: int
    idle_ns: int


class RankBreakdown(Record, frozen=True, kw_only=True):
    """One rank over all analysed steps; the last four add up to ``span_ns`` exactly."""

    rank: int
    span_ns: int
    computation_ns: int
    exposed_comm_ns: int
    exposed_copy_ns: int
    idle_ns: int


class RankOverlap(Record, frozen=True, kw_only=True):
    """One rank over all analysed steps. ``overlap_ratio`` is None without communication."""

    rank: int
    computation_ns: int
    communication_ns: int
    overlapped_ns: int
    exposed_comm_ns: int
    overlap_ratio: float | None


class AxisOverlap(Record, frozen=True, kw_only=True):
    """All ranks' communication of one mesh axis, or process group description, added up.

    Axes can be busy at the same time, so their communication may add up to more than a rank's.
    """

    axis: str
    ranks: tuple[int, ...]
    communication_ns: int
    overlapped_ns: int
    exposed_comm_ns: int
    overlap_ratio: float | None


class RankIdle(Record, frozen=True, kw_only=True):
    """One rank over all analysed steps; the causes add up to ``idle_ns`` exactly.

    ``within_launch_ns`` is the part of ``unknown_ns`` between two activities of one launch call, or
    before the first recorded one of a CUDA graph: the trace may lack kernels there.
    """

    rank: int
    idle_ns: int
    input_ns: int
    sync_ns: int
    host_ns: int
    comm_wait_ns: int
    unknown_ns: int
    num_kernels: int
    median_kernel_ns: int | None
    late_launch_ratio: float | None  # share of launches made after the device had run dry
    within_launch_ns: int = 0


class RankWaterfall(Record, frozen=True, kw_only=True):
    """One rank over all analysed steps; everything after ``span_ns`` adds up to it exactly."""

    rank: int
    span_ns: int
    computation_ns: int
    exposed_transfer_ns: int
    exposed_wait_ns: int  # waiting in a collective for its last member
    exposed_p2p_wait_ns: int  # the same in send and recv: bubble, in a pipeline
    exposed_comm_unsplit_ns: int  # members could not be matched: wait and transfer not told apart
    exposed_copy_ns: int
    idle_host_ns: int
    idle_sync_ns: int
    idle_input_ns: int
    idle_comm_wait_ns: int
    idle_unknown_ns: int
