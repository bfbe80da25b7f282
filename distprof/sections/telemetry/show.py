"""Sensors, energy, device errors, NVLink, PCIe and memory of GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from distprof.artefacts.record import grouped
from distprof.escape import shorten
from distprof.sections.base import VerdictText
from distprof.sections.parts import is_recorded
from distprof.sections.table import (
    Column,
    TableView,
    counted,
    facts_table,
    first_rows,
    ranks_table,
    rows_table,
)
from distprof.sections.telemetry import (
    DeviceCondition,
    DeviceError,
    RankTelemetry,
    TelemetryResult,
    WindowSensors,
)
from distprof.units import format_bytes, format_energy, format_ratio, name_of_device

if TYPE_CHECKING:
    from distprof.sections.report import Report

MAX_ROWS = 16
_MAX_TEXT = 100
IDLE_RATIO = 0.05
_OF_A_JOB = 2 << 30  # Bytes that only a job has in use
_OF_NO_MODEL = 400 << 20  # Bytes that a process without a model has in use


_SENSORS = (
    Column("clock", "sm_clock_mhz_median"),
    Column("lowest", "sm_clock_mhz_min"),
    Column("slowed", "throttled_ratio"),
    Column("power", "power_w_mean"),
    Column("temperature", "temperature_c_max"),
)
_USE = (Column("busy", "gpu_utilization_ratio"), Column("memory", "memory_used_bytes"))


def step_sensors_table(report: Report, *, show_all: bool) -> TableView | None:
    """Sensors inside the analysed steps, by rank."""
    ranks = [row for row in report.telemetry.ranks if row.in_steps is not None]
    sensors = [row.in_steps for row in ranks if row.in_steps is not None]
    notes = _throttle_notes(sensors)
    if any(each.is_bracketed for each in sensors):
        notes.append("no sample is inside the steps: those right before and after are used")
    inside = (Column("samples", "num_samples"), *_SENSORS)
    files = {(row.origin or "").partition(", ")[0] for row in ranks} - {""}
    return ranks_table(
        "Sensors in the analysed steps",
        (replace(column, shows=f"in_steps.{column.shows}") for column in inside),
        ranks,
        show_all=show_all,
        caption=f"from {', '.join(sorted(files)[:3])}" if files else "from distprof's probe",
        notes=notes,
    )


def telemetry_table(report: Report, *, show_all: bool) -> TableView | None:
    """Sensors by rank."""
    ranks = report.telemetry.ranks
    notes = _throttle_notes(ranks)
    notes += [f"rank {r.rank}: XID errors {', '.join(map(str, r.xid))}" for r in ranks if r.xid]
    return ranks_table(
        "Sensors",
        (*_SENSORS, *_USE),
        ranks,
        show_all=show_all,
        caption="over the whole run",
        notes=notes,
    )


def _throttle_notes(sensors: Sequence[WindowSensors | RankTelemetry]) -> list[str]:
    reasons = dict.fromkeys(reason for each in sensors for reason in each.throttle_reasons)
    return [f"slowed down by: {', '.join(reasons)}"] if reasons else []


def energy_table(report: Report, *, show_all: bool) -> TableView | None:  # noqa: ARG001
    """Energy of a step."""
    result = report.telemetry
    if result.energy_per_step_j is None:
        return None
    facts = [("per step", format_energy(result.energy_per_step_j))]
    if result.energy_per_token_j is not None:
        facts.append(("per token", format_energy(result.energy_per_token_j)))
    if result.waiting_energy_per_step_j is not None:
        share = format_ratio(result.waiting_energy_ratio)
        waiting = format_energy(result.waiting_energy_per_step_j)
        facts.append(("while ranks wait", f"{waiting} per step ({share})"))
    return facts_table("Energy", facts, caption="all GPUs together, mean of the analysed steps")


def devices_table(report: Report, *, show_all: bool) -> TableView | None:
    """GPUs in sensor files whose rank is unknown."""
    return rows_table(
        "GPUs without a rank" if report.run.ranks else "GPUs",
        (
            Column(
                "device", lambda d: name_of_device(d.host, d.index, d.bus_id, d.uuid), left=True
            ),
            Column("name", "name", form="name", left=True, wide_only=True),
            Column("samples", "sensors.num_samples"),
            *(replace(one, shows=f"sensors.{one.shows}") for one in (*_SENSORS, *_USE)),
        ),
        first_rows(report.telemetry.devices, MAX_ROWS, show_all=show_all),
        caption="over all samples",
    )


def device_errors_table(report: Report, *, show_all: bool) -> TableView | None:
    """Errors that kernels, drivers and switches logged."""
    return rows_table(
        "Errors of GPUs, switches and processes",
        (
            Column("error", _error_name, left=True),
            Column("device", _error_place, left=True),
            Column("times", "count"),
            Column("first", "time", form="name", left=True),
            Column("text", lambda error: shorten(error.text, _MAX_TEXT), left=True, wrap=True),
        ),
        first_rows(report.telemetry.errors, MAX_ROWS, show_all=show_all),
    )


def _error_name(error: DeviceError) -> str:
    name = {"xid": "XID", "fabric": "switch", "oom": "out of memory"}.get(error.kind, error.kind)
    return f"{name} {error.number or ''}".rstrip()


def _error_place(error: DeviceError) -> str:
    place = error.device
    if error.process:
        pid = "" if error.pid is None else f" {error.pid}"
        place = f"{place}: {error.process}{pid}" if place else f"{error.process}{pid}"
    return place if error.rank is None else f"{place} (rank {error.rank})"


def nvlinks_table(report: Report, *, show_all: bool) -> TableView | None:
    """NVLink by GPU; one row if all are identical."""
    links = report.telemetry.nvlinks
    identical = len({(one.name, one.num_active, one.bytes_per_s) for one in links}) == 1
    shown = links if show_all else links[: 1 if identical else MAX_ROWS]
    all_gpus = f"all {counted(len(links), 'GPU')}" if identical and len(shown) == 1 else ""
    return rows_table(
        "NVLink",
        (
            Column("device", lambda one: all_gpus or one.device, left=True),
            Column("name", "name", left=True, wide_only=True),
            Column("active", lambda one: f"{one.num_active} of {one.num_links}"),
            Column("per direction", "bytes_per_s"),
        ),
        shown,
        caption="from nvidia-smi nvlink --status",
    )


def conditions_table(report: Report, *, show_all: bool) -> TableView | None:
    """PCIe links, memory and drivers by GPU; identical ones in one row."""
    rows = grouped(
        ((one.name, one.driver, one.cuda, _link(one), one.ecc_uncorrected, _repair(one)), one)
        for one in report.telemetry.conditions
    )
    return rows_table(
        "PCIe and memory of GPUs",
        (
            Column("device", _group_name, left=True),
            Column("name", lambda group: group[0].name, form="name", left=True, wide_only=True),
            Column("PCIe", lambda group: _link(group[0]), left=True),
            Column("uncorrected", lambda group: group[0].ecc_uncorrected),
            Column("repair", lambda group: _repair(group[0]), left=True),
            Column("driver", lambda group: group[0].driver, form="name", left=True),
            Column("CUDA", lambda group: group[0].cuda, form="name", left=True),
        ),
        first_rows(list(rows.values()), MAX_ROWS, show_all=show_all),
        caption="from nvidia-smi -q",
    )


def _group_name(group: Sequence[DeviceCondition]) -> str:
    first = group[0]
    place = first.device if first.rank is None else f"{first.device} (rank {first.rank})"
    return place if len(group) == 1 else f"{place} and {len(group) - 1:,} more"


def _link(one: DeviceCondition) -> str:
    if one.pcie_width is None or one.pcie_generation is None:
        return "unknown"
    most = f"{one.pcie_generation_max}.0 x{one.pcie_width_max}"
    now = f"{one.pcie_generation}.0 x{one.pcie_width}"
    idle = ", idle" if one.is_in_use is False else ""
    return f"{now}{idle}" if now == most else f"{now} of {most}{idle}"


def _repair(one: DeviceCondition) -> str:
    if one.has_repair_failed:
        return "failed"
    if one.is_repair_pending:
        return "pending"
    return "unknown" if one.is_repair_pending is None else "none"


# The first lines of a report that contains only sensors and errors of GPUs -----------------------

_ONE_IDLE = "No GPU works in the only sample"


def devices_verdict(report: Report) -> VerdictText:
    """The verdict and the numbers behind it; None for a report on anything else."""
    result = report.telemetry
    if result.ranks or not _contents(result):
        return None
    line = _line(result)
    says_little = line.startswith(_ONE_IDLE) or not (result.devices or result.errors)
    if says_little and (report.placement.machines or report.placement.copies):
        return None  # how the GPUs are connected says more
    return line, tuple(one for one in (_heat(result), _slowed(result)) if one and one != line)


def sensors_sentence(report: Report) -> str:
    """What sensors show next to something else that was printed; empty without them."""
    line = (devices_verdict(report) or ("",))[0].partition(". Where ")[0].rstrip(".")
    return line and f"{line}."


def devices_origin(report: Report) -> str:
    """Contents of the machine logs, unless the verdict is that."""
    if is_recorded(report) or devices_verdict(report) is None:
        return ""
    contents = f": {', '.join(_contents(report.telemetry))}" if _busy(report.telemetry) else ""
    return f"logs of machines{contents} · no steps"


def _line(result: TelemetryResult) -> str:
    slowed = _slowed(result)
    led = slowed if slowed and slowed != _NONE_SLOWED else f"{', '.join(_contents(result))}."
    return _busy(result) or _narrow(result) or led


def _narrow(result: TelemetryResult) -> str:
    """GPUs whose PCIe link has fewer lanes than it could have."""
    of = [one for one in result.conditions if (one.pcie_width or 0) < (one.pcie_width_max or 0)]
    if not of:
        return ""
    return (
        f"{_group_name(of)}: PCIe link {_link(of[0])}. Look again while the job runs; if it stays, "
        "look at the slot, the riser and the BIOS."
    )


def _busy(result: TelemetryResult) -> str:
    """How busy the GPUs are, and that sensors do not show why; empty if they do not say."""
    known = {
        name_of_device(d.host, d.index, d.bus_id, d.uuid): d.sensors.gpu_utilization_ratio
        for d in result.devices
        if d.sensors.gpu_utilization_ratio is not None
    }
    idle = [name for name, ratio in known.items() if ratio < IDLE_RATIO]
    if not known or not len(result.devices) == len(known) < MAX_ROWS:
        return ""
    least, most = (format_ratio(end(known.values())) for end in (min, max))
    span = least if least == most else f"{least} to {most}"
    if idle and len(idle) < len(known):
        text = f"{', '.join(idle)} hardly {'works' if len(idle) == 1 else 'work'} while others do"
    elif idle and all(device.sensors.num_samples < 2 for device in result.devices):
        used = max(device.sensors.memory_used_bytes or 0 for device in result.devices)
        text = f"{_ONE_IDLE}, which may be of any moment"
        if 0 < used < _OF_NO_MODEL:
            return (
                f"{_ONE_IDLE}, and at most {format_bytes(used)} of one is in use. If it was taken "
                "while the job ran, the job most likely computes on the CPU: look at "
                "torch.cuda.is_available() and the device of the model's parameters."
            )
        if used >= _OF_A_JOB:
            text = f"At this moment no GPU works, although a job holds {format_bytes(used)} of one"
    elif idle:
        text = f"No GPU works ({span} busy)"
    else:
        text = f"A kernel is running for {span} of the time; it may be one that waits"
    return (
        f"{text}. Where the time goes is not decided, because sensors do not show it: dump the "
        "stacks (py-spy dump) or record a trace with distprof capture -- COMMAND."
    )


def _contents(result: TelemetryResult) -> list[str]:
    parts = []
    if result.devices:
        samples = sum(device.sensors.num_samples for device in result.devices)
        devices = {(d.host, d.uuid or d.bus_id or d.index) for d in result.devices}
        parts.append(f"{counted(samples, 'sample')} of {counted(len(devices), 'GPU')}")
    if result.errors:
        parts.append(counted(sum(error.count for error in result.errors), "error"))
    elif result.kernel_logs:
        logs = counted(len(result.kernel_logs), "kernel log")
        parts.append(f"{logs} without GPU errors, crashes or out-of-memory kills")
    if result.conditions and not result.devices:
        parts.append(f"the state of {counted(len(result.conditions), 'GPU')}")
    if result.nvlinks:
        active = sum(links.num_active for links in result.nvlinks)
        total = sum(links.num_links for links in result.nvlinks)
        parts.append(f"{active:,} of {counted(total, 'NVLink')} active")
    return parts


def _heat(result: TelemetryResult) -> str:
    known = [device.sensors.temperature_c_max or 0 for device in result.devices]
    return f"The hottest GPU reaches {max(known)} °C." if any(known) else ""


_NONE_SLOWED = "No GPU was throttled."
_ALONE = ("The GPU", "look at its power limit and cooling (nvidia-smi -q -d POWER,TEMPERATURE)")
_MOST = (
    "The most throttled GPU",
    "compare its clocks, power and temperature with those of the others while all work",
)


def _slowed(result: TelemetryResult) -> str:
    known = [one.sensors for one in result.devices if one.sensors.throttled_ratio is not None]
    if not known:
        return ""
    worst = max(known, key=lambda sensors: sensors.throttled_ratio or 0.0)
    if not worst.throttled_ratio:
        return _NONE_SLOWED
    reasons = worst.throttle_reasons
    most = max(reasons, key=lambda reason: reasons[reason], default="").replace("_", " ")
    by = f" ({most})" if most else ""
    share = format_ratio(worst.throttled_ratio)
    who, step = _ALONE if len(known) == 1 else _MOST
    return f"{who} was slowed down{by} in {share} of its samples: {step}."
