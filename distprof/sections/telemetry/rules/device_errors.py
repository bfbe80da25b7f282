"""# device-errors

## What it detects
Errors of GPUs and switches: XID errors, uncorrectable memory errors, memory that waits for a reset
to be repaired or could not be repaired, NVSwitch errors.

## Why it costs time
Some end the job now or soon (a GPU that fell off the bus, failing memory). Some make a link or a
GPU slow while it recovers. Some are faults of the program. The number shows which.

## Evidence needed
XID errors that distprof's probe saw, a log of the kernel (`dmesg -T`), of the fabric manager,
or DCGM's `DCGM_FI_DEV_XID_ERRORS`; the counter of uncorrected errors; `nvidia-smi -q` for repairs
of memory and for errors since the driver was loaded. Errors that a log dates an
hour or more away from the recording are left out; errors without a time are marked.

## How the cost is computed
Not computed: the cost of an error depends on what it does to the job.

## How to fix
By number. Program errors: use compute-sanitizer. GPU errors: drain the host, reset the GPU, replace
it if the error comes back.

## When it is wrong
A kernel log without times may be of another job. XID 13, 31 and 43 are mostly program
faults, but a failing GPU shows them too. XID 45 follows anything that ends a program. Memory errors
since the driver was loaded may be of earlier jobs.

## Sources
NVIDIA, "XID Errors"; "GPU Memory Error Management"; "Fabric Manager for NVIDIA NVSwitch Systems".
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from distprof.escape import shorten
from distprof.rules.base import Draft, InsufficientEvidenceError, Limits, rule
from distprof.sections.telemetry.result import DeviceError, TelemetryResult
from distprof.sections.telemetry.rules._conditions import wrong_conditions
from distprof.sections.telemetry.rules._shared import NO_SENSORS
from distprof.sections.telemetry.rules._xid_errors import meaning_of
from distprof.terms import Confidence, Severity
from distprof.units import name_ranks

_MAX_NAMED = 4
_MAX_NAME = 40


class _Found(msgspec.Struct):
    """One number, on all GPUs."""

    ranks: set[int] = msgspec.field(default_factory=set)
    devices: list[str] = msgspec.field(default_factory=list)
    count: int = 0
    is_dated: bool = False
    time: str = ""
    process: str = ""


@rule(
    code="TEL103",
    severity=Severity.WARNING,
    since="0.1.0",
    needs=(TelemetryResult,),
    costs_time=False,
)
def check(telemetry: TelemetryResult, limits: Limits) -> Iterator[Draft]:  # noqa: ARG001
    """Yield one finding per number of an error."""
    if telemetry.is_missing and not (telemetry.errors or telemetry.conditions):
        raise InsufficientEvidenceError(NO_SENSORS)
    for number, found in sorted(_xids(telemetry).items()):
        yield _xid_draft(number, found)
    wrong = [row for row in telemetry.ranks if row.ecc_uncorrected]
    if wrong:
        yield Draft(
            message=(
                f"GPU memory of {name_ranks(row.rank for row in wrong)} had "
                f"{sum(row.ecc_uncorrected or 0 for row in wrong):,} uncorrectable errors during "
                "the recording."
            ),
            fix=meaning_of(48).fix,
            ranks=tuple(row.rank for row in wrong),
            evidence=("telemetry.ranks",),
            severity=Severity.ERROR,
        )
    yield from wrong_conditions(telemetry.conditions, {row.rank for row in wrong})
    yield from (_fabric_draft(error) for error in telemetry.errors if error.kind == "fabric")


def _xids(telemetry: TelemetryResult) -> dict[int, _Found]:
    """Errors by number. An error in both the probe and the kernel log of a rank counts once."""
    found: dict[int, _Found] = {}
    for error in telemetry.errors:
        if error.kind != "xid" or error.number is None:
            continue
        one = found.setdefault(error.number, _Found())
        one.count += error.count
        one.is_dated |= error.is_dated
        one.devices.append(error.device)
        one.time = one.time or error.time
        if error.process and not one.process:
            pid = "" if error.pid is None else f" (pid {error.pid})"
            one.process = f"{shorten(error.process, _MAX_NAME)}{pid}"
        if error.rank is not None:
            one.ranks.add(error.rank)
    for row in telemetry.ranks:
        for number in row.xid:
            one = found.setdefault(number, _Found())
            one.count += row.rank not in one.ranks
            one.ranks.add(row.rank)
            one.is_dated = True
    return found


def _xid_draft(number: int, found: _Found) -> Draft:
    meaning = meaning_of(number)
    when = "" if found.is_dated else "; the log does not show when"
    when = f"; {'first ' if found.count > 1 else ''}at {found.time}" if found.time else when
    ran = f", in {found.process}" if found.process else ""
    bad = Severity.ERROR if found.is_dated else Severity.WARNING
    return Draft(
        message=f"XID {number} {_times(found.count)} {_where(found)}: {meaning.text}{when}{ran}.",
        fix=meaning.fix,
        confidence=Confidence.MEASURED if found.is_dated else Confidence.INFERRED,
        ranks=tuple(sorted(found.ranks)),
        evidence=("telemetry.errors" if found.devices else "telemetry.ranks",),
        severity=bad if meaning.is_hardware else None,
    )


def _where(found: _Found) -> str:
    """The ranks and their GPUs, as far as they are known."""
    devices = list(dict.fromkeys(found.devices))
    more = f" and {len(devices) - _MAX_NAMED} more" if len(devices) > _MAX_NAMED else ""
    named = f"{', '.join(devices[:_MAX_NAMED])}{more}"
    if not found.ranks:
        return f"on {named}"
    return f"on the GPU of {name_ranks(found.ranks)}{f' ({named})' if named else ''}"


def _fabric_draft(error: DeviceError) -> Draft:
    number = "" if error.number is None else f" {error.number}"
    is_fatal = "fatal" in error.text and "non-fatal" not in error.text
    return Draft(
        message=(
            f"{error.device or 'An NVSwitch'} logged error{number} {_times(error.count)}: "
            f"{error.text.rstrip('.')[:200]}."
        ),
        fix=(
            "Look the number up in the fabric manager's guide, reset the host's GPUs and switches, "
            "and have the switch's board and cables checked if the error comes back."
        ),
        confidence=Confidence.INFERRED,
        evidence=("telemetry.errors",),
        severity=Severity.ERROR if is_fatal else None,
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"
