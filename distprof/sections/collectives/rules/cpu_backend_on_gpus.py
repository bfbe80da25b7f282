"""# cpu-backend-on-gpus

## What it detects
Ranks compute on GPUs, but their collectives run on gloo, which is made for CPUs.

## Why it costs time
gloo copies every buffer to CPU memory, sends it over TCP, reduces it on the CPU, and copies the
result back. It reaches a few GB/s where NCCL (RCCL, XCCL) reaches hundreds.

## Evidence needed
GPU traces that name the backend of the default process group, in a job of several ranks.

## How the cost is computed
All exposed transfer of the step. Only a small part of it remains with the right backend.

## How to fix
Use `init_process_group("nccl")`, or `"cpu:gloo,cuda:nccl"` if the ranks also exchange objects in
CPU memory. If you avoided NCCL because it failed, its log (`NCCL_DEBUG=INFO`) says why.

## When it is wrong
The process group only serves control messages, and another library moves the gradients.

## Sources
PyTorch documentation, "Distributed communication package" (which backend to use).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limits, rule
from distprof.sections.capture.result import CaptureResult
from distprof.sections.efficiency.result import CPU, EfficiencyResult
from distprof.sections.shares import mean_step
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Severity

_CPU_BACKEND = "gloo"


@rule(
    code="COM124",
    severity=Severity.WARNING,
    since="0.1.0",
)
def check(
    efficiency: EfficiencyResult,
    capture: CaptureResult,
    waterfall: WaterfallResult,
    step_time: StepTimeResult,
    limits: Limits,  # noqa: ARG001
) -> Iterator[Draft]:
    """Yield one finding for the run."""
    num_ranks = capture.world_size or len(capture.ranks_present)
    if efficiency.device in ("", CPU) or num_ranks < 2 or not capture.ranks_present:
        return
    if not efficiency.backend:
        raise InsufficientEvidenceError("the traces do not name the backend of the process groups")
    if efficiency.backend != _CPU_BACKEND:
        return
    cost = mean_step(waterfall, step_time).exposed_transfer_ns
    yield Draft(
        message=(
            f"The ranks compute on {efficiency.device}, but their collectives run on "
            f"{_CPU_BACKEND}."
        ),
        fix='Use init_process_group("nccl"), or "cpu:gloo,cuda:nccl".',
        cost_ns_per_step=cost or None,
        evidence=("efficiency.backend", "waterfall.all"),
    )
