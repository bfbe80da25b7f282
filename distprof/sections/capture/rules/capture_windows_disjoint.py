"""# capture-windows-disjoint

## What it detects
The ranks were recorded at different times, so the recordings have few or no steps in common.

## Why it costs time
It costs no time, but distprof can compare ranks only in steps that all of them recorded. Outside
these steps it is unknown which rank waited for which.

## Evidence needed
At least two ranks. Either step numbers, or clocks that could be aligned.

## How the cost is computed
No cost: it concerns the recording, not the job.

## How to fix
Start the profiler at the same *step* on all ranks, not at a time of day or by a signal:
`schedule(wait, warmup, active)` counts steps, and a barrier before the first step makes the ranks
begin together. Record at least three steps.

## When it is wrong
Ranks of different jobs or restarts in one folder look the same. So do pipelines whose stages count
micro-batches as steps.

## Sources
PyTorch documentation of `torch.profiler.schedule`.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.capture.result import CaptureResult
from distprof.terms import Confidence, Severity
from distprof.units import capitalized, fold_ranks, format_ratio


@rule(
    code="CAP102",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={
        "overlap_ratio": Limit(
            0.5, "smallest acceptable share of recorded time that all ranks share"
        )
    },
    costs_time=False,
)
def check(capture: CaptureResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding for the run."""
    if len(capture.ranks_present) < 2:
        return
    ratio = capture.window_overlap_ratio
    lost_steps = bool(capture.dropped_steps) and not capture.steps
    if not lost_steps and (ratio is None or ratio >= limits["overlap_ratio"]):
        return
    ranks = fold_ranks(capture.ranks_present)
    common = (
        f"no step is complete on all of ranks {ranks}"
        if lost_steps
        else f"the recordings of ranks {ranks} cover different times"
    )
    shared = "" if ratio is None else f": they share {format_ratio(ratio)} of the recorded time"
    yield Draft(
        message=f"{capitalized(common)}{shared}.",
        fix=(
            "Start the profiler at the same step on all ranks (torch.profiler.schedule after a "
            "barrier) and record at least three steps."
        ),
        confidence=Confidence.MEASURED if lost_steps else Confidence.INFERRED,
        ranks=capture.ranks_present,
        evidence=("capture.steps", "capture.dropped_steps", "capture.window_overlap_ratio"),
    )
