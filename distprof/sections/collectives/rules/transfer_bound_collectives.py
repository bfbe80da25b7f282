"""# transfer-bound-collectives

## What it detects
Most of the exposed communication is transfer, not waiting, and the step has no computation left
that the transfer could overlap with.

## Why it costs time
Every byte that cannot move during computation prolongs the step. Once all computation is
overlapped, only fewer bytes or a faster path help.

## Evidence needed
- Collectives matched across ranks on comparable clocks, which separates transfer from waiting, most
  of them with all their members in the recording.
- The overlap of each rank.

## How the cost is computed
Exposed transfer, a mean over ranks and steps, less the part that could overlap with computation
that now runs alone; `low-overlap` reports that part. The cost is part of what
`exposed-communication` reports, and an upper bound: saving all of it would take an infinitely fast
network.

## How to fix
Compare the bus bandwidth in the message with what `distprof bench` (or nccl-tests) reaches on the
same machines; with `--fabric` the report shows both. If the job is far slower, look for sockets
where InfiniBand or NVLink should be (`NCCL_DEBUG=INFO`), for unused network cards, and for groups
that straddle nodes. If it is not, send less: reduce gradients in bf16, accumulate with `no_sync`,
raise the micro-batch size, shard inside the node (HSDP) instead of across nodes, and keep tensor
and expert parallelism inside the NVLink domain.

## When it is wrong
Small messages are bound by latency: their bandwidth is low on any network (`tiny-collectives`).
If several collectives share a link, each of them looks slow although the link is not.

## Sources
Formula sheet, "Collectives" and "Measured from traces". nccl-tests, doc/PERFORMANCE.md, for bus
bandwidth.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.capture.result import CaptureResult
from distprof.sections.collectives.result import CollectiveClass, CollectivesResult
from distprof.sections.collectives.rules._shared import (
    collective_label,
    only_messages,
    split_classes,
)
from distprof.sections.overlap.result import OverlapResult
from distprof.sections.shares import has_all_members, hideable_ns, mean_step
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Severity
from distprof.units import format_bandwidth, format_duration


@rule(
    code="COM104",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={
        "min_step_ratio": Limit(
            0.05, "share of the step for transfer that cannot overlap with computation"
        ),
    },
)
def check(
    collectives: CollectivesResult,
    overlap: OverlapResult,
    waterfall: WaterfallResult,
    step_time: StepTimeResult,
    capture: CaptureResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Yield one finding for the run that names the class that transfers most."""
    step = mean_step(waterfall, step_time)
    if not collectives.classes:
        return
    if only_messages(collectives):
        raise InsufficientEvidenceError("the recording has only sends and receives, no collectives")
    classes = split_classes(collectives)
    if not classes or not step.is_split:
        raise InsufficientEvidenceError(
            "waiting and transfer could not be separated: no collective was matched across ranks"
        )
    if not has_all_members(capture):
        raise InsufficientEvidenceError(
            "most collectives lack a member in the recording: apparent transfer may be waiting for "
            "that member"
        )
    cost = step.exposed_transfer_ns - hideable_ns(step, overlap)
    if step.exposed_wait_ns > step.exposed_transfer_ns:
        return
    if step.ratio(cost) < limits["min_step_ratio"]:
        return
    largest = max(classes, key=lambda record: record.exposed_transfer_ns_per_step)
    yield Draft(
        message=(
            f"{step.share(cost)} is transfer, with no computation left to overlap with; "
            f"{_speed(largest)}."
        ),
        fix=(
            "Compare the bus bandwidth with what distprof bench reaches on these machines. If it "
            "is far lower, look for sockets, unused network cards and groups that straddle nodes. "
            "If not, send less (bf16 gradients, no_sync while accumulating, HSDP)."
        ),
        cost_ns_per_step=cost,
        evidence=("collectives.classes", "overlap.ranks", "waterfall.all"),
        without="exposed transfer",
    )


def _speed(record: CollectiveClass) -> str:
    label = collective_label(record)
    if record.busbw_bytes_per_s is None:
        return f"{label} takes {format_duration(record.transfer_ns_median)} each"
    expected = record.expected_busbw_bytes_per_s
    reference = f", {format_bandwidth(expected)} expected" if expected else ""
    return f"{label} moves at {format_bandwidth(record.busbw_bytes_per_s)} bus bandwidth{reference}"
