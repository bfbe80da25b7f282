"""How findings on processes that the kernel ended are worded and weighed."""

from __future__ import annotations

from distprof.escape import shorten
from distprof.sections.telemetry.result import DeviceError
from distprof.terms import Confidence, Severity

__all__ = [
    "NO_KERNEL_LOG",
    "confidence_of",
    "number_of",
    "severity_of",
    "when_of",
    "who",
]

NO_KERNEL_LOG = "no kernel log was read: pass the output of dmesg -T with --with"
_TRAINING = ("python", "pt_", "torch", "ray::")
"""How processes of training begin: PyTorch names its threads ``pt_main_thread``, ``pt_…``."""

_MAX_NAME = 40


def who(error: DeviceError) -> str:
    """``Rank 3 (python3, pid 4242 on node-1)``."""
    pid = "" if error.pid is None else f"pid {error.pid}"
    host = f"{' ' if pid else ''}on {error.device}" if error.device else ""
    name = shorten(error.process, _MAX_NAME) or "A process"
    if error.rank is None:
        return f"{name} ({pid}{host})" if pid or host else name
    return f"Rank {error.rank} ({name}, {pid}{host})"


def number_of(error: DeviceError) -> str:
    """How often, where it is more than once."""
    return "" if error.count == 1 else f" {error.count:,} times"


def when_of(error: DeviceError) -> str:
    """When, as the log has it."""
    if not error.time:
        return ""
    return f"{', first' if error.count > 1 else ''} at {error.time}"


def confidence_of(error: DeviceError) -> Confidence:
    """Measured where the process is known to be a rank."""
    return Confidence.INFERRED if error.rank is None else Confidence.MEASURED


def severity_of(error: DeviceError) -> Severity | None:
    """A warning where the process may be of anything but training."""
    is_training = error.rank is not None or error.process.startswith(_TRAINING)
    return None if is_training else Severity.WARNING
