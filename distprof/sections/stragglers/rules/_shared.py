"""Causes and fixes of late ranks, as findings word them."""

from __future__ import annotations

from distprof.rules.base import InsufficientEvidenceError
from distprof.sections.collectives.result import CollectivesResult
from distprof.sections.stragglers.result import RankStraggler, StragglersResult
from distprof.terms import StragglerCause, StragglerPattern

__all__ = ["because", "fix_of", "of_pattern"]

_FIX = {
    StragglerCause.SLOW_DEVICE: (
        "Check its clocks, temperature, power limit and throttle reasons (nvidia-smi -q on a GPU), "
        "run the job without its node, and replace the hardware if it stays slow."
    ),
    StragglerCause.MORE_WORK: (
        "Give ranks equal work: pack or bucket sequences by cost, balance experts, shard embedding "
        "tables and layers by measured time."
    ),
    StragglerCause.LATE_HOST: (
        "Look at the CPU side: pin the process to its own cores, check CPU contention, garbage "
        "collection, logging and checkpoints on this rank only."
    ),
    StragglerCause.LATE_INPUT: (
        "Look at this rank's input: storage of its shard, num_workers, prefetch_factor, sample "
        "lengths, CPU contention with the data loader."
    ),
    StragglerCause.UNKNOWN: (
        "The traces do not show why. Record CPU activities, compare clocks and temperatures, "
        "and check whether lateness follows the node or the data."
    ),
}

_FIX_OF_DETAIL = {
    "gc": (
        "Call gc.collect() and gc.freeze() after set-up, then gc.disable(), and gc.collect() on "
        "all ranks in the same step, every few hundred steps."
    ),
    "throttled": (
        "Find out why the GPU is throttled (nvidia-smi -q -d PERFORMANCE). For heat, check cooling "
        "and air flow; for power, check cap and supply. Until then run the job without its node."
    ),
    "low_clocks": (
        "Compare application clocks and power limits with the other GPUs' (nvidia-smi -q -d "
        "CLOCK,POWER), reset them, and replace the GPU if its clock stays low."
    ),
    "tokens": (
        "Give all ranks the same number of tokens: distribute the samples of a global batch by "
        "token count, and check how this rank's data is sharded."
    ),
    "sequence_length": (
        "Give ranks batches of equal cost: balance the sum of squared sequence lengths, bucket "
        "by length, pack documents."
    ),
}

_BECAUSE_OF_DETAIL = {
    "gc": "Its CPU launches late: Python's garbage collector runs",
    "throttled": "It runs the same kernels slower: its GPU is throttled",
    "low_clocks": "It runs the same kernels slower: its GPU clock is low",
    "sequence_length": "It has more work: longer sequences",
    "tokens": "It has more work: more tokens",
}

_BECAUSE = {
    StragglerCause.SLOW_DEVICE: "It runs the same kernels slower",
    StragglerCause.MORE_WORK: "It has more work",
    StragglerCause.LATE_HOST: "Its CPU launches late",
    StragglerCause.LATE_INPUT: "Its input arrives late",
    StragglerCause.UNKNOWN: "The traces do not show why",
}


def because(rank: RankStraggler) -> str:
    """The cause as a sentence without its full stop."""
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
    """Return the ranks of a pattern that together cost at least ``min_ratio`` of the step.

    Empty where nothing was communicated. Ranks that sequences of different lengths make late in
    some steps are left out: `sequence-length-imbalance` reports that cost.

    Raises:
        InsufficientEvidenceError: If there were collectives but lateness could not be judged.
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
