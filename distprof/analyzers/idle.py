"""Why was the device idle: input, a synchronising call, a late host, communication, unknown."""

from __future__ import annotations

from distprof.analyzers.result import Record, Result

__all__ = ["IdleResult", "RankIdle", "SyncCall"]


class RankIdle(Record, frozen=True, kw_only=True):
    """One rank over all analysed steps; the causes add up to ``idle_ns`` exactly."""

    rank: int
    idle_ns: int
    input_ns: int
    sync_ns: int
    host_ns: int
    comm_wait_ns: int
    unknown_ns: int
    num_kernels: int
    median_kernel_ns: int | None
    late_launch_ratio: float | None  # share of kernels launched after the device had run dry


class SyncCall(Record, frozen=True, kw_only=True):
    """A synchronising runtime call, all ranks and analysed steps added up."""

    name: str
    ranks: tuple[int, ...]
    count_per_step: float  # mean over ranks and steps
    blocked_ns_per_step: int  # mean host time inside it
    idle_ns_per_step: int  # mean device idle time blamed on it


class IdleResult(Result, frozen=True, kw_only=True):
    """Idle time by cause, and the calls that drained the device's queue."""

    ranks: tuple[RankIdle, ...]
    sync_calls: tuple[SyncCall, ...]
