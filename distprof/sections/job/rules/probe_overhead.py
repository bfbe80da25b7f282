"""# probe-overhead

## What it detects
The probes themselves make the measured steps longer than steps without probes, or steps stay longer
after the profiler has stopped.

## Why it costs time
They cost time only while they run. But a report that could not be corrected then describes slower
steps: work on the CPU takes a larger share than without a profiler, especially if it consists of
many small operators. A CUPTI that stays attached after tracing makes each launch longer until the
process ends.

## Evidence needed
A run directory with measured overhead: neighbouring blocks of steps with and without probes, and
traced steps compared with the untraced steps before them, and steps after tracing compared with
those before it.

## How the cost is computed
No cost: training without probes does not pay it.

## How to fix
Trace fewer ranks (`--profile-ranks`), leave out stacks and memory (`--no-stacks`,
`--no-profile-memory`), or trace fewer steps. For permanent monitoring use `--mode always-on`.

## When it is wrong
The measured blocks may differ for another reason: few steps, or a shared machine. The interval
shows how certain the figure is.

## Sources
W. J. Conover, "Practical Nonparametric Statistics", 3.2 (the interval).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.job.result import JobResult, ProbeOverhead
from distprof.sections.perturbation.result import PerturbationResult
from distprof.terms import Severity
from distprof.units import format_ratio

_NAMES = {
    "tracing": "Recording CPU and GPU makes",
    "always_on": "The always-on probes make",
}


@rule(
    code="CAP105",
    severity=Severity.INFO,
    since="0.1.0",
    limits={
        "tracing_ratio": Limit(0.05, "share of the step that tracing may add"),
        "always_on_ratio": Limit(0.01, "share of the step that the always-on probes may add"),
        "after_ratio": Limit(0.01, "share of the step that may remain after tracing"),
    },
    costs_time=False,
)
def check(job: JobResult, perturbation: PerturbationResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding per mode whose cost is significantly above its limit."""
    if job.kind is None:
        return  # bare traces: how they were recorded is unknown
    if not job.overhead:
        why = next((note for note in job.probe_notes if "not measured" in note), "")
        raise InsufficientEvidenceError(
            why or "the cost of the probes was not measured in this run"
        )
    for overhead in job.overhead:
        limit = limits.get(f"{overhead.mode}_ratio")
        if limit is None or overhead.ratio <= limit or overhead.low <= 0:
            continue
        if overhead.mode == "after":
            if overhead.low > limit:
                yield _still_slower(overhead)
        elif overhead.mode == "always_on" or not perturbation.is_corrected:
            yield Draft(
                message=(
                    f"{_NAMES[overhead.mode]} a step {format_ratio(overhead.ratio)} longer "
                    f"({_interval(overhead)}): the shares below refer to steps that are slower "
                    "than without probes."
                ),
                fix=(
                    "Trace fewer ranks or steps, without stacks and memory. Take the duration of a "
                    "step from the step log."
                ),
                ranks=overhead.ranks,
                evidence=("job.overhead", "step_log"),
            )


def _still_slower(overhead: ProbeOverhead) -> Draft:
    return Draft(
        message=(
            f"Steps after tracing take {format_ratio(overhead.ratio)} longer than before it "
            f"({_interval(overhead)}): CUPTI may still be attached, or the machine became slower."
        ),
        fix=(
            "Unset TEARDOWN_CUPTI and DISABLE_CUPTI_LAZY_REINIT, and use CUDA 12.6 or newer, so "
            "that distprof can detach CUPTI; or trace a job that you can restart."
        ),
        ranks=overhead.ranks,
        evidence=("job.overhead", "step_log"),
    )


def _interval(overhead: ProbeOverhead) -> str:
    return f"{format_ratio(overhead.low)} to {format_ratio(overhead.high)}"
