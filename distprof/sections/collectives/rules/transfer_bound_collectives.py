"""# transfer-bound-collectives

## What it detects
Moving the data, not waiting for members, takes the exposed communication time, and there is no
computation left in the step that could hide it.

## Why it costs time
Every byte that cannot move beside computation adds to the step. Once computation is used up, only
fewer bytes or a faster path help.

## Evidence needed
Collectives matched across ranks on comparable clocks, so that transfer is told from waiting,
most of them with all their members in the recording, and the overlap of each rank.

## How the cost is computed
Exposed transfer, a mean over ranks and steps, less the part that computation running alone could
hide; that part is `low-overlap`'s. The time is part of what `exposed-communication` reports, and
an upper bound: it would need a network without limits.

## How to fix
Compare the bus bandwidth in the message with what `distprof bench` (or nccl-tests) reaches on the
same machines; `--fabric` puts both side by side. If it is far lower: look for sockets where
InfiniBand or NVLink should be (`NCCL_DEBUG=INFO`), for unused network cards, for groups that
straddle nodes. If it is not: send less. Reduce gradients in bf16, accumulate with `no_sync`, raise
the micro-batch, shard inside the node (HSDP) instead of across nodes, keep tensor and expert
parallelism inside the NVLink domain.

## Example
```text
transfer-bound-collectives: 28.0 % of each step (6.24 ms of 22.3 ms) is transfer that no computation
is left to hide; all_gather in dp_shard (135 MB) moves at 38.2 GB/s bus bandwidth.
```

## When it is wrong
Small messages are bound by latency: their bandwidth is low on any network (`tiny-collectives`).
Where several collectives share a link each one looks slow, and the link is not.

## Sources
Formula sheet, "Collectives" and "Measured from traces". nccl-tests, doc/PERFORMANCE.md, for bus
bandwidth.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.capture.result import CaptureResult
from distprof.sections.collectives.result import CollectiveClass, CollectivesResult
from distprof.sections.overlap.result import OverlapResult
from distprof.sections.shares import (
    collective_label,
    has_all_members,
    hideable_ns,
    mean_step,
    only_messages,
    split_classes,
)
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Severity
from distprof.units import format_bandwidth, format_duration


@rule(
    code="COM104",
    severity=Severity.WARNING,
    since="0.1.0",
    needs=(CollectivesResult, OverlapResult, WaterfallResult, StepTimeResult, CaptureResult),
    limits={
        "min_step_ratio": Limit(0.05, "share of the step that unhideable transfer may take"),
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
    """Yield one finding for the run, naming the class that transfers most."""
    step = mean_step(waterfall, step_time)
    if not collectives.classes:
        return
    if only_messages(collectives):
        raise InsufficientEvidenceError("the recording has no collectives but sends and receives")
    classes = split_classes(collectives)
    if not classes or not step.is_split:
        raise InsufficientEvidenceError(
            "waiting and transfer could not be told apart: no collective was matched across ranks"
        )
    if not has_all_members(capture):
        raise InsufficientEvidenceError(
            "most collectives lack a member in the recording: what looks like transfer may be "
            "waiting for it"
        )
    cost = step.exposed_transfer_ns - hideable_ns(step, overlap)
    if step.exposed_wait_ns > step.exposed_transfer_ns:
        return
    if step.ratio(cost) < limits["min_step_ratio"]:
        return
    yield Draft(
        message=(
            f"{step.share(cost)} is transfer that no computation is left to hide; "
            f"{_speed(max(classes, key=lambda c: c.exposed_transfer_ns_per_step))}."
        ),
        fix=(
            "Compare the bus bandwidth with what distprof bench reaches on these machines. Far "
            "lower: look for sockets, unused network cards and groups that straddle nodes. As "
            "expected: send less (bf16 gradients, no_sync while accumulating, HSDP)."
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
    against = f", {format_bandwidth(expected)} expected" if expected else ""
    return f"{label} moves at {format_bandwidth(record.busbw_bytes_per_s)} bus bandwidth{against}"
