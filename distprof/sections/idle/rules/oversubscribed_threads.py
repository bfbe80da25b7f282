"""# oversubscribed-threads

## What it detects
Ranks that compute on the CPU start more threads than the host has CPUs.

## Why it costs time
torch computes an operator with all its threads and waits for the last of them. If the ranks of one
host together have more threads than CPUs, threads wait for a CPU in each operator, and ranks wait
for each other at the end of each step.

## Evidence needed
A run directory with `settings.json`. It holds the number of torch threads per rank, the number of
ranks per host, the CPUs that these ranks may use, and how busy the CPUs were. The rule judges only
ranks without an accelerator.

## How the cost is computed
There is no cost: no recording shows how long the step would take with fewer threads.

## How to fix
Set `OMP_NUM_THREADS` (or call `torch.set_num_threads`) to the number of CPUs of the host divided by
its ranks, and pin each rank to separate CPUs (`torchrun --numa-binding`, `taskset`, `numactl`).

## When it is wrong
Ranks that compute alternately, such as the stages of a pipeline, may share CPUs. These CPUs are
then busy only if something else runs on them.

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
    limits={
        "threads_per_cpu": Limit(1.5, "torch threads per CPU of a host"),
        "busy_ratio": Limit(0.85, "share of time for which the CPUs must be busy"),
    },
    costs_time=False,
)
def check(settings: SettingsResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding for the run, on the host with the most threads per CPU."""
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
            f"{worst.num_threads} threads each share {worst.num_cpus} CPUs, which are busy for "
            f"{format_ratio(worst.cpu_busy_ratio)} of the time."
        ),
        fix=(
            "Set OMP_NUM_THREADS to the number of CPUs of the host divided by its ranks, and pin "
            "each rank to separate CPUs."
        ),
        confidence=Confidence.INFERRED,
        ranks=tuple(sorted(rank for host in hosts for rank in host.ranks)),
        evidence=("settings.hosts",),
    )


def _per_cpu(host: HostSetup) -> float:
    """Threads per CPU; 0 if ranks have one thread each or compute on an accelerator."""
    if not host.is_cpu or not host.num_cpus or (host.num_threads or 0) < 2:
        return 0.0
    return host.num_local_ranks * (host.num_threads or 0) / host.num_cpus
