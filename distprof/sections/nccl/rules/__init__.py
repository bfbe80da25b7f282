"""Shared by the rules about NCCL's logs."""

from __future__ import annotations

from collections.abc import Callable

from distprof.rules.base import InsufficientEvidenceError
from distprof.sections.collectives import CollectivesResult
from distprof.sections.nccl import NO_LOG, NcclResult, NcclSetting, NcclTransport
from distprof.sections.shares import StepTimes

_MOST_HOSTS = 3


def has_log(nccl: NcclResult) -> bool:
    """Whether a log was read; False for jobs that do not use NCCL. Raises if others have none."""
    if nccl.is_missing:
        raise InsufficientEvidenceError(NO_LOG)
    return nccl.num_files > 0


def connections(
    nccl: NcclResult, where: str, wanted: Callable[[NcclTransport], bool]
) -> tuple[int, int]:
    """Line counts of the selected connections and of all connections, between or inside nodes."""
    if not has_log(nccl):
        return 0, 0
    if not nccl.transports:
        raise InsufficientEvidenceError(
            "the log names no connection (NCCL_DEBUG_SUBSYS without INIT, or warnings only)"
        )
    ways = [way for way in nccl.transports if way.where == where]
    chosen = [way for way in ways if wanted(way)]
    return sum(way.num_connections for way in chosen), sum(way.num_connections for way in ways)


def only_on(nccl: NcclResult, where: str, wanted: Callable[[NcclTransport], bool]) -> str:
    """For example `` on gpu7``: hosts whose connections are all wanted, if others have none."""
    ways = [way for way in nccl.transports if way.where == where]
    chosen = {host for way in ways if wanted(way) for host in way.hosts}
    others = {host for way in ways if not wanted(way) for host in way.hosts}
    is_apart = chosen and others and not chosen & others
    return f" on {', '.join(sorted(chosen)[:_MOST_HOSTS])}" if is_apart else ""


def said(nccl: NcclResult, name: str) -> tuple[NcclSetting, ...]:
    """Remarks of NCCL with this name."""
    return tuple(remark for remark in nccl.remarks if remark.name == name)


def setting_of(nccl: NcclResult, name: str) -> str:
    """The joined values of a variable on the processes that set it; empty if none does."""
    return ", ".join(setting.value for setting in nccl.settings if setting.name == name)


def exposed_between_nodes(collectives: CollectivesResult, times: StepTimes) -> int | None:
    """Exposed transfer of collectives that cross nodes, ns per step; None without a timeline.

    This is an upper bound on the time that a faster network would recover.
    """
    step = times.mean_step_if_timed()
    if step is None:
        return None
    crossing = [c for c in collectives.classes if c.num_nodes is not None and c.num_nodes > 1]
    exposed = sum(c.exposed_transfer_ns_per_step for c in crossing)
    return min(exposed, step.exposed_transfer_ns) or None if crossing else None
