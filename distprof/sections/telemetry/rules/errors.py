"""Rules about errors of devices and processes."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from distprof.escape import fitting, shorten
from distprof.hardware import XidMeaning, xid_meaning
from distprof.rules.base import Draft, InsufficientEvidenceError, advice, rule
from distprof.sections.table import counted
from distprof.sections.telemetry import DeviceError, TelemetryResult
from distprof.sections.telemetry.rules.devices import NO_SENSORS, wrong_conditions
from distprof.terms import Confidence, Severity
from distprof.units import capitalized, few_names, format_bytes, name_ranks

_NO_KERNEL_LOG = "no kernel log was read: pass the output of dmesg -T with --with"
_TRAINING = ("python", "pt_", "torch", "ray::")
"""Prefixes of training process names. PyTorch names its threads ``pt_main_thread``, ``pt_…``."""

_MAX_NAME = 40
_FEW = 24


def who(error: DeviceError) -> str:
    """For example ``Rank 3 (python3, pid 4242 on node-1)``."""
    pid = "" if error.pid is None else f"pid {error.pid}"
    host = f"{' ' if pid else ''}on {error.device}" if error.device else ""
    name = shorten(error.process, _MAX_NAME) or "A process"
    if error.rank is None:
        return f"{name} ({pid}{host})" if pid or host else name
    return f"Rank {error.rank} ({name}, {pid}{host})"


def subject_of(error: DeviceError) -> str:
    """The rank, else the name of the process, in few characters."""
    if error.rank is not None:
        return f"rank {error.rank}"
    return shorten(error.process, _FEW) or "a process"


def when_of(error: DeviceError) -> str:
    """Time of the first error, if the log has one."""
    if not error.time:
        return ""
    return f"{', first' if error.count > 1 else ''} at {error.time}"


def ended(telemetry: TelemetryResult, kind: str) -> Iterator[DeviceError]:
    """Processes that the kernel ended in this way."""
    if telemetry.is_missing and not telemetry.kernel_logs:
        raise InsufficientEvidenceError(_NO_KERNEL_LOG)
    return (error for error in telemetry.errors if error.kind == kind)


def draft_of(error: DeviceError, headline: str, message: str, fix: str) -> Draft:
    """A finding, *measured* if the process is known to be a rank."""
    is_training = error.rank is not None or error.process.startswith(_TRAINING)
    return Draft(
        headline=headline,
        message=message,
        fix=fix,
        confidence=Confidence.INFERRED if error.rank is None else Confidence.MEASURED,
        ranks=() if error.rank is None else (error.rank,),
        evidence=("telemetry.errors",),
        severity=None if is_training else Severity.WARNING,
    )


_UNKNOWN = XidMeaning(
    "see NVIDIA's list of XID errors",
    "Look the number up in NVIDIA's list of XID errors, and run dcgmi diag -r 3 on the host.",
    False,
)


def meaning_of(number: int) -> XidMeaning:
    """Return what a number means, or where to look it up if it is not well known."""
    return xid_meaning(number) or _UNKNOWN


_MAX_NAMED = 4


class _XidErrors(msgspec.Struct):
    """Errors with one XID number, on all GPUs."""

    ranks: set[int] = msgspec.field(default_factory=set)
    devices: list[str] = msgspec.field(default_factory=list)
    count: int = 0
    is_dated: bool = False
    time: str = ""
    process: str = ""


@rule("TEL103", Severity.WARNING, costs_time=False)
def device_errors(telemetry: TelemetryResult) -> Iterator[Draft]:
    """Errors of GPUs and switches: XID errors, uncorrectable memory errors, pending or failed
    memory repairs, NVSwitch errors.
    """
    if telemetry.is_missing and not (telemetry.errors or telemetry.conditions):
        raise InsufficientEvidenceError(NO_SENSORS)
    by_number = _xids(telemetry).items()  # what a program did, or what follows, comes last
    for number, errors in sorted(by_number, key=lambda e: (not meaning_of(e[0]).is_hardware, e[0])):
        meaning = meaning_of(number)
        when = f", {'first ' if errors.count > 1 else ''}at {errors.time}" if errors.time else ""
        ran = f", in {errors.process}" if errors.process and len({*errors.devices}) == 1 else ""
        undated = "" if errors.time or errors.is_dated else "; the log does not show when"
        bad = Severity.ERROR if errors.is_dated else Severity.WARNING
        is_one = errors.count == 1 and not errors.is_dated  # a line may stand for several
        times = f"XID {number}{'' if is_one else f' {_times(errors.count)}'}"
        whole = f"{times}: {meaning.text}"
        headline = fitting(whole, f"A GPU reported {times}")
        meant = "" if headline == whole else f": {meaning.text}"
        yield Draft(
            headline=headline,
            message=f"{capitalized(_where(errors))}{when}{ran}{undated}{meant}.",
            fix=meaning.fix,
            confidence=Confidence.MEASURED if errors.is_dated else Confidence.INFERRED,
            ranks=tuple(sorted(errors.ranks)),
            evidence=("telemetry.errors" if errors.devices else "telemetry.ranks",),
            severity=bad if meaning.is_hardware else None,
        )
    wrong = [row for row in telemetry.ranks if row.ecc_uncorrected]
    if wrong:
        gpus = f"The GPU{'s' if len(wrong) > 1 else ''} of {name_ranks(row.rank for row in wrong)}"
        number = sum(row.ecc_uncorrected or 0 for row in wrong)
        yield Draft(
            headline=f"GPU memory had {counted(number, 'uncorrectable error')}",
            message=f"{gpus} counted them during the recording.",
            fix=meaning_of(48).fix,
            ranks=tuple(row.rank for row in wrong),
            evidence=("telemetry.ranks",),
            severity=Severity.ERROR,
        )
    yield from wrong_conditions(telemetry.conditions, {row.rank for row in wrong})
    drafts = {"fabric": _fabric_draft, "iommu": _iommu_draft}
    yield from (drafts[error.kind](error) for error in telemetry.errors if error.kind in drafts)


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


def _where(errors: _XidErrors) -> str:
    named = few_names([*dict.fromkeys(errors.devices)], _MAX_NAMED)
    if not errors.ranks:
        return f"on {named}"
    return f"on the GPU of {name_ranks(errors.ranks)}{f' ({named})' if named else ''}"


def _fabric_draft(error: DeviceError) -> Draft:
    number = "" if error.number is None else f" {error.number}"
    is_fatal = "fatal" in error.text and "non-fatal" not in error.text
    device = error.device or "An NVSwitch"
    logged = f"logged an error {_times(error.count)}"
    return Draft(
        headline=fitting(f"{device} {logged}", f"An NVSwitch {logged}"),
        message=f"Error{number} of {device}: {error.text.rstrip('.')[:200]}.",
        fix=advice("device-errors", "fabric"),
        confidence=Confidence.INFERRED,
        evidence=("telemetry.errors",),
        severity=Severity.ERROR if is_fatal else None,
    )


def _iommu_draft(error: DeviceError) -> Draft:
    times, is_gpu = f"{_times(error.count)}{when_of(error)}", error.text != "DMAR"
    whose, such = (error.device or "a GPU", "") if is_gpu else ("a device", "if it is a GPU, ")
    return Draft(
        headline=f"The IOMMU refused accesses of {whose}",
        message=f"Page faults ({error.text}), {times}: {such}copies between GPUs stand or fail.",
        fix=advice("device-errors", "iommu"),
        evidence=("telemetry.errors",),
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


_MAX_TEXT = 160


@rule("TEL108", Severity.ERROR, costs_time=False)
def crashed_process(telemetry: TelemetryResult) -> Iterator[Draft]:
    """The kernel logged that a process crashed: a segmentation fault, an illegal instruction, or
    another trap.
    """
    yield from map(_crash_draft, ended(telemetry, "crash"))


def _crash_draft(error: DeviceError) -> Draft:
    text = shorten(error.text.rstrip("."), _MAX_TEXT)
    kind = "process " if error.rank is None and error.process else ""
    return draft_of(
        error,
        headline=capitalized(f"{kind}{subject_of(error)} crashed {_times(error.count)}"),
        message=f"{who(error)} crashed{when_of(error)}: {text}.",
        fix=advice("crashed-process"),
    )


_CGROUP = "memory cgroup"


@rule("TEL109", Severity.ERROR, costs_time=False)
def host_out_of_memory(telemetry: TelemetryResult) -> Iterator[Draft]:
    """The kernel's OOM killer ended a process, because the host or the memory cgroup of the process
    (a container, a job of SLURM) had no memory left.
    """
    yield from map(_killed_draft, ended(telemetry, "oom"))


def _killed_draft(error: DeviceError) -> Draft:
    is_cgroup = _CGROUP in error.text.lower()
    group = "its memory cgroup (container or job) was full"
    full = group if is_cgroup else "the host had no memory left"
    held = f", when it held {format_bytes(error.memory_bytes)}" if error.memory_bytes else ""
    return draft_of(
        error,
        headline=f"The kernel killed {subject_of(error)} {_times(error.count)}: no memory was left",
        message=f"{who(error)} was killed{when_of(error)}{held}: {full}.",
        fix=advice("host-out-of-memory", "cgroup" if is_cgroup else "host"),
    )
