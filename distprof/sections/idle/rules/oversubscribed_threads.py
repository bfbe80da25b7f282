"""# oversubscribed-threads

## What it detects
Ranks that compute on the CPU start more threads than the host has processors.

## Why it costs time
torch computes an operator with all its threads and waits for the last of them. When ranks of one
host together have more threads than processors, threads wait for each other's turn at the end of
each operator, and ranks for each other at the end of each step.

## Evidence needed
A run directory with `settings.json`: threads of torch in each rank, times ranks of the host,
against the processors that these ranks may use, and how busy these were. Only ranks without an
accelerator are judged.

## How the cost is computed
None is given: no recording tells what the step would take with fewer threads.

## How to fix
Set `OMP_NUM_THREADS` (or call `torch.set_num_threads`) to the processors of the host divided by its
ranks, and pin each rank to its own (`torchrun --numa-binding`, `taskset`, `numactl`).

## When it is wrong
Ranks that take turns, as the stages of a pipeline do, may share processors; they are busy then only
if something else runs there.

## Sources
PyTorch documentation, "CPU threading and TorchScript inference" (oversubscription), and of
`torchrun`, which sets `OMP_NUM_THREADS=1` for this reason.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.settings.result import HostSetup, SettingsResult
from distprof.terms import Confidence, Severity
from distprof.units import format_ratio


@rule(
    code="HST108",
    severity=Severity.WARNING,
    since="0.1.0",
    needs=(SettingsResult,),
    limits={
        "threads_per_cpu": Limit(1.5, "threads of torch for each processor of a host"),
        "busy_ratio": Limit(0.85, "share of time for which the processors have to be busy"),
    },
    costs_time=False,
)
def check(settings: SettingsResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding for the run, on its fullest host."""
    hosts = [
        host
        for host in settings.hosts
        if _per_cpu(host) > limits["threads_per_cpu"]
        and (host.cpu_busy_ratio or 0.0) >= limits["busy_ratio"]
    ]
    if not hosts:
        return
    worst = max(hosts, key=_per_cpu)
    yield Draft(
        message=(
            f"On {worst.host or 'one host'} {worst.num_local_ranks} ranks with "
            f"{worst.num_threads} threads each share {worst.num_cpus} processors, which are busy "
            f"for {format_ratio(worst.cpu_busy_ratio)} of the time."
        ),
        fix=(
            "Set OMP_NUM_THREADS to the processors of the host divided by its ranks, and pin each "
            "rank to its own."
        ),
        confidence=Confidence.INFERRED,
        ranks=tuple(sorted(rank for host in hosts for rank in host.ranks)),
        evidence=("settings.hosts",),
    )


def _per_cpu(host: HostSetup) -> float:
    """0 where one thread each is all there can be, or a device computes."""
    if not host.is_cpu or not host.num_cpus or (host.num_threads or 0) < 2:
        return 0.0
    return host.num_local_ranks * (host.num_threads or 0) / host.num_cpus
