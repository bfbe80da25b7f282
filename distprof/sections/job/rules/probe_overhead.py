"""# probe-overhead

## What it detects
The probes themselves make the steps that were measured longer than the training's own.

## Why it costs time
Only while they run. But shares and waits in the report are those of slower steps: work on the host
counts for more than it does without a profiler, above all where it is many small operators.

## Evidence needed
A run directory with measured overhead: neighbouring blocks of steps with and without probes, and
traced steps against the untraced ones around them.

## How the cost is computed
There is no cost: a training without probes does not pay it.

## How to fix
Trace fewer ranks (`--profile-ranks`), leave out stacks and memory (`--no-stacks`,
`--no-profile-memory`), or trace fewer steps. For an always-on watch use `--mode always-on`.

## When it is wrong
Where the measured blocks differ for another reason: few steps, or a machine that others use too.
The interval says how sure the figure is.

## Sources
W. J. Conover, "Practical Nonparametric Statistics", 3.2 (the interval).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.job.result import JobResult
from distprof.terms import Severity
from distprof.units import format_ratio

_NAMES = {"tracing": "Tracing", "always_on": "The always-on probes"}
_MAKE = {"tracing": "makes", "always_on": "make"}


@rule(
    code="CAP105",
    severity=Severity.INFO,
    since="0.1.0",
    needs=(JobResult,),
    limits={
        "tracing_ratio": Limit(0.05, "share of the step that tracing may add"),
        "always_on_ratio": Limit(0.01, "share of the step that the always-on probes may add"),
    },
    costs_time=False,
)
def check(job: JobResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding per mode whose cost is surely above its limit."""
    if job.kind is None:
        return  # bare traces: who recorded them, and how, is not known
    if not job.overhead:
        why = next((note for note in job.probe_notes if "not measured" in note), "")
        raise InsufficientEvidenceError(why or "what the probes cost was not measured in this run")
    for overhead in job.overhead:
        limit = limits.get(f"{overhead.mode}_ratio")
        if limit is None or overhead.ratio <= limit or overhead.low <= 0:
            continue
        interval = f"{format_ratio(overhead.low)} to {format_ratio(overhead.high)}"
        yield Draft(
            message=(
                f"{_NAMES[overhead.mode]} {_MAKE[overhead.mode]} a step "
                f"{format_ratio(overhead.ratio)} longer ({interval}): the shares below are of "
                "slower steps than the training's own."
            ),
            fix=(
                "Trace fewer ranks or steps, without stacks and memory; use the step log's times "
                "for how long a step takes."
            ),
            ranks=overhead.ranks,
            evidence=("job.overhead", "step_log"),
        )
