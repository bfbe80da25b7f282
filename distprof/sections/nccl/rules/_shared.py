"""What rules on NCCL's logs share. Private to this family: no rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from distprof.rules.base import InsufficientEvidenceError
from distprof.sections.collectives.result import CollectivesResult
from distprof.sections.nccl.measure import NO_LOG
from distprof.sections.nccl.result import NcclResult, NcclTransport
from distprof.sections.shares import mean_step
from distprof.sections.time.result import StepTimeResult, WaterfallResult

__all__ = ["connections", "exposed_between_nodes", "has_log", "setting_of"]


def has_log(nccl: NcclResult) -> bool:
    """Whether a log was read; false for jobs that do not use NCCL.

    Raises:
        InsufficientEvidenceError: If the job uses NCCL and there is no log.
    """
    if nccl.is_missing:
        raise InsufficientEvidenceError(NO_LOG)
    return nccl.num_files > 0


def connections(
    nccl: NcclResult, where: str, wanted: Callable[[NcclTransport], bool]
) -> tuple[int, int]:
    """Lines of the wanted connections, and of all, either between or inside nodes.

    Raises:
        InsufficientEvidenceError: If the log names no connection at all.
    """
    if not has_log(nccl):
        return 0, 0
    if not nccl.transports:
        raise InsufficientEvidenceError(
            "the log names no connection (NCCL_DEBUG_SUBSYS without INIT, or warnings only)"
        )
    ways = [way for way in nccl.transports if way.where == where]
    return _lines(way for way in ways if wanted(way)), _lines(ways)


def setting_of(nccl: NcclResult, name: str) -> str:
    """The value of a variable on the processes that have it, joined; empty where none has."""
    return ", ".join(setting.value for setting in nccl.settings if setting.name == name)


def exposed_between_nodes(
    collectives: CollectivesResult, waterfall: WaterfallResult, step_time: StepTimeResult
) -> int | None:
    """Exposed transfer of collectives that cross nodes, ns per step; None without a time line.

    An upper bound of what a faster network recovers.
    """
    try:
        step = mean_step(waterfall, step_time)
    except InsufficientEvidenceError:
        return None
    crossing = [c for c in collectives.classes if c.num_nodes is not None and c.num_nodes > 1]
    exposed = sum(c.exposed_transfer_ns_per_step for c in crossing)
    return min(exposed, step.exposed_transfer_ns) or None if crossing else None


def _lines(ways: Iterable[NcclTransport]) -> int:
    return sum(way.num_lines for way in ways)
