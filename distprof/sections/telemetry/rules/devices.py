"""Rules about the state of GPUs, with or without a rank."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from statistics import median
from typing import Any

import msgspec

from distprof.artefacts.record import grouped
from distprof.escape import fitting
from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, advice, rule
from distprof.sections.shares import medians_of_others
from distprof.sections.stragglers import StragglersResult
from distprof.sections.table import counted
from distprof.sections.telemetry import (
    DeviceCondition,
    DeviceNvlink,
    RankTelemetry,
    TelemetryResult,
    WindowSensors,
)
from distprof.terms import Confidence, Severity
from distprof.units import capitalized, few_names, format_ratio, name_of_device, name_ranks

NO_SENSORS = (
    "no sensors were recorded: pass the output of nvidia-smi or DCGM with --with, or record with "
    "distprof capture"
)

MIN_BUSY = 0.5  # Share of time with a kernel running from which a GPU without a rank counts as busy


class Unit(msgspec.Struct, frozen=True):
    """One GPU."""

    rank: int | None  # Rank that ran on it; None if unknown.
    device: str  # Name of the GPU, if it has no rank.
    kind: str  # GPUs of one kind are compared: those of the same name, or those of all ranks.
    # Figures of the analysed steps if known, otherwise of the whole run.
    figures: WindowSensors | RankTelemetry

    @property
    def is_sure(self) -> bool:
        """Whether samples were taken during the analysed steps."""
        return isinstance(self.figures, WindowSensors) and not self.figures.is_bracketed

    @property
    def is_busy(self) -> bool:
        """Whether it was busy while sampled, so that a low clock is meaningful."""
        used = self.figures.gpu_utilization_ratio
        return isinstance(self.figures, WindowSensors) if used is None else used >= MIN_BUSY


def units_of(telemetry: TelemetryResult) -> list[Unit]:
    """Return the GPUs with sensors; none for jobs without GPUs."""
    if telemetry.is_missing:
        raise InsufficientEvidenceError(NO_SENSORS)
    units = [
        Unit(rank=row.rank, device="", kind="", figures=row.in_steps or row)
        for row in telemetry.ranks
    ]
    units += [
        Unit(
            rank=None,
            device=name_of_device(device.host, device.index, device.bus_id, device.uuid),
            kind=device.name or device.file,
            figures=device.sensors,
        )
        for device in telemetry.devices
    ]
    return units


def named(units: Sequence[Unit]) -> str:
    """For example ``The GPUs of ranks 3, 5``, ``GPU 3 of node-1, GPU 4 of node-1``."""
    return capitalized(name_devices(units))


def name_devices(gpus: Sequence[Unit | DeviceCondition]) -> str:
    """For example ``the GPUs of ranks 3, 5``, inside a sentence."""
    ranks = ranks_of(gpus)
    parts = [f"the GPU{'s' if len(ranks) > 1 else ''} of {name_ranks(ranks)}"] if ranks else []
    others = dict.fromkeys(one.device for one in gpus if one.rank is None)
    return " and ".join(filter(None, (*parts, few_names([*others], 4))))


def ranks_of(gpus: Sequence[Unit | DeviceCondition | DeviceNvlink]) -> tuple[int, ...]:
    """Their ranks, ascending."""
    return tuple(sorted(gpu.rank for gpu in gpus if gpu.rank is not None))


def evidence_of(units: Sequence[Unit]) -> tuple[str, ...]:
    """Part of the report that holds their figures."""
    return ("telemetry.ranks" if ranks_of(units) else "telemetry.devices",)


def median_of(
    units: Sequence[Unit], value: Callable[[WindowSensors | RankTelemetry], float | None]
) -> float | None:
    """Median over the GPUs with a value; None without any."""
    known = [number for unit in units if (number := value(unit.figures)) is not None]
    return float(median(known)) if known else None


def usual_of_peers(values: Sequence[float | None]) -> list[float | None]:
    """For each value, the median of the other known values; None if there are none."""
    known = {i: value for i, value in enumerate(values) if value is not None}
    result = [float(median(known.values())) if known else None] * len(values)
    others = medians_of_others([*known.values()]) if len(known) > 1 else [None] * len(known)
    for i, usual in zip(known, others, strict=True):
        result[i] = usual
    return result


def by_kind(units: Sequence[Unit]) -> list[list[Unit]]:
    """Groups of GPUs that are compared with each other."""
    kinds = grouped([(unit.kind, unit) for unit in units])
    return list(kinds.values())


def cost_of(units: Sequence[Unit], stragglers: StragglersResult) -> dict[str, Any]:
    """What findings on slow GPUs have in common: the time per step that other ranks wait, if any.

    Its scenario is known for a single rank.
    """
    ranks = ranks_of(units)
    lost = sum(row.lost_ns_per_step for row in stragglers.ranks if row.rank in {*ranks})
    return {
        "cost_ns_per_step": lost or None,
        "confidence": _confidence(units),
        "ranks": ranks,
        "evidence": evidence_of(units),
        "without": f"rank {ranks[0]}" if len(ranks) == 1 and lost else "",
    }


def _confidence(units: Sequence[Unit]) -> Confidence:
    is_sure = all(unit.is_sure for unit in units)
    return Confidence.MEASURED if is_sure else Confidence.INFERRED


def wrong_conditions(
    conditions: Sequence[DeviceCondition], named_ranks: Collection[int]
) -> Iterator[Draft]:
    """Yield one draft per problem."""
    failed = [one for one in conditions if one.has_repair_failed]
    waiting = [one for one in conditions if one.is_repair_pending and not one.has_repair_failed]
    wrong = [one for one in conditions if one.ecc_uncorrected and one.rank not in named_ranks]
    errors = counted(sum(one.ecc_uncorrected or 0 for one in wrong), "uncorrectable error")
    found: list[tuple[Sequence[DeviceCondition], str, str, str, Severity | None]] = [
        (
            failed,
            f"Memory of {counted(len(failed), 'GPU')} could not be repaired",
            f"Remapping a row failed on {name_devices(failed)}.",
            "Drain the host, run its diagnostics (dcgmi diag -r 3), and have the GPU replaced.",
            Severity.ERROR,
        ),
        (
            waiting,
            f"Memory of {counted(len(waiting), 'GPU')} needs a reset to be repaired",
            f"A row remapping or page retirement is pending on {name_devices(waiting)}.",
            "Drain the host and reset the GPU (nvidia-smi -r): the repair takes effect only then.",
            None,
        ),
        (
            wrong,
            f"GPU memory had {errors}",
            f"{capitalized(name_devices(wrong))} counted them since the driver was loaded.",
            advice("device-errors", "memory"),
            None,
        ),
    ]
    reported = {id(one) for one in (*failed, *waiting)}
    others = [(one.recovery, one) for one in conditions if one.recovery and id(one) not in reported]
    found += (
        (
            same,
            f"The driver requests recovery of {counted(len(same), 'GPU')}",
            f'It asks for "{action}" of {name_devices(same)}.',
            "Drain the host and perform the GPU Recovery Action that nvidia-smi -q shows.",
            Severity.ERROR,
        )
        for action, same in grouped(others).items()
    )
    for devices, headline, message, fix, severity in found:
        if devices:
            yield Draft(
                headline=headline,
                message=message,
                fix=fix,
                ranks=ranks_of(devices),
                evidence=("telemetry.conditions",),
                severity=severity,
            )


_HEAT = ("hw_thermal_slowdown", "sw_thermal_slowdown", "thermal_violation")
_BRAKE = ("hw_power_brake_slowdown",)
_HARDWARE = ("hw_slowdown",)
_CAP = ("sw_power_cap", "power_violation")
_CAUSES = (
    (_HEAT, "heat", "heat"),
    (_BRAKE, "the power brake signal", "brake"),
    (_HARDWARE, "its hardware", "hardware"),
    (_CAP, "a power cap that its peers do not reach", "cap"),
)


@rule(
    "TEL101",
    Severity.WARNING,
    min_ratio=Limit(0.1, "share of samples in which heat or hardware may slow a GPU"),
    more_capped_ratio=Limit(
        0.2, "share of samples, above the peers' median, in which a power cap may slow it"
    ),
)
def throttled_device(
    telemetry: TelemetryResult, stragglers: StragglersResult, limits: Limits
) -> Iterator[Draft]:
    """GPUs that throttle because of heat, the power supply, or a power cap that their peers do not
    reach.
    """
    units = units_of(telemetry)
    left = units
    for reasons, cause, case in _CAUSES:
        gpus = _slowed(left, reasons, limits)
        if not gpus:
            continue
        ids = {id(unit) for unit in gpus}
        left = [unit for unit in left if id(unit) not in ids]
        most = format_ratio(max(_share(unit, reasons) for unit in gpus))
        names = sorted({r for unit in gpus for r in unit.figures.throttle_reasons if r in reasons})
        are_in_steps = all(isinstance(unit.figures, WindowSensors) for unit in gpus)
        when = "of the analysed steps" if are_in_steps else "of the recording"
        several = "are" if len(gpus) > 1 else "is"
        if len(gpus) > 1:
            cause = cause.replace("its ", "their ")
        slowed = f"{several} slowed down by {cause} in {most} of samples"
        whole = f"{named(gpus)} {slowed}"
        headline = fitting(whole, f"{'GPUs' if len(gpus) > 1 else 'A GPU'} {slowed}")
        it = "They report" if len(gpus) > 1 else "It reports"
        if headline != whole:
            it = f"{named(gpus)} {it.split()[1]}"
        reason = ", without a reason," if reasons is _HARDWARE else ""
        yield Draft(
            headline=headline,
            message=(
                f"{it} {' and '.join(names)}{reason} in these samples {when}{_clocks(gpus, units)}."
            ),
            fix=advice("throttled-device", case),
            **cost_of(gpus, stragglers),
        )


def _share(unit: Unit, reasons: Sequence[str]) -> float:
    """The largest share of samples with one of the reasons."""
    return max((unit.figures.throttle_reasons.get(reason, 0.0) for reason in reasons), default=0.0)


def _slowed(units: Sequence[Unit], reasons: Sequence[str], limits: Limits) -> list[Unit]:
    """GPUs with one of the reasons; for a power cap, more often than their peers."""
    if reasons is not _CAP:
        return [unit for unit in units if _share(unit, reasons) >= limits["min_ratio"]]
    gpus = []
    for peers in by_kind(units):
        shares = [_share(unit, reasons) for unit in peers]
        for unit, share, usual in zip(peers, shares, usual_of_peers(shares), strict=True):
            if usual is not None and share - usual >= limits["more_capped_ratio"]:
                gpus.append(unit)
    return gpus


def _clocks(gpus: Sequence[Unit], units: Sequence[Unit]) -> str:
    own = median_of(gpus, lambda figures: figures.sm_clock_mhz_median)
    ids = {id(unit) for unit in gpus}
    rest = [unit for unit in units if id(unit) not in ids]
    usual = median_of(rest, lambda figures: figures.sm_clock_mhz_median)
    if own is None:
        return ""
    text = f", at a median clock of {own:,.0f} MHz"
    return text if usual is None else f"{text}, and {usual:,.0f} MHz on the others"


MIN_PEERS = 2


@rule(
    "TEL102",
    Severity.WARNING,
    lower_ratio=Limit(0.05, "share by which a clock may be below its peers' median"),
    throttled_ratio=Limit(
        0.1, "share of throttled samples from which throttled-device reports the GPU"
    ),
)
def uneven_device_clocks(
    telemetry: TelemetryResult, stragglers: StragglersResult, limits: Limits
) -> Iterator[Draft]:
    """GPUs that run at a lower clock than their peers although they report no throttling."""
    busy = [unit for unit in units_of(telemetry) if unit.is_busy and _clock(unit) is not None]
    for peers in by_kind(busy):
        usual = usual_of_peers([_clock(unit) for unit in peers])
        slow = [
            unit
            for unit, others in zip(peers, usual, strict=True)
            if len(peers) > MIN_PEERS and _is_low(unit, others, limits)
        ]
        if slow:
            ids = {id(unit) for unit in slow}
            rest = [unit for unit in peers if id(unit) not in ids]
            own = median_of(slow, lambda figures: figures.sm_clock_mhz_median) or 0.0
            median = median_of(rest, lambda figures: figures.sm_clock_mhz_median) or own
            several = len(slow) > 1
            lower = format_ratio(1 - own / median if median else 0.0)
            clock = f"{'run' if several else 'runs'} at a clock {lower} below that of peers"
            headline = fitting(
                f"{named(slow)} {clock}", f"{'GPUs' if several else 'A GPU'} {clock}"
            )
            who = named(slow)
            if headline.startswith(who):
                who = "They" if several else "It"
            yield Draft(
                headline=headline,
                message=(
                    f"{who} {'run' if several else 'runs'} at {own:,.0f} MHz, "
                    f"{'their' if several else 'its'} peers at {median:,.0f} MHz, for no "
                    "reported reason."
                ),
                **cost_of(slow, stragglers),
            )


def _clock(unit: Unit) -> float | None:
    return unit.figures.sm_clock_mhz_median


def _is_low(unit: Unit, usual: float | None, limits: Limits) -> bool:
    own = _clock(unit)
    if own is None or not usual:
        return False
    if (unit.figures.throttled_ratio or 0.0) >= limits["throttled_ratio"]:
        return False
    return own < (1 - limits["lower_ratio"]) * usual


_LOWER_CLOCK = 0.97


@rule(
    "TEL104",
    Severity.WARNING,
    costs_time=False,
    hot_c=Limit(85, "degrees Celsius from which a GPU is hot"),
    above_peers_c=Limit(8, "degrees above the others' median for a GPU that is slower"),
)
def hot_device(telemetry: TelemetryResult, limits: Limits) -> Iterator[Draft]:
    """GPUs near the temperature at which they slow down, and GPUs that are much hotter than their
    peers and already slower.
    """
    units = [u for u in units_of(telemetry) if u.figures.temperature_c_max is not None]
    hot = [unit for peers in by_kind(units) for unit in _hot(peers, limits)]
    if not hot:
        return
    hottest = max(unit.figures.temperature_c_max or 0 for unit in hot)
    ids = {id(unit) for unit in hot}
    rest = [unit for unit in units if id(unit) not in ids]
    usual = median_of(rest, lambda figures: figures.temperature_c_max)
    others = "" if usual is None else f"the median of the others is {usual:.0f} °C"
    several = len(hot) > 1
    reached = f"{'reach up to' if several else 'reaches'} {hottest} °C"
    whole = f"{named(hot)} {reached}"
    headline = fitting(whole, f"{'GPUs' if several else 'A GPU'} {reached}")
    if headline != whole or not others:
        others = (
            f"{'They are' if several else 'It is'} {name_devices(hot)}{others and '; '}{others}"
        )
    yield Draft(
        headline=headline,
        message=f"{capitalized(others)}.",
        confidence=_confidence(hot),
        ranks=ranks_of(hot),
        evidence=evidence_of(hot),
    )


def _hot(peers: Sequence[Unit], limits: Limits) -> list[Unit]:
    """GPUs that are hot, or hotter than their peers and slower."""
    heats = [float(unit.figures.temperature_c_max or 0) for unit in peers]
    clocks = [unit.figures.sm_clock_mhz_median if unit.is_busy else None for unit in peers]
    usual_heats, usual_clocks = usual_of_peers(heats), usual_of_peers(clocks)
    hot = []
    for i, unit in enumerate(peers):
        usual, clock, others = usual_heats[i], clocks[i], usual_clocks[i]
        is_hotter = usual is not None and heats[i] >= usual + limits["above_peers_c"]
        is_lower = clock is not None and others is not None and clock < _LOWER_CLOCK * others
        if heats[i] >= limits["hot_c"] or (is_hotter and (is_lower or _share(unit, _HEAT))):
            hot.append(unit)
    return hot
