"""# exposed-communication

## What it detects
Exposed communication takes more than a fifth of the step.

## Why it costs time
While only communication runs, the GPU's arithmetic units are idle. The share grows with the number
of ranks: a fifth of the step on 16 GPUs is often half of it on 256.

## Evidence needed
GPU activities of at least one rank. Waiting that the start of the profiler may have caused
(`capture.start_wait_ns`) is left out. With matched collectives, the finding separates transfer from
waiting for late ranks. If most collectives lack a member in the recording, the missing member may
have arrived last, and apparent transfer may be waiting for it. The finding is marked *inferred* if
that part is the largest.

## How the cost is computed
Mean exposed communication over ranks and steps: the union of communication intervals minus the
union of computation intervals. This is the total, and other findings name its parts: waiting
(`persistent-straggler`, `transient-straggler`, `rotating-straggler`,
`arrival-skew-bound-collectives`), transfer that could overlap (`low-overlap`), and network-bound
transfer (`transfer-bound-collectives`, `tiny-collectives`). Never add its cost to theirs. If one
finding explains at least 80 % of it (small collectives, sharding across nodes, gradients reduced
too often or too late, sequences of different lengths), this finding is omitted.

## How to fix
Look at the split. Mostly waiting: find the late rank before you tune the network. Mostly transfer:
overlap it, send less (gradients in bf16, larger micro-batches or gradient accumulation with
`no_sync`, HSDP instead of sharding across nodes), or move the axis with the most traffic inside the
node. Mostly waiting in send and recv: use more micro-batches or an interleaved pipeline schedule.

## When it is wrong
A tiny test run has little to compute, so its share says nothing about the real run. A recording of
one step may include the start-up of the communicator.

## Sources
Formula sheet, "Measured from traces" (exposed communication) and "Anti-patterns" (communication
above 20 % of the step).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.capture.result import CaptureResult
from distprof.sections.gradients.result import GradientGroup, GradientsResult
from distprof.sections.shares import MeanStep, has_all_members, mean_step
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Confidence, Severity
from distprof.units import format_duration


@rule(
    code="COM102",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={
        "exposed_ratio": Limit(0.2, "largest acceptable share of exposed communication in the step")
    },
)
def check(
    waterfall: WaterfallResult,
    step_time: StepTimeResult,
    capture: CaptureResult,
    gradients: GradientsResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Yield one finding for the run."""
    step = mean_step(waterfall, step_time)
    transfer = _TRANSFER if has_all_members(capture) else _DOUBTFUL
    parts = _parts(step, transfer, capture.start_wait_ns)
    exposed = sum(ns for ns, _ in parts)
    if step.ratio(exposed) <= limits["exposed_ratio"]:
        return
    held_up = max(
        (group for group in gradients.groups if group.is_held_up),
        key=lambda group: group.bucket_fixed_ns or 0,
        default=None,
    )
    split = ", ".join(f"{format_duration(ns)} {what}" for ns, what in parts if ns > 0)
    yield Draft(
        message=(
            f"{step.share(exposed)} is exposed communication: {split}. Other findings name parts "
            f"of the same time.{_held_up_words(held_up)}"
        ),
        fix=_FIXES[parts[0][1]] if held_up is None else _FIX_HELD_UP,
        cost_ns_per_step=exposed,
        confidence=Confidence.INFERRED if parts[0][1] == _DOUBTFUL else Confidence.MEASURED,
        evidence=("waterfall.all", "breakdown.ranks"),
        without="communication",
        comes_first=held_up is not None,
    )


_FIX_HELD_UP = (
    "Find what each all-reduce waits for before you tune buckets or overlap: record all ranks to "
    "see who is late, and look for a broken path (NCCL_DEBUG=INFO, retransmissions, link errors)."
)


def _held_up_words(group: GradientGroup | None) -> str:
    """What the sizes of buckets do not explain."""
    if group is None:
        return ""
    return (
        f" Each all-reduce of gradients takes {format_duration(group.bucket_fixed_ns)} whatever "
        "its size: it waits for a late rank or a broken path."
    )


_WAIT, _TRANSFER = "waiting for late ranks", "transfer"
_DOUBTFUL = "transfer or waiting for unrecorded ranks"
_P2P, _UNSPLIT = "waiting in send and recv", "waiting or transfer, which cannot be separated"

_FIXES = {
    _WAIT: "Waiting dominates: find why ranks arrive late before tuning the network.",
    _TRANSFER: (
        "Transfer dominates: overlap it with computation, send less (bf16 gradients, no_sync while "
        "accumulating, larger micro-batches), or keep the axis with the most traffic inside the "
        "node."
    ),
    _DOUBTFUL: (
        "Record all ranks of a process group to separate waiting from transfer. Overlap transfer "
        "with computation, or send less."
    ),
    _P2P: (
        "Waiting in send and recv dominates: in a pipeline, use more micro-batches or an "
        "interleaved schedule. Elsewhere, find why the peer is late."
    ),
    _UNSPLIT: "Record all ranks of a process group to separate waiting from transfer.",
}


def _parts(step: MeanStep, transfer: str, start_wait_ns: int) -> list[tuple[int, str]]:
    """Mean exposed communication per step by cause, largest first, without the profiler's start."""
    total = step.total
    parts = [
        (max(step.mean(total.exposed_wait_ns) - start_wait_ns, 0), _WAIT),
        (step.mean(total.exposed_transfer_ns), transfer),
        (step.mean(total.exposed_p2p_wait_ns), _P2P),
        (step.mean(total.exposed_comm_unsplit_ns), _UNSPLIT),
    ]
    return sorted(parts, key=lambda part: -part[0])
