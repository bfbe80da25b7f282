"""# low-overlap

## What it detects
Communication runs while the GPU computes nothing, although the same step has computation without
concurrent communication that it could overlap with. The rule stays silent if ranks mostly wait for
each other: overlap hides transfer, not lateness.

## Why it costs time
A transfer on a separate stream during computation costs next to nothing. The same transfer after
the computation adds its full length to the step.

## Evidence needed
GPU activities of at least one rank. Matched collectives separate waiting from transfer. Without
them (with a single rank, for example), or if most lack a member in the recording, the finding is
marked *inferred*.

## How the cost is computed
The smaller of two means over ranks and steps: exposed transfer, and computation that runs without
concurrent communication. This is an upper bound. The time is part of what `exposed-communication`
reports, so do not add the two. It does not include what `transfer-bound-collectives` reports.

## How to fix
DDP: keep `gradient_as_bucket_view=True`, tune `bucket_cap_mb` so that the first bucket is ready
early, and remove what forces a synchronisation between backward and the reduction. FSDP2: call
`set_modules_to_forward_prefetch` and `set_modules_to_backward_prefetch`, and wrap one transformer
block per unit. FSDP1: `forward_prefetch=True`, `backward_prefetch=BACKWARD_PRE`,
`limit_all_gathers=False` if memory allows. Tensor parallelism: use asynchronous tensor parallelism
or sequence parallelism.

## When it is wrong
The data flow may forbid overlap: an all-to-all whose result the next kernel needs, or the
all-reduce of plain tensor parallelism. Kernels that already use all of the memory bandwidth slow
down during a transfer, so less than the cost is recovered. The rule stays silent if a loss or a
norm causes nearly all exposed transfer.

## Sources
Formula sheet, "Measured from traces" (overlap) and "Anti-patterns" (overlap below 80 %). PyTorch
documentation of `DistributedDataParallel` and `fully_shard`.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.capture.result import CaptureResult
from distprof.sections.collectives.result import CollectivesResult
from distprof.sections.overlap.result import OverlapResult
from distprof.sections.shares import has_all_members, hideable_ns, mean_step, unrecorded
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Confidence, Severity
from distprof.units import format_duration, format_ratio


@rule(
    code="COM101",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={
        "overlap_ratio": Limit(
            0.8,
            "smallest acceptable overlap of communication, without exposed waiting",
        ),
        "min_step_ratio": Limit(0.02, "smallest share of the step that is worth reporting"),
        "scalar_bytes": Limit(
            64, "size in bytes of a loss or a norm, which the program waits for and cannot overlap"
        ),
    },
)
def check(
    overlap: OverlapResult,
    waterfall: WaterfallResult,
    step_time: StepTimeResult,
    capture: CaptureResult,
    collectives: CollectivesResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Yield one finding for the run."""
    if capture.filtered_ranks:
        raise InsufficientEvidenceError(
            "rows were removed from traces: computation that overlaps may be missing"
        )
    step = mean_step(waterfall, step_time)
    hidden = step.mean(sum(rank.overlapped_ns for rank in overlap.ranks))
    transfer = hidden + step.exposed_transfer_ns
    if transfer == 0 or step.exposed_wait_ns > step.exposed_transfer_ns:
        return
    ratio = hidden / transfer
    cost = hideable_ns(step, overlap)
    if _mostly_scalars(collectives, limits["scalar_bytes"]):
        return
    if ratio >= limits["overlap_ratio"] or step.ratio(cost) < limits["min_step_ratio"]:
        return
    is_sure = step.is_split and has_all_members(capture)
    knows_all = has_all_members(capture) and not capture.ranks_missing
    who = "other ranks" if knows_all else unrecorded(capture)
    yield Draft(
        message=_message(ratio, step.exposed_transfer_ns, cost, "" if is_sure else who),
        fix=("" if has_all_members(capture) else "Record all ranks to see how much. ")
        + (
            "Start transfers earlier, during computation: bucket_cap_mb (DDP), "
            "set_modules_to_forward_prefetch and set_modules_to_backward_prefetch (FSDP2), "
            "asynchronous tensor parallelism."
        ),
        cost_ns_per_step=cost,
        confidence=Confidence.MEASURED if is_sure else Confidence.INFERRED,
        ranks=_ranks_below(overlap, limits["overlap_ratio"]),
        evidence=("overlap.ranks", "waterfall.all"),
        without="overlap",
    )


def _ranks_below(overlap: OverlapResult, limit: float) -> tuple[int, ...]:
    """The ranks with too little overlap; empty if it is all of them."""
    ratios = [(rank.rank, rank.overlap_ratio) for rank in overlap.ranks]
    below = tuple(rank for rank, ratio in ratios if ratio is not None and ratio < limit)
    return () if len(below) == len(ratios) else below


MOSTLY = 0.8
"""Share of the exposed transfer that scalars must take."""


def _mostly_scalars(collectives: CollectivesResult, most_bytes: float) -> bool:
    """Whether scalars, such as a loss or a norm, cause nearly all exposed transfer.

    No bucket makes them start earlier. Classes of unknown size count as large.
    """
    exposed = {True: 0, False: 0}
    for one in collectives.classes:
        is_scalar = one.bytes is not None and one.bytes <= most_bytes
        exposed[is_scalar] += one.exposed_transfer_ns_per_step
    return exposed[True] > 0 and exposed[True] >= MOSTLY * sum(exposed.values())


def _message(ratio: float, exposed_ns: int, cost_ns: int, waits_for: str) -> str:
    what = "communication" if waits_for else "transfer"
    caveat = f", part of which may be waiting for {waits_for}" if waits_for else ""
    part = "all" if cost_ns >= exposed_ns else format_duration(cost_ns)
    overlaps = f"Only {format_ratio(ratio)} of" if ratio > 0 else "No"
    return (
        f"{overlaps} {what} overlaps with computation: "
        f"{format_duration(exposed_ns)} is exposed{caveat}. Computation without concurrent "
        f"communication could hide {part} of it."
    )
