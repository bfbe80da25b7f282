"""How findings speak of late ranks."""

from __future__ import annotations

from collections.abc import Iterable

from distprof.analyzers.collectives import CollectivesResult
from distprof.analyzers.stragglers import RankStraggler, StragglersResult
from distprof.rules.base import InsufficientEvidenceError
from distprof.terms import StragglerCause, StragglerPattern

__all__ = ["FIX", "because", "of_pattern"]

FIX = {
    StragglerCause.SLOW_DEVICE: (
        "Check the device's clocks, temperature, power limit and throttle reasons (nvidia-smi -q), "
        "run the job without its node, and replace it if it stays slow."
    ),
    StragglerCause.MORE_WORK: (
        "Give ranks equal work: pack or bucket sequences by cost, balance experts, shard embedding "
        "tables and layers by measured time."
    ),
    StragglerCause.LATE_HOST: (
        "Look at the host: pin the process to its own cores, check CPU contention, garbage "
        "collection, logging and checkpoints on this rank only."
    ),
    StragglerCause.LATE_INPUT: (
        "Look at this rank's input: storage of its shard, num_workers, prefetch_factor, sample "
        "lengths, CPU contention with the data loader."
    ),
    StragglerCause.UNKNOWN: (
        "The traces do not show why. Record with host activities, compare clocks and temperatures, "
        "and see whether lateness follows the node or the data."
    ),
}

_BECAUSE = {
    StragglerCause.SLOW_DEVICE: "its device is slow",
    StragglerCause.MORE_WORK: "it has more work",
    StragglerCause.LATE_HOST: "its host is late",
    StragglerCause.LATE_INPUT: "its input is late",
    StragglerCause.UNKNOWN: "why, the traces do not show",
}


def because(causes: Iterable[StragglerCause]) -> str:
    """The cause as a clause; what all share, else that it is unknown."""
    distinct = set(causes)
    return _BECAUSE[distinct.pop() if len(distinct) == 1 else StragglerCause.UNKNOWN]


def of_pattern(
    stragglers: StragglersResult,
    collectives: CollectivesResult,
    pattern: StragglerPattern,
    min_ratio: float,
) -> list[RankStraggler]:
    """Ranks of that pattern that together cost at least ``min_ratio`` of the step.

    Nobody where nothing was communicated.

    Raises:
        InsufficientEvidenceError: If there were collectives, but lateness could not be judged.
    """
    if not collectives.classes:
        return []
    if stragglers.num_judged == 0:
        why = "; ".join(stragglers.unavailable) or "no collective was matched across ranks"
        raise InsufficientEvidenceError(why)
    found = [rank for rank in stragglers.ranks if rank.pattern is pattern]
    return found if sum(rank.share_of_step_ratio for rank in found) >= min_ratio else []
