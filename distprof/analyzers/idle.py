"""Why was the device idle: input, a synchronising call, a late host, communication, unknown."""

from __future__ import annotations

from collections.abc import Sequence

from distprof.analyzers.context import RankAnalysis, SyncStats
from distprof.analyzers.result import Record, Result
from distprof.analyzers.rows import RankIdle
from distprof.units import name_ranks

__all__ = ["IdleResult", "SyncCall", "combine_idle"]

IN_GRAPH_RATIO = 0.2  # of the idle time, from which on a reader must know


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


def combine_idle(
    analyses: Sequence[RankAnalysis], num_steps: int, unavailable: Sequence[str] = ()
) -> IdleResult:
    """All ranks whose idle time could be attributed, and their synchronising calls."""
    blind = [analysis.rank for analysis in analyses if analysis.idle is None]
    known = [analysis for analysis in analyses if analysis.idle is not None]
    notes = tuple(unavailable)
    if blind:
        notes += (
            f"Idle time has no cause on {name_ranks(blind)}: "
            "the host's side was not read, or is not in the trace.",
        )
    graphs = [a.idle for a in known if a.idle and _mostly_within_launches(a.idle)]
    if graphs:
        notes += (
            f"Much of the idle time of {name_ranks(idle.rank for idle in graphs)} lies in CUDA "
            "graphs, whose kernels the trace may lack: its cause is unknown.",
        )
    return IdleResult(
        ranks=tuple(analysis.idle for analysis in known if analysis.idle is not None),
        sync_calls=_combine_calls(known, num_steps),
        unavailable=notes,
    )


def _mostly_within_launches(idle: RankIdle) -> bool:
    return idle.within_launch_ns > IN_GRAPH_RATIO * idle.idle_ns


def _combine_calls(analyses: Sequence[RankAnalysis], num_steps: int) -> tuple[SyncCall, ...]:
    by_name: dict[str, list[tuple[int, SyncStats]]] = {}
    for analysis in analyses:
        for call in analysis.sync_calls:
            by_name.setdefault(call.name, []).append((analysis.rank, call))
    mean_over = max(1, len(analyses) * num_steps)
    calls = [_mean_call(name, entries, mean_over) for name, entries in by_name.items()]
    return tuple(sorted(calls, key=lambda c: (-c.idle_ns_per_step, -c.blocked_ns_per_step, c.name)))


def _mean_call(name: str, entries: Sequence[tuple[int, SyncStats]], mean_over: int) -> SyncCall:
    return SyncCall(
        name=name,
        ranks=tuple(sorted(rank for rank, _ in entries)),
        count_per_step=sum(call.count for _, call in entries) / mean_over,
        blocked_ns_per_step=sum(call.blocked_ns for _, call in entries) // mean_over,
        idle_ns_per_step=sum(call.idle_ns for _, call in entries) // mean_over,
    )
