"""# host-out-of-memory

## What it detects
The kernel's OOM killer ended a process, because the host or the memory cgroup of the process (a
container, a job of SLURM) had no memory left.

## Why it costs time
The rank, or a worker of its data loader, ends without a message (SIGKILL). The other ranks wait for
it until their watchdog ends them, and all steps since the last checkpoint are lost.

## Evidence needed
A kernel log: `dmesg -T`, or `journalctl -k`. A process is a rank if run.json lists its process id
on that host. Kills that the log dates an hour or more away from the recording are left out. The
rule is silent for jobs on CPUs without a kernel log.

## How the cost is computed
Not computed: there is no cost per step.

## How to fix
Use fewer or smaller loader workers and a smaller prefetch factor, do not gather checkpoints on one
rank, and free pinned memory. If a cgroup was full, request more memory (`--mem`, the limit of the
container).

## When it is wrong
The process does not belong to the job. The OOM killer ends the largest process, which need not be
the one whose memory grew.

## Sources
Linux, `mm/oom_kill.c`; Linux documentation of memory cgroups.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limits, rule
from distprof.sections.telemetry.result import DeviceError, TelemetryResult
from distprof.sections.telemetry.rules._processes import draft_of, ended, number_of, when_of, who
from distprof.terms import Severity
from distprof.units import format_bytes

_CGROUP = "memory cgroup"


@rule(
    code="TEL109",
    severity=Severity.ERROR,
    since="0.1.0",
    costs_time=False,
)
def check(telemetry: TelemetryResult, limits: Limits) -> Iterator[Draft]:  # noqa: ARG001
    """Yield one finding per process name and host."""
    yield from map(_draft, ended(telemetry, "oom"))


def _draft(error: DeviceError) -> Draft:
    is_cgroup = _CGROUP in error.text.lower()
    full = (
        "its memory cgroup (container or job) was full"
        if is_cgroup
        else "the host had no memory left"
    )
    held = f", when it held {format_bytes(error.memory_bytes)}" if error.memory_bytes else ""
    return draft_of(
        error,
        message=f"{who(error)} was killed by the kernel{number_of(error)}{when_of(error)}{held}: "
        f"{full}.",
        fix=(
            "Use fewer loader workers and less prefetching, and free host memory"
            f"{', or raise the memory limit of the job or container' if is_cgroup else ''}."
        ),
    )
