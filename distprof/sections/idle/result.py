"""Idle time of the device by cause, and pauses of the training thread."""

from __future__ import annotations

from distprof.schema import Record
from distprof.sections.base import Result

__all__ = ["IdleResult", "PausesResult", "RankIdle", "RankPauses", "SyncCall"]


class RankIdle(Record, frozen=True, kw_only=True):
    """Idle time of one rank over all analysed steps; the causes add up to ``idle_ns`` exactly.

    ``within_launch_ns`` is the part of ``unknown_ns`` between two activities of one launch call, or
    before the first recorded activity of a CUDA graph: the trace may lack kernels there.
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
    late_launch_ratio: float | None  # share of launches made when the device was already idle
    within_launch_ns: int = 0


# Causes of idle time: input, a synchronising call, a late CPU, communication, unknown -----------


class SyncCall(Record, frozen=True, kw_only=True):
    """A synchronising runtime call, summed over all ranks and analysed steps."""

    name: str
    ranks: tuple[int, ...]
    count_per_step: float  # mean over ranks and steps
    blocked_ns_per_step: int  # mean host time inside it
    idle_ns_per_step: int  # mean device idle time charged to it


class IdleResult(Result, frozen=True, kw_only=True):
    """Idle time by cause, and the calls that emptied the queue of the device."""

    needs_traces = True

    ranks: tuple[RankIdle, ...]
    sync_calls: tuple[SyncCall, ...]


# Time that training threads lost to garbage collection and to waiting for input ------------------


class RankPauses(Record, frozen=True, kw_only=True):
    """Pauses of one rank over all logged steps but the first, which includes initialisation.

    Args:
        rank: Global rank.
        gc_ns_per_step: Garbage collection, mean per step; overlapping times count once.
        num_gc: Number of collections.
        longest_gc_ns: Longest collection, None without one.
        input_ns_per_step: Waiting for the data loader, mean per step.
        num_input: Number of waits.
        longest_input_ns: Longest wait, None without one.
    """

    rank: int
    gc_ns_per_step: int
    num_gc: int
    longest_gc_ns: int | None
    input_ns_per_step: int
    num_input: int
    longest_input_ns: int | None


class PausesResult(Result, frozen=True, kw_only=True):
    """Pauses of each rank on which they were recorded."""

    ranks: tuple[RankPauses, ...] = ()
