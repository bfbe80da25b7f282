"""# capture-start-transient

## What it detects
The start of the profiler disturbed the first recorded step, and distprof left that step out.

## Why it costs time
It costs no time outside the recording. Profilers start at different moments on different ranks, so
the first collective waits for the last profiler. The last rank then looks like an extreme
straggler.

## Evidence needed
Collectives matched across ranks in at least two steps.

## How the cost is computed
No cost: no number in the report includes the step.

## How to fix
Give the profiler time to settle: `torch.profiler.schedule(wait=2, warmup=3, active=5)` and a
barrier before the first active step.

## When it is wrong
A real stall in the first recorded step looks the same. Record again with a longer warm-up: a real
stall reappears.

## Sources
PyTorch documentation of `torch.profiler.schedule`.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limits, rule
from distprof.sections.capture.result import CaptureResult
from distprof.terms import Confidence, Severity
from distprof.units import fold_ranks


@rule(code="CAP103", severity=Severity.INFO, since="0.1.0", costs_time=False)
def check(capture: CaptureResult, limits: Limits) -> Iterator[Draft]:  # noqa: ARG001
    """Yield one finding for the run."""
    if not capture.transient_steps:
        return
    steps = fold_ranks(capture.transient_steps)
    yield Draft(
        message=(
            f"Step {steps} is left out: its first collective waits until the profiler of the last "
            "rank has started."
        ),
        fix=(
            "Use torch.profiler.schedule with warmup=3 or more, and a barrier before the first "
            "active step."
        ),
        confidence=Confidence.INFERRED,
        steps=capture.transient_steps,
        evidence=("capture.transient_steps",),
    )
