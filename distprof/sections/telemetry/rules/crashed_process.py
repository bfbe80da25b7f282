"""# crashed-process

## What it detects
The kernel logged that a process crashed: a segmentation fault, an illegal instruction, or another
trap.

## Why it costs time
A rank that crashes ends the job: the other ranks wait for it until their watchdog ends them, and
all steps since the last checkpoint are lost. Its own log often ends without a message.

## Evidence needed
A kernel log: `dmesg -T`, or `journalctl -k`. A process is a rank if run.json lists its process id
on that host. Crashes that the log dates an hour or more away from the recording are left out. The
rule is silent for jobs on CPUs without a kernel log.

## How the cost is computed
Not computed: there is no cost per step.

## How to fix
Look up the library that the kernel names: the fault happened there. Keep a core dump
(`ulimit -c unlimited`), or run with `python -X faulthandler`. If the same program crashes on only
one host, test the host's memory.

## When it is wrong
The process does not belong to the job, but to another user or a service of the host. The kernel
names the thread that crashed: only a rank's main thread has the process id of the rank. A process
in a container has another id on its host.

## Sources
Linux, `show_signal_msg` in `arch/x86/mm/fault.c`; Python documentation of `faulthandler`.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.escape import shorten
from distprof.rules.base import Draft, Limits, rule
from distprof.sections.telemetry.result import DeviceError, TelemetryResult
from distprof.sections.telemetry.rules._processes import draft_of, ended, number_of, when_of, who
from distprof.terms import Severity

_MAX_TEXT = 160


@rule(
    code="TEL108",
    severity=Severity.ERROR,
    since="0.1.0",
    costs_time=False,
)
def check(telemetry: TelemetryResult, limits: Limits) -> Iterator[Draft]:  # noqa: ARG001
    """Yield one finding per process name and host."""
    yield from map(_draft, ended(telemetry, "crash"))


def _draft(error: DeviceError) -> Draft:
    text = shorten(error.text.rstrip("."), _MAX_TEXT)
    return draft_of(
        error,
        message=f"{who(error)} crashed{number_of(error)}{when_of(error)}: {text}.",
        fix=(
            "Look at the named library, and run with python -X faulthandler to see the line of the "
            "program. If it happens on only one host, test that host's memory."
        ),
    )
