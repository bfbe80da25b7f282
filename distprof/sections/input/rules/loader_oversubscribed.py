"""# loader-oversubscribed

## What it detects
Data loaders have more workers than the host has processors, all of them busy, and the step waits.

## Why it costs time
Workers beyond the number of processors take turns: each batch takes longer, and they take time from
the training threads, which launch later.

## Evidence needed
A run directory with `settings.json`: workers of the loader with most of them, added up over the
ranks of a host, against the processors that these ranks may use, and how busy these were; and the
time for which the loop waits, from traces or from `pauses.jsonl`. Silent while nothing waits for
data, or while processors have time left: then workers wait too, for storage or network.

## How the cost is computed
Idle device time while the loop waits for data, mean over ranks and steps; without traces, the
logged waits. An upper bound: fewer workers may not be enough either. `input-bound` counts the same
time and is left out.

## How to fix
Lower `num_workers` until all ranks' workers and training threads fit the processors. If they then
do not keep up: decode ahead of time, use more processors for each GPU, or move decoding to the
device.

## When it is wrong
Processors may be busy with another job's work. A container's quota of processor time is not looked
at, only the processors that it may use.

## Sources
`torch.utils.data.DataLoader` warns of more workers than processors of one rank; here all ranks of
the host count. Formula sheet, "Measured from traces" (input wait).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.idle.result import IdleResult, PausesResult
from distprof.sections.input.rules._shared import waiting_for_input
from distprof.sections.settings.result import HostSetup, SettingsResult
from distprof.sections.step_log.result import StepLogResult
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Confidence, Severity
from distprof.units import format_ratio


@rule(
    code="INP107",
    severity=Severity.WARNING,
    since="0.1.0",
    needs=(
        SettingsResult,
        IdleResult,
        WaterfallResult,
        StepTimeResult,
        PausesResult,
        StepLogResult,
    ),
    limits={
        "workers_per_cpu": Limit(1.0, "workers of data loaders for each processor of a host"),
        "busy_ratio": Limit(0.85, "share of time for which the processors have to be busy"),
        "wait_ratio": Limit(0.05, "share of the step that the loop may wait for data"),
        "error_ratio": Limit(0.2, "share of the step from which it is an error"),
    },
)
def check(
    settings: SettingsResult,
    idle: IdleResult,
    waterfall: WaterfallResult,
    step_time: StepTimeResult,
    pauses: PausesResult,
    step_log: StepLogResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Yield one finding for the run, on its fullest host."""
    hosts = [
        host
        for host in settings.hosts
        if _per_cpu(host) > limits["workers_per_cpu"]
        and (host.cpu_busy_ratio or 0.0) >= limits["busy_ratio"]
    ]
    if not hosts:
        return
    least = limits["wait_ratio"]
    waiting = waiting_for_input(idle, waterfall, step_time, pauses, step_log, least)
    if waiting.ratio < least:
        return
    worst = max(hosts, key=_per_cpu)
    yield Draft(
        message=(
            f"For {waiting.share} the loop waits for data, while on {worst.host or 'its host'} "
            f"{worst.num_workers:,} loader workers of {len(worst.ranks)} ranks share "
            f"{worst.num_cpus} processors, which are busy for "
            f"{format_ratio(worst.cpu_busy_ratio)} of the time."
        ),
        fix=(
            "Lower num_workers until the workers of all ranks and the training threads fit the "
            "processors; if they then do not keep up, decode ahead of time or on the device."
        ),
        cost_ns_per_step=waiting.ns,
        confidence=Confidence.INFERRED,
        ranks=tuple(sorted(rank for host in hosts for rank in host.ranks)),
        evidence=("settings.hosts", "idle.ranks"),
        without="input",
        severity=Severity.ERROR if waiting.ratio >= limits["error_ratio"] else None,
        explains=("INP101",),
    )


def _per_cpu(host: HostSetup) -> float:
    return host.num_workers / host.num_cpus if host.num_cpus else 0.0
