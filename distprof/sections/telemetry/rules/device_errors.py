"""# device-errors

## What it detects
Errors of GPUs and switches: XID errors, uncorrectable memory errors, pending or failed memory
repairs, NVSwitch errors.

## Why it costs time
Some end the job now or soon (a GPU that fell off the bus, failing memory). Some make a link or a
GPU slow while it recovers. Some are faults of the program. The number shows which.

## Evidence needed
- XID errors from distprof's probe, a log of the kernel (`dmesg -T`) or of the fabric manager, or
  DCGM's `DCGM_FI_DEV_XID_ERRORS`.
- The counter of uncorrected errors.
- `nvidia-smi -q` for memory repairs and for errors since the driver was loaded.

Errors that a log dates an hour or more away from the recording are left out. Errors without a time
are marked.

## How the cost is computed
Not computed: the cost of an error depends on what it does to the job.

## How to fix
The fix depends on the number. For program errors use compute-sanitizer. For GPU errors drain the
host, reset the GPU, and replace it if the error comes back.

## When it is wrong
A kernel log without times may be from another job. XID 13, 31 and 43 are mostly program faults, but
a failing GPU can also cause them. XID 45 follows anything that ends a program. Memory errors since
the driver was loaded may be from earlier jobs.

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


class _XidErrors(msgspec.Struct):
    """Errors with one XID number, on all GPUs."""

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
    costs_time=False,
)
def check(telemetry: TelemetryResult, limits: Limits) -> Iterator[Draft]:  # noqa: ARG001
    """Yield one finding per error number."""
    if telemetry.is_missing and not (telemetry.errors or telemetry.conditions):
        raise InsufficientEvidenceError(NO_SENSORS)
    for number, errors in sorted(_xids(telemetry).items()):
        yield _xid_draft(number, errors)
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


def _xids(telemetry: TelemetryResult) -> dict[int, _XidErrors]:
    """Errors by number. An error in both the probe and the kernel log of a rank counts once."""
    by_number: dict[int, _XidErrors] = {}
    for error in telemetry.errors:
        if error.kind != "xid" or error.number is None:
            continue
        same = by_number.setdefault(error.number, _XidErrors())
        same.count += error.count
        same.is_dated |= error.is_dated
        same.devices.append(error.device)
        same.time = same.time or error.time
        if error.process and not same.process:
            pid = "" if error.pid is None else f" (pid {error.pid})"
            same.process = f"{shorten(error.process, _MAX_NAME)}{pid}"
        if error.rank is not None:
            same.ranks.add(error.rank)
    for row in telemetry.ranks:
        for number in row.xid:
            same = by_number.setdefault(number, _XidErrors())
            same.count += row.rank not in same.ranks
            same.ranks.add(row.rank)
            same.is_dated = True
    return by_number


def _xid_draft(number: int, errors: _XidErrors) -> Draft:
    meaning = meaning_of(number)
    when = "" if errors.is_dated else "; the log does not show when"
    when = f"; {'first ' if errors.count > 1 else ''}at {errors.time}" if errors.time else when
    ran = f", in {errors.process}" if errors.process else ""
    bad = Severity.ERROR if errors.is_dated else Severity.WARNING
    return Draft(
        message=f"XID {number} {_times(errors.count)} {_where(errors)}: {meaning.text}{when}{ran}.",
        fix=meaning.fix,
        confidence=Confidence.MEASURED if errors.is_dated else Confidence.INFERRED,
        ranks=tuple(sorted(errors.ranks)),
        evidence=("telemetry.errors" if errors.devices else "telemetry.ranks",),
        severity=bad if meaning.is_hardware else None,
    )


def _where(errors: _XidErrors) -> str:
    """The ranks and their GPUs, as far as they are known."""
    devices = list(dict.fromkeys(errors.devices))
    more = f" and {len(devices) - _MAX_NAMED} more" if len(devices) > _MAX_NAMED else ""
    named = f"{', '.join(devices[:_MAX_NAMED])}{more}"
    if not errors.ranks:
        return f"on {named}"
    return f"on the GPU of {name_ranks(errors.ranks)}{f' ({named})' if named else ''}"


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
