"""# uneven-input

## What it detects
One or a few ranks wait longer for their batches than the others.

## Why it costs time
A synchronous job runs at the pace of its slowest rank: the others wait at the next collective or
for the next message.

## Evidence needed
A step log with the phase `input`, or waits for a `DataLoader`, of every rank. If the straggler
rules already name the rank for its late input, this rule is silent.

## How the cost is computed
The rank's input time per step minus the median of its peers. If several ranks wait, the largest
excess counts. This is an upper bound, because a rank that would wait for others anyway loses
nothing.

## How to fix
Look at what this rank reads. Check the storage and size of its shard, `num_workers` and
`prefetch_factor`, other processes on its cores, and whether its samples are longer.

## When it is wrong
A CPU that runs ahead of its GPU can wait without delaying it. The rule stays silent if the rank's
GPU idles in the traced steps for less than half of the excess. Without traces of a GPU rank it
cannot know. On a busy machine, loaders wait for a free CPU. The rule stays silent if that is at
least half of the excess, or if the excess is small compared with the time for which the training
thread itself waits for a CPU. In a pipeline only some stages need input. The others never wait for
it.

## Sources
Formula sheet, "Measured from traces" (straggler; input wait).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.idle.result import IdleResult, PausesResult
from distprof.sections.input.rules._shared import named_for_late_input
from distprof.sections.shares import hidden_waits, idle_gpu_ns
from distprof.sections.step_log.result import StepLogResult
from distprof.sections.stragglers.result import StragglersResult
from distprof.sections.time.result import WaterfallResult
from distprof.terms import Severity
from distprof.units import capitalized, format_duration, format_ratio, name_ranks


@rule(
    code="INP102",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={
        "min_step_ratio": Limit(
            0.03, "share of the step that a rank may wait longer than its peers"
        ),
        "queue_ratio": Limit(
            0.25, "share of the training thread's wait for a free CPU that the excess must exceed"
        ),
        "loader_queue_ratio": Limit(
            0.5, "share of the excess from which loaders that wait for a free CPU are its cause"
        ),
        "gpu_idle_ratio": Limit(
            0.5, "share of the excess for which the rank's GPU must idle in the traced steps"
        ),
    },
)
def check(
    step_log: StepLogResult,
    pauses: PausesResult,
    stragglers: StragglersResult,
    idle: IdleResult,
    waterfall: WaterfallResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Yield one finding for the ranks that wait longer than the others."""
    step, waits = step_log.step_ns, _input_ns(step_log, pauses)
    if not step or len(waits) < 2:
        return  # bare traces, or one rank alone
    excess = {rank: wait - _peers(waits, rank) for rank, wait in waits.items()}
    min_excess = limits["min_step_ratio"] * step
    named = named_for_late_input(stragglers)
    longer = tuple(rank for rank, more in excess.items() if more > min_excess and rank not in named)
    queued, loader_queued = pauses.queued_ns, _loaders_queued_ns(pauses)
    late = tuple(
        rank
        for rank in longer
        if excess[rank] > limits["queue_ratio"] * queued.get(rank, 0)
        and loader_queued.get(rank, 0) < limits["loader_queue_ratio"] * excess[rank]
    )
    if longer and not late:
        raise InsufficientEvidenceError(_uncertain(longer, excess, queued, loader_queued))
    idle_ns = idle_gpu_ns(idle, waterfall, step)
    hidden = hidden_waits({r: excess[r] for r in late}, idle_ns, limits["gpu_idle_ratio"])
    delayed = tuple(rank for rank in late if rank not in hidden)
    if late and not delayed:
        raise InsufficientEvidenceError(_hidden(late, excess, idle_ns))
    late = delayed
    if not late:
        return
    worst = max(late, key=lambda rank: excess[rank])
    yield Draft(
        message=(
            f"{_who(late)} {format_duration(waits[worst])} of each step "
            f"({format_ratio(waits[worst] / step)}) for input; the median of its peers is "
            f"{format_duration(_peers(waits, worst))}."
        ),
        fix=(
            "Look at what these ranks read: storage and size of the shard, num_workers, "
            "prefetch_factor, CPU contention with the data loader and sample lengths."
        ),
        cost_ns_per_step=int(excess[worst]),
        ranks=late,
        evidence=("step_log.ranks", "pauses.ranks"),
        without="uneven-input",
        explains=("COM102", "COM103"),
    )


def _input_ns(step_log: StepLogResult, pauses: PausesResult) -> dict[int, int]:
    """Input time per step by rank; waits for a loader inside the phase count once."""
    loader = {rank.rank: rank.input_ns_per_step for rank in pauses.ranks}
    return {
        rank.rank: rank.phases.get("input", 0) + loader.get(rank.rank, 0) for rank in step_log.ranks
    }


def _loaders_queued_ns(pauses: PausesResult) -> dict[int, int]:
    """Time per step by rank for which training waits for a loader that has no CPU."""
    return {rank.rank: rank.input_queue_ns_per_step or 0 for rank in pauses.ranks}


def _uncertain(
    ranks: tuple[int, ...],
    excess: dict[int, float],
    queued: dict[int, int],
    loader_queued: dict[int, int],
) -> str:
    """Say why a busy machine may explain the longer wait."""
    worst = max(ranks, key=lambda rank: excess[rank])
    waits = f"rank {worst} waits {format_duration(excess[worst])} longer for input than its peers"
    if loader_queued.get(worst, 0) > queued.get(worst, 0):
        wait = format_duration(loader_queued[worst])
        return (
            f"{waits}, but the machine is busy: its loader spends {wait} of that waiting for a "
            "free CPU"
        )
    wait = format_duration(queued.get(worst, 0))
    return (
        f"{waits}, but the machine is busy: its training thread waits {wait} of each step for a "
        "free CPU, and so may its loader"
    )


def _hidden(ranks: tuple[int, ...], excess: dict[int, float], idle_ns: dict[int, float]) -> str:
    """Say that the GPU works while the CPU waits."""
    worst = max(ranks, key=lambda rank: excess[rank])
    return (
        f"rank {worst} waits {format_duration(excess[worst])} longer for input than its peers, but"
        f" its GPU has work meanwhile: it idles for {format_duration(idle_ns[worst])} of a step"
    )


def _peers(waits: dict[int, int], rank: int) -> float:
    return statistics.median(wait for other, wait in waits.items() if other != rank)


def _who(ranks: tuple[int, ...]) -> str:
    if len(ranks) == 1:
        return f"Rank {ranks[0]} waits"
    names = name_ranks(ranks)
    return f"{capitalized(names)} wait up to"
