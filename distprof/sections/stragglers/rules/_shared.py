"""Wording of causes and fixes of late ranks in findings."""

from __future__ import annotations

from distprof.rules.base import InsufficientEvidenceError
from distprof.sections.collectives.result import CollectivesResult
from distprof.sections.moe.result import MoeResult
from distprof.sections.stragglers.result import (
    MEMORY_CALLS,
    PAUSED_FOR,
    STALL,
    RankStraggler,
    StragglerSet,
    StragglersResult,
)
from distprof.terms import StragglerCause, StragglerPattern
from distprof.units import capitalized, name_ranks

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
    StragglerCause.SLOW_COPIES: (
        "Compare its PCIe link with the other GPUs' (nvidia-smi -q: Link Width and Generation), "
        "pin its process to the CPU next to its GPU (numactl), and pin the memory that is copied."
    ),
    StragglerCause.CPU_TAKEN: (
        "Give the job dedicated CPUs: stop other processes on the host, or pin ranks to cores."
    ),
    StragglerCause.TRACING: (
        "Training needs no change: without a profiler the rank computes no longer than its peers."
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
    MEMORY_CALLS: (
        "Do not call torch.cuda.empty_cache() in the loop. If memory is nearly full, use smaller "
        "micro-batches, or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
    ),
    "throttled": (
        "Find out why the GPU is throttled (nvidia-smi -q -d PERFORMANCE). For heat, check cooling "
        "and air flow; for power, check cap and supply. Until then run the job without its node."
    ),
    STALL: (
        "Find out what held the kernel up at that time: preemption by another process on the GPU, "
        "page migration of managed memory, ECC errors and Xids (dmesg), a clock that dropped."
    ),
    "low_clocks": (
        "Compare application clocks and power limits with the other GPUs' (nvidia-smi -q -d "
        "CLOCK,POWER), reset them, and replace the GPU if its clock stays low."
    ),
    "tokens": (
        "Give all ranks the same number of tokens: distribute the samples of a global batch by "
        "token count, and check how this rank's data is sharded."
    ),
    "inputs": (
        "Give all ranks inputs of the same size: balance the tokens of a global batch, bucket or "
        "pack sequences by length, and check this rank's micro-batch size."
    ),
    "copies": (
        "Find out what this rank alone copies: logging, checkpoints, metrics, or a larger share of "
        "what is offloaded."
    ),
    "experts": (
        "Balance the routing (load-balancing loss, bias of the router), or place busy experts on "
        "different ranks."
    ),
    "sequence_length": (
        "Give ranks batches of equal cost: balance the sum of squared sequence lengths, bucket "
        "by length, pack documents."
    ),
}

_BECAUSE_OF_DETAIL = {
    "gc": "Its CPU launches late: Python's garbage collector runs",
    MEMORY_CALLS: "Its CPU launches late: it frees and allocates GPU memory",
    "throttled": "It runs the same kernels slower: its GPU is throttled",
    STALL: "One of its kernels stalls",
    "low_clocks": "It runs the same kernels slower: its GPU clock is low",
    "sequence_length": "It has more work: longer sequences",
    "tokens": "It has more work: more tokens",
    "inputs": "It has more work: larger inputs",
    "experts": "It has more work: its experts get more tokens",
    "copies": "It copies more between CPU and GPU",
}

_BECAUSE = {
    StragglerCause.SLOW_DEVICE: "It runs the same kernels slower",
    StragglerCause.MORE_WORK: "It has more work",
    StragglerCause.LATE_HOST: "Its CPU launches late",
    StragglerCause.LATE_INPUT: "Its input arrives late",
    StragglerCause.SLOW_COPIES: "Its copies between CPU and GPU are slow",
    StragglerCause.CPU_TAKEN: "Other processes take its CPU",
    StragglerCause.TRACING: "It computes longer only while it is traced",
    StragglerCause.UNKNOWN: "The traces do not show why",
}


_Slow = RankStraggler | StragglerSet

_SEVERAL = (
    ("It runs", "They run"),
    ("It has", "They have"),
    ("It computes longer only while it is", "They compute longer only while they are"),
    ("Its CPU launches", "Their CPUs launch"),
    ("Its input arrives", "Their input arrives"),
    ("Its copies", "Their copies"),
    ("It copies", "They copy"),
    ("One of its kernels stalls", "Their kernels stall"),
    ("its GPU is", "their GPUs are"),
    ("its GPU clock is", "their GPU clocks are"),
    ("its experts", "their experts"),
)


def because(rank: _Slow) -> str:
    """The cause as a sentence without its full stop."""
    text = _because(rank)
    if isinstance(rank, StragglerSet) and len(rank.ranks) > 1:
        for one, several in _SEVERAL:
            text = text.replace(one, several)
    return text


def who(found: StragglerSet) -> str:
    """For example ``Ranks 4-7 (node1)``."""
    shared = {"node": f" (node {found.name})", "": ""}.get(found.shares, f" ({found.name})")
    ranks = name_ranks(found.ranks)
    return f"{capitalized(ranks)}{shared}"


def _because(rank: _Slow) -> str:
    if rank.detail.startswith(PAUSED_FOR):
        return f"Its CPU launches late: it is in {rank.detail.removeprefix(PAUSED_FOR)}"
    return _BECAUSE_OF_DETAIL.get(rank.detail) or _BECAUSE[rank.cause]


def fix_of(rank: _Slow) -> str:
    """What to do about the cause."""
    if rank.detail.startswith(PAUSED_FOR):
        what = rank.detail.removeprefix(PAUSED_FOR)
        return (
            f"Take {what} out of the step: run it in the background or less often. If all ranks "
            "need it, run it on all of them in the same step."
        )
    return _FIX_OF_DETAIL.get(rank.detail) or _FIX[rank.cause]


def sets_of_pattern(
    stragglers: StragglersResult, pattern: StragglerPattern, min_ratio: float
) -> list[StragglerSet]:
    """Return the sets of a pattern that cost at least ``min_ratio`` of the step each.

    Leave out ranks whose CPU is taken by other processes, because `cpu-contention` reports that
    cost, and ranks that are late only while they are traced.
    """
    return [
        one
        for one in stragglers.sets
        if one.pattern is pattern and one.share_of_step_ratio >= min_ratio and one.cause.is_own
    ]


OVERLOADED = 2.0
"""Load of an expert over the mean from which `overloaded-expert` reports it."""


def is_for_experts(found: StragglerSet, moe: MoeResult) -> bool:
    """Whether the extra work may be that of an overloaded expert, which has its own finding."""
    if found.cause is not StragglerCause.MORE_WORK:
        return False
    return any(layer.busiest_share_ratio * layer.num_experts >= OVERLOADED for layer in moe.layers)


def of_pattern(
    stragglers: StragglersResult,
    collectives: CollectivesResult,
    pattern: StragglerPattern,
    min_ratio: float,
) -> list[RankStraggler]:
    """Return the ranks of a pattern that together cost at least ``min_ratio`` of the step.

    The list is empty if nothing was communicated. It leaves out ranks whose cost another rule
    reports: ranks that sequences of different lengths make late in some steps
    (`sequence-length-imbalance`), ranks whose CPU is taken by other processes (`cpu-contention`),
    and ranks that are late only because of a slow link (`slow-link`). It also leaves out ranks that
    are late only while they are traced.

    Raises:
        InsufficientEvidenceError: If there were collectives but lateness could not be judged.
    """
    if not collectives.classes:
        return []
    if stragglers.num_judged == 0:
        if stragglers.sets:
            return []
        why = "; ".join(stragglers.unavailable) or "no collective was matched across ranks"
        raise InsufficientEvidenceError(why)
    in_sets = {rank for one in stragglers.sets for rank in one.ranks}
    found = [
        rank
        for rank in stragglers.ranks
        if rank.pattern is pattern
        and rank.rank not in in_sets
        and rank.cause.is_own
        and not _is_held_up(rank, stragglers)
    ]
    if pattern is not StragglerPattern.PERSISTENT and stragglers.sequences is not None:
        found = [rank for rank in found if rank.detail != "sequence_length"]
    return found if sum(rank.share_of_step_ratio for rank in found) >= min_ratio else []


def _is_held_up(rank: RankStraggler, stragglers: StragglersResult) -> bool:
    """Whether the rank is late for an unknown cause, and its transfers use a slow link."""
    slow = {member for link in stragglers.links for part in link.transfers for member in part.ranks}
    return rank.cause is StragglerCause.UNKNOWN and rank.rank in slow
