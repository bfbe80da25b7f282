"""Rules about how GPUs and their links are used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean, median

from distprof.artefacts.record import grouped
from distprof.escape import few_ranks, fitting
from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.idle import IdleResult
from distprof.sections.kernels import KernelsResult
from distprof.sections.shares import MeanStep, StepTimes
from distprof.sections.table import counted
from distprof.sections.telemetry import (
    DeviceCondition,
    DeviceNvlink,
    RankTelemetry,
    TelemetryResult,
)
from distprof.sections.telemetry.rules.devices import NO_SENSORS, name_devices, ranks_of
from distprof.terms import Confidence, Severity
from distprof.units import (
    capitalized,
    format_bandwidth,
    format_energy,
    format_ratio,
    name_ranks,
    verb,
)


@rule(
    "TEL106",
    Severity.INFO,
    costs_time=False,
    waiting_ratio=Limit(0.15, "share of the energy that waiting may take"),
)
def energy_spent_waiting(telemetry: TelemetryResult, limits: Limits) -> Iterator[Draft]:
    """A large share of the job's energy is drawn while ranks wait for other ranks."""
    share = telemetry.waiting_energy_ratio
    if share is None:
        if telemetry.is_missing:
            raise InsufficientEvidenceError(NO_SENSORS)
        if telemetry.ranks:
            raise InsufficientEvidenceError(
                "; ".join(telemetry.unavailable) or "no step with a known energy was analysed"
            )
        return
    if share < limits["waiting_ratio"]:
        return
    message = "It is the energy of the traced ranks."
    if total := telemetry.energy_per_step_j:
        message = f"{format_energy(share * total)} of {format_energy(total)} per step."
    yield Draft(
        headline=f"{format_ratio(share)} of the energy is drawn while ranks wait for others",
        message=message,
        confidence=Confidence.MODELLED,
        evidence=("telemetry.waiting_energy_ratio",),
    )


_WIDER = ("HST109", "STR110", "COM103")


@rule(
    "TEL107",
    Severity.WARNING,
    dominates_ratio=Limit(0.05, "share of the step from which this finding comes first"),
    stretched_ratio=Limit(
        0.1, "share of the step from which kernels that run longer than usual count"
    ),
)
def shared_gpu(
    telemetry: TelemetryResult,
    idle: IdleResult,
    kernels: KernelsResult,
    times: StepTimes,
    limits: Limits,
) -> Iterator[Draft]:
    """Ranks that share one GPU, and GPUs on which another process also computes."""
    if telemetry.is_missing:
        raise InsufficientEvidenceError(NO_SENSORS)
    step = times.mean_step()
    by_gpu = grouped([(one.uuid or f"of rank {one.rank}", one) for one in telemetry.ranks])
    shared = [sharers for sharers in by_gpu.values() if len(sharers) > 1]
    crowded = [sharers for sharers in by_gpu.values() if _num_others(sharers) > 0]
    for groups, text in ((shared, _of_ranks), (crowded, _of_others)):
        if not groups:
            continue
        ranks = tuple(sorted(one.rank for sharers in groups for one in sharers))
        # time of kernels beyond their usual durations on these ranks, mean per rank and step
        known = [one.stretched_ns_per_step or 0 for one in kernels.ranks if one.rank in ranks]
        stretched = round(mean(known)) if known else 0
        if step.ratio(stretched) < limits["stretched_ratio"]:
            stretched = 0
        cost = _idle_ns(idle, ranks, step) + stretched
        is_costly = step.ratio(cost) >= limits["dominates_ratio"]
        who = few_ranks([one.rank for one in groups[0]])
        what = f"{who} share a GPU" if groups is shared else f"Others may use the GPU of {who}"
        effect = f"it costs {step.part(cost)}" if cost else f"{len(groups)} GPUs are shared"
        yield Draft(
            headline=f"{capitalized(what)}: {effect}",
            message=f"{capitalized(text(groups))} {_effect(cost, stretched, step)}",
            cost_ns_per_step=cost or None,
            confidence=Confidence.INFERRED,
            ranks=ranks,
            evidence=("telemetry.ranks", "idle.ranks"),
            severity=None if groups is shared or is_costly else Severity.INFO,
            explains=_WIDER,
            comes_first=is_costly,
        )


def _num_others(sharers: Sequence[RankTelemetry]) -> int:
    """Number of processes on a GPU that are not ranks of the job."""
    return max(one.num_processes or 0 for one in sharers) - len(sharers)


def _of_ranks(groups: Sequence[Sequence[RankTelemetry]]) -> str:
    sharers = groups[0]
    others = f", and {counted(len(groups) - 1, 'more GPU')} {verb(groups[1:], 'are')} shared"
    gpu = (sharers[0].uuid or "it")[:12]  # the prefix and 8 digits, as in GPU-5f8a1c2d
    return f"Their kernels take turns on {gpu}{others if len(groups) > 1 else ''}."


def _of_others(groups: Sequence[Sequence[RankTelemetry]]) -> str:
    worst = max(groups, key=_num_others)
    what = "a process that belongs" if _num_others(worst) == 1 else "processes that belong"
    return f"On the GPU of {name_ranks(one.rank for one in worst)}, {what} to no rank may compute."


def _effect(cost: int, stretched: int, step: MeanStep) -> str:
    if not cost:
        return "The traces do not show the cost."
    longer = "or stretches them beyond their usual duration"
    how = longer if stretched else "although these are launched"
    return f"For {step.amount(cost)} the GPU runs none of their kernels, {how}."


def _idle_ns(idle: IdleResult, ranks: Sequence[int], step: MeanStep) -> int:
    """Unexplained idle time above that of ranks with a GPU to themselves, mean per step."""
    if idle.is_cpu:
        return 0
    own = [rank.unknown_ns for rank in idle.ranks if rank.rank in ranks]
    others = [rank.unknown_ns for rank in idle.ranks if rank.rank not in ranks]
    if not own:
        return 0
    num_steps = max(1, step.num_samples // len(idle.ranks))
    usual = median(others) if others else 0
    return max(0, round((mean(own) - usual) / num_steps))


NO_STATUS = "no output of nvidia-smi nvlink --status was read: pass it with --with"
_MAX_NAMED, _LINK = 4, 25e9  # Links of most models; those of whole speed may be a list cut off


@rule(
    "TEL105",
    Severity.WARNING,
    costs_time=False,
    peers_ratio=Limit(0.97, "bandwidth relative to the best GPU of the same model"),
    sheet_ratio=Limit(0.95, "bandwidth relative to the data sheet of the GPU"),
)
def inactive_nvlinks(telemetry: TelemetryResult, limits: Limits) -> Iterator[Draft]:
    """GPUs with fewer or slower active NVLinks than other GPUs of the same model, or than the model
    has.
    """
    if not telemetry.nvlinks:
        if telemetry.is_missing:
            raise InsufficientEvidenceError(NO_SENSORS)
        if telemetry.ranks or telemetry.devices:
            raise InsufficientEvidenceError(NO_STATUS)
        return
    for name in dict.fromkeys(links.name for links in telemetry.nvlinks):
        peers = [links for links in telemetry.nvlinks if links.name == name]
        best = max(links.bytes_per_s for links in peers)
        fast = max(_LINK, *(links.bytes_per_s / (links.num_links or 1) for links in peers))
        least = limits["peers_ratio"] * fast  # of each
        slow = [links for links in peers if links.bytes_per_s < least * links.num_links]
        short = [links for links in slow if _is_short(links, best, limits)]
        if short:
            worst = min(short, key=lambda links: links.bytes_per_s)
            num_others = len(short) - 1
            expected = max(best, worst.expected_bytes_per_s or 0.0)
            lack = f"; {counted(num_others, 'more GPU')} also {verb(short[1:], 'lack')} links"
            more = lack if num_others else ""
            has = f"{worst.num_active} of {worst.num_links} NVLinks"
            headline = fitting(f"{worst.device} has only {has}", f"A GPU has only {has}")
            who = "It" if headline.startswith(worst.device) else worst.device
            who = who if worst.rank is None else f"{who} (rank {worst.rank})"
            yield Draft(
                headline=headline,
                message=(
                    f"{who} reaches {format_bandwidth(worst.bytes_per_s)} of "
                    f"{format_bandwidth(expected)} per direction{_which(worst)}{more}."
                ),
                ranks=ranks_of(short),
                evidence=("telemetry.nvlinks",),
            )


def _is_short(links: DeviceNvlink, best: float, limits: Limits) -> bool:
    own, sheet = links.bytes_per_s, links.expected_bytes_per_s
    return own < limits["peers_ratio"] * best or (
        sheet is not None and own < limits["sheet_ratio"] * sheet
    )


def _which(links: DeviceNvlink) -> str:
    if not links.inactive:
        return ""
    some = ", ".join(map(str, links.inactive[:_MAX_NAMED]))
    rest = ", …" if len(links.inactive) > _MAX_NAMED else ""
    return f" (inactive: {some}{rest})"


NO_LINKS = "no PCIe links of working GPUs were read: pass the output of nvidia-smi -q with --with"


@rule("TEL110", Severity.WARNING, costs_time=False)
def reduced_pcie_link(telemetry: TelemetryResult) -> Iterator[Draft]:
    """GPUs whose PCIe link has fewer lanes, or an older generation, than the GPU and its host
    allow.
    """
    judged = [one for one in telemetry.conditions if one.is_in_use and one.pcie_width is not None]
    if not judged:
        if telemetry.is_missing:
            raise InsufficientEvidenceError(NO_SENSORS)
        if telemetry.ranks or telemetry.devices or telemetry.conditions:
            raise InsufficientEvidenceError(NO_LINKS)
        return
    by_link: dict[tuple[str, str], list[DeviceCondition]] = {}
    for one in judged:
        if _below(one.pcie_width, one.pcie_width_max) or _below(
            one.pcie_generation, one.pcie_generation_max
        ):
            # Present and possible link, for example ``PCIe 4.0 x8``, ``PCIe 5.0 x16``
            now = _name(one.pcie_generation, one.pcie_width)
            most = _name(one.pcie_generation_max, one.pcie_width_max)
            by_link.setdefault((now, most), []).append(one)
    yield from (_reduced_pcie_link_draft(link, devices) for link, devices in by_link.items())


def _below(now: int | None, most: int | None) -> bool:
    return now is not None and most is not None and now < most


def _name(generation: int | None, width: int | None) -> str:
    parts = (
        "" if generation is None else f" {generation}.0",
        "" if width is None else f" x{width}",
    )
    return f"PCIe{''.join(parts)}"


def _reduced_pcie_link_draft(link: tuple[str, str], devices: Sequence[DeviceCondition]) -> Draft:
    run = "run" if len(devices) > 1 else "runs"
    allow = "the GPUs and their hosts allow" if len(devices) > 1 else "the GPU and its host allow"
    number = counted(len(devices), "GPU")
    return Draft(
        headline=f"{number} {run} over a slower PCIe link than the hardware allows",
        message=(
            f"{capitalized(name_devices(devices))} {run} over {link[0]}, but {allow} {link[1]}."
        ),
        ranks=ranks_of(devices),
        evidence=("telemetry.conditions",),
    )
