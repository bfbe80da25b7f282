"""How findings speak of late ranks."""

from __future__ import annotations

from distprof.rules.base import InsufficientEvidenceError
from distprof.sections.collectives.result import CollectivesResult
from distprof.sections.stragglers.result import RankStraggler, StragglersResult
from distprof.terms import StragglerCause, StragglerPattern

__all__ = ["because", "fix_of", "of_pattern"]

_FIX = {
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

_FIX_OF_DETAIL = {
    "gc": (
        "Call gc.collect() and gc.freeze() after set-up, then gc.disable(), and gc.collect() on "
        "all ranks in the same step, every some hundred steps."
    ),
    "throttled": (
        "See why the device is throttled (nvidia-smi -q -d PERFORMANCE): cooling and air flow for "
        "heat, power cap and supply for power; run the job without its node meanwhile."
    ),
    "low_clocks": (
        "Compare application clocks and power limits with the other devices' (nvidia-smi -q -d "
        "CLOCK,POWER), reset them, and replace the device if its clock stays low."
    ),
    "tokens": (
        "Give all ranks equally many tokens: distribute the samples of a global batch by their "
        "number of tokens, and look at the sharding of this rank's data."
    ),
    "sequence_length": (
        "Give ranks batches of equal cost: balance the sum of squared sequence lengths, bucket "
        "by length, pack documents."
    ),
}

_BECAUSE_OF_DETAIL = {
    "gc": "its host is late: Python's garbage collector runs",
    "throttled": "its device is slow: it is throttled",
    "low_clocks": "its device is slow: its clock is low",
    "sequence_length": "it has more work: longer sequences",
    "tokens": "it has more work: more tokens",
}

_BECAUSE = {
    StragglerCause.SLOW_DEVICE: "its device is slow",
    StragglerCause.MORE_WORK: "it has more work",
    StragglerCause.LATE_HOST: "its host is late",
    StragglerCause.LATE_INPUT: "its input is late",
    StragglerCause.UNKNOWN: "why, the traces do not show",
}


def because(rank: RankStraggler) -> str:
    """The cause as a clause."""
    return _BECAUSE_OF_DETAIL.get(rank.detail) or _BECAUSE[rank.cause]


def fix_of(rank: RankStraggler) -> str:
    """What to do about the cause."""
    return _FIX_OF_DETAIL.get(rank.detail) or _FIX[rank.cause]


def of_pattern(
    stragglers: StragglersResult,
    collectives: CollectivesResult,
    pattern: StragglerPattern,
    min_ratio: float,
) -> list[RankStraggler]:
    """Ranks of that pattern that together cost at least ``min_ratio`` of the step.

    Nobody where nothing was communicated. Ranks that are late by sequences of unlike lengths in
    some steps each are not among them: what that costs is `sequence-length-imbalance`'s.

    Raises:
        InsufficientEvidenceError: If there were collectives, but lateness could not be judged.
    """
    if not collectives.classes:
        return []
    if stragglers.num_judged == 0:
        why = "; ".join(stragglers.unavailable) or "no collective was matched across ranks"
        raise InsufficientEvidenceError(why)
    found = [rank for rank in stragglers.ranks if rank.pattern is pattern]
    if pattern is not StragglerPattern.PERSISTENT and stragglers.sequences is not None:
        found = [rank for rank in found if rank.detail != "sequence_length"]
    return found if sum(rank.share_of_step_ratio for rank in found) >= min_ratio else []
