"""# cpu-backend-on-gpus

## What it detects
Ranks compute on GPUs, and their collectives run on gloo, which is made for CPUs.

## Why it costs time
gloo copies every buffer to the host, sends it over TCP with the processor adding up, and copies the
result back. It reaches a few GB/s where NCCL (RCCL, XCCL) reaches hundreds.

## Evidence needed
Traces of GPUs that name the backend of the default process group, in a job of several ranks.

## How the cost is computed
All exposed transfer of the step: what remains of it on the right backend is a small part.

## How to fix
`init_process_group("nccl")`, or `"cpu:gloo,cuda:nccl"` if objects are exchanged from the host too.
If NCCL was avoided because it failed, its log (`NCCL_DEBUG=INFO`) says why.

## When it is wrong
Where the process group is for control alone and gradients travel in a library of their own.

## Sources
PyTorch documentation, "Distributed communication package" (which backend to use).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limits, rule
from distprof.sections.capture.result import CaptureResult
from distprof.sections.efficiency.measure import CPU
from distprof.sections.efficiency.result import EfficiencyResult
from distprof.sections.shares import mean_step
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Severity

_FOR_CPUS = "gloo"


@rule(
    code="COM124",
    severity=Severity.WARNING,
    since="0.1.0",
    needs=(EfficiencyResult, CaptureResult, WaterfallResult, StepTimeResult),
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
        raise InsufficientEvidenceError("the traces do not name the backend of process groups")
    if efficiency.backend != _FOR_CPUS:
        return
    cost = mean_step(waterfall, step_time).exposed_transfer_ns
    yield Draft(
        message=(
            f"The ranks compute on {efficiency.device}, their collectives run on {_FOR_CPUS}."
        ),
        fix='Use init_process_group("nccl"), or "cpu:gloo,cuda:nccl".',
        cost_ns_per_step=cost or None,
        evidence=("efficiency.backend", "waterfall.all"),
    )
