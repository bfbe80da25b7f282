"""Wording and severity of findings on processes that the kernel ended."""

from __future__ import annotations

from collections.abc import Iterator

from distprof.escape import shorten
from distprof.rules.base import Draft, InsufficientEvidenceError
from distprof.sections.telemetry.result import DeviceError, TelemetryResult
from distprof.terms import Confidence, Severity

_NO_KERNEL_LOG = "no kernel log was read: pass the output of dmesg -T with --with"
_TRAINING = ("python", "pt_", "torch", "ray::")
"""Prefixes of training process names. PyTorch names its threads ``pt_main_thread``, ``pt_…``."""

_MAX_NAME = 40


def who(error: DeviceError) -> str:
    """For example ``Rank 3 (python3, pid 4242 on node-1)``."""
    pid = "" if error.pid is None else f"pid {error.pid}"
    host = f"{' ' if pid else ''}on {error.device}" if error.device else ""
    name = shorten(error.process, _MAX_NAME) or "A process"
    if error.rank is None:
        return f"{name} ({pid}{host})" if pid or host else name
    return f"Rank {error.rank} ({name}, {pid}{host})"


def number_of(error: DeviceError) -> str:
    """Number of times, if more than once."""
    return "" if error.count == 1 else f" {error.count:,} times"


def when_of(error: DeviceError) -> str:
    """Time of the first error, if the log has one."""
    if not error.time:
        return ""
    return f"{', first' if error.count > 1 else ''} at {error.time}"


def ended(telemetry: TelemetryResult, kind: str) -> Iterator[DeviceError]:
    """Processes that the kernel ended in this way.

    Raises:
        InsufficientEvidenceError: If no kernel log was read.
    """
    if telemetry.is_missing and not telemetry.kernel_logs:
        raise InsufficientEvidenceError(_NO_KERNEL_LOG)
    return (error for error in telemetry.errors if error.kind == kind)


def draft_of(error: DeviceError, message: str, fix: str) -> Draft:
    """A finding, *measured* if the process is known to be a rank."""
    return Draft(
        message=message,
        fix=fix,
        confidence=Confidence.INFERRED if error.rank is None else Confidence.MEASURED,
        ranks=() if error.rank is None else (error.rank,),
        evidence=("telemetry.errors",),
        severity=_severity_of(error),
    )


def _severity_of(error: DeviceError) -> Severity | None:
    """A warning if the process does not look like training."""
    is_training = error.rank is not None or error.process.startswith(_TRAINING)
    return None if is_training else Severity.WARNING
