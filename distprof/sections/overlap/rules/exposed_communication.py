"""# exposed-communication

## What it detects
Communication that no computation hides takes more than a fifth of the step.

## Why it costs time
While only communication runs, the device's arithmetic units stand still. The share grows with the
number of ranks, so what costs a fifth on 16 GPUs often costs half on 256.

## Evidence needed
Device activities of at least one rank. With matched collectives the finding says how much is
transfer and how much is waiting for late ranks. Where most collectives lack a member in the
recording, that member may have come last: what looks like transfer may be waiting for it, and the
finding is marked *inferred* if that is the largest part.

## How the cost is computed
Exposed communication as a mean over ranks and steps: the union of communication intervals less
the union of computation intervals. This is the whole, and other findings name its parts: waiting
(`persistent-straggler`, `transient-straggler`, `rotating-straggler`,
`arrival-skew-bound-collectives`), hideable transfer (`low-overlap`), and transfer that the
network bounds (`transfer-bound-collectives`, `tiny-collectives`). Never add it to theirs. Where one
finding names the reason of at least 80 % of it (small collectives, sharding across nodes, gradients
reduced too often or too late, sequences of unlike length), this one is left out.

## How to fix
Look at the split. Mostly waiting: find the late rank, and leave the network alone. Mostly
transfer: overlap it, send less of it (gradients in bf16, larger micro-batches or gradient
accumulation with `no_sync`, HSDP instead of sharding across nodes), or move the chatty axis
inside the node. Mostly waiting in send and recv: more micro-batches or an interleaved pipeline
schedule.

## When it is wrong
A tiny test run has little to compute, and its share says nothing about the real one. A run of one
step may hold the start-up of the communicator.

## Sources
Formula sheet, "Measured from traces" (exposed communication) and "Anti-patterns" (communication
above 20 % of the step).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.capture.result import CaptureResult
from distprof.sections.shares import MeanStep, has_all_members, mean_step
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Confidence, Severity
from distprof.units import format_duration


@rule(
    code="COM102",
    severity=Severity.WARNING,
    since="0.1.0",
    needs=(WaterfallResult, StepTimeResult, CaptureResult),
    limits={"exposed_ratio": Limit(0.2, "share of the step that exposed communication may take")},
)
def check(
    waterfall: WaterfallResult, step_time: StepTimeResult, capture: CaptureResult, limits: Limits
) -> Iterator[Draft]:
    """Yield one finding for the run."""
    step = mean_step(waterfall, step_time)
    parts = _parts(step, _TRANSFER if has_all_members(capture) else _DOUBTFUL)
    exposed = sum(ns for ns, _ in parts)
    if step.ratio(exposed) <= limits["exposed_ratio"]:
        return
    split = ", ".join(f"{format_duration(ns)} {what}" for ns, what in parts if ns > 0)
    yield Draft(
        message=(
            f"{step.share(exposed)} is communication that nothing hides: {split}. "
            "Other findings name parts of the same time."
        ),
        fix=_FIXES[parts[0][1]],
        cost_ns_per_step=exposed,
        confidence=Confidence.INFERRED if parts[0][1] == _DOUBTFUL else Confidence.MEASURED,
        evidence=("waterfall.all", "breakdown.ranks"),
        without="communication",
    )


_WAIT, _TRANSFER = "waiting for late ranks", "transfer"
_DOUBTFUL = "transfer or waiting for ranks that are not recorded"
_P2P, _UNSPLIT = "waiting in send and recv", "not told apart into waiting and transfer"

_FIXES = {
    _WAIT: "Waiting dominates: find why ranks arrive late before tuning the network.",
    _TRANSFER: (
        "Transfer dominates: overlap it with computation, send less (bf16 gradients, no_sync while "
        "accumulating, larger micro-batches), or keep the chatty axis inside the node."
    ),
    _DOUBTFUL: (
        "Record all ranks of a process group: then waiting can be told from transfer. Transfer can "
        "be overlapped with computation or made smaller."
    ),
    _P2P: (
        "Waiting in send and recv dominates: in a pipeline, use more micro-batches or an "
        "interleaved schedule; elsewhere, find why the other end is late."
    ),
    _UNSPLIT: "Record all ranks of a process group: then waiting can be told from transfer.",
}


def _parts(step: MeanStep, transfer: str) -> list[tuple[int, str]]:
    """Exposed communication by nature, largest first, mean per step."""
    total = step.total
    parts = [
        (step.mean(total.exposed_wait_ns), _WAIT),
        (step.mean(total.exposed_transfer_ns), transfer),
        (step.mean(total.exposed_p2p_wait_ns), _P2P),
        (step.mean(total.exposed_comm_unsplit_ns), _UNSPLIT),
    ]
    return sorted(parts, key=lambda part: -part[0])
