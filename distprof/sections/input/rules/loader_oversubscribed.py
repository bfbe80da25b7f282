"""# loader-oversubscribed

## What it detects
Data loaders have more workers than the host has CPUs, all CPUs are busy, and the step waits.

## Why it costs time
Workers beyond the number of CPUs have to share them. Each batch takes longer, and the training
threads get less CPU time and launch later.

## Evidence needed
A run directory with `settings.json`, and the time for which the loop waits, from traces or from
`pauses.jsonl`. The rule takes the loader with the most workers on each rank, adds up its workers
over the ranks of a host, and compares them with the CPUs that these ranks may use. It also uses how
busy the CPUs were. It stays silent if no rank waits for data, or if the CPUs have time left,
because the workers then wait for storage or the network.

## How the cost is computed
Idle GPU time while the loop waits for data, mean over ranks and steps; without traces, the logged
waits. This is an upper bound, because fewer workers may also be too slow. `input-bound` counts the
same time, so this finding replaces it.

## How to fix
Lower `num_workers` until the workers and training threads of all ranks fit the CPUs. If the workers
then cannot keep up, decode ahead of time, use more CPUs per GPU, or move decoding to the GPU.

## When it is wrong
The CPUs may be busy with another job. The rule ignores the CPU quota of a container and only counts
the CPUs that it may use.

## Sources
`torch.utils.data.DataLoader` warns if one rank has more workers than CPUs; this rule counts all
ranks of the host. Formula sheet, "Measured from traces" (input wait).
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
    limits={
        "workers_per_cpu": Limit(1.0, "data loader workers per CPU of a host"),
        "busy_ratio": Limit(0.85, "share of time for which the CPUs must be busy"),
        "wait_ratio": Limit(0.05, "share of the step that the loop may wait for data"),
        "error_ratio": Limit(0.2, "share of the step from which the finding is an error"),
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
    """Yield one finding for the run, on the host with the most workers per CPU."""
    hosts = [
        host
        for host in settings.hosts
        if _per_cpu(host) > limits["workers_per_cpu"]
        and (host.cpu_busy_ratio or 0.0) >= limits["busy_ratio"]
    ]
    if not hosts:
        return
    min_ratio = limits["wait_ratio"]
    waiting = waiting_for_input(idle, waterfall, step_time, pauses, step_log, min_ratio)
    if waiting.ratio < min_ratio:
        return
    worst = max(hosts, key=_per_cpu)
    yield Draft(
        message=(
            f"For {waiting.share} the training loop waits for data. On {worst.host or 'one host'} "
            f"{worst.num_workers:,} loader workers of {len(worst.ranks)} ranks share "
            f"{worst.num_cpus} CPUs, which are busy for "
            f"{format_ratio(worst.cpu_busy_ratio)} of the time."
        ),
        fix=(
            "Lower num_workers until the workers and training threads of all ranks fit the CPUs. "
            "If the workers then cannot keep up, decode ahead of time or on the GPU."
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
