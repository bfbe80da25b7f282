"""Rules about links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distprof.escape import fitting
from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.table import counted
from distprof.sections.telemetry import DeviceCondition, DeviceNvlink, TelemetryResult
from distprof.sections.telemetry.rules.devices import NO_SENSORS, name_devices, ranks_of
from distprof.terms import Severity
from distprof.units import capitalized, format_bandwidth

NO_STATUS = "no output of nvidia-smi nvlink --status was read: pass it with --with"
_MAX_NAMED = 4


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

    ## Why it costs time
    Collectives inside a node run at the speed of the weakest GPU: one missing link of 18 costs all
    GPUs 6 % of the bandwidth.

    ## Evidence needed
    The output of `nvidia-smi nvlink --status` from one or more hosts.

    ## How the cost is computed
    Not computed: the output shows links, not the traffic over them. If collectives are slow,
    `below-fabric-bandwidth` and `slow-link` report the cost.

    ## How to fix
    Reset the GPUs and restart the fabric manager (`systemctl restart nvidia-fabricmanager`), look
    for XID 74 and NVSwitch errors, and have the board checked if the link stays down.

    ## When it is wrong
    Some cloud machines, and PCIe cards, have fewer links than the same chip elsewhere. All their
    GPUs then have equal links, and only SXM models are compared with their data sheet.

    ## Sources
    NVIDIA, `nvidia-smi nvlink` manual; formula sheet, "Hardware" (bandwidth by kind).
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
        short = [links for links in peers if _is_short(links, best, limits)]
        if short:
            worst = min(short, key=lambda links: links.bytes_per_s)
            num_others = len(short) - 1
            expected = max(best, worst.expected_bytes_per_s or 0.0)
            more = f"; {num_others} more GPUs also lack links" if num_others > 1 else ""
            more = "; 1 more GPU also lacks links" if num_others == 1 else more
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
                fix=(
                    "Reset the GPUs and restart the fabric manager, look for XID 74 and NVSwitch "
                    "errors in the host's logs, and have the board checked if links stay down."
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
def reduced_pcie_link(telemetry: TelemetryResult, limits: Limits) -> Iterator[Draft]:  # noqa: ARG001
    """GPUs whose PCIe link has fewer lanes, or an older generation, than the GPU and its host
    allow.

    ## Why it costs time
    Copies between CPU and GPU, and traffic to network cards and to GPUs without NVLink, run over
    this link. Half the lanes give half the bandwidth, and every other rank waits for this one.

    ## Evidence needed
    The output of `nvidia-smi -q` or `nvidia-smi -q -x`, or of `nvidia-smi --query-gpu` with
    `pcie.link.gen.current`, `pcie.link.gen.max`, `pcie.link.width.current`, `pcie.link.width.max`
    and `pstate`, taken while the GPUs work.

    ## How the cost is computed
    Not computed: the output shows the link, not the traffic over it.

    ## How to fix
    Reseat the GPU, its riser and its cables, and look for PCIe errors in the kernel log of its
    host. Then look at the slot's settings in the firmware of the host (generation, bifurcation).

    ## When it is wrong
    A slot may be wired with fewer lanes than the GPU has. GPUs slow the link down to save power
    when they are idle: distprof judges only those in performance states P0 to P2.

    ## Sources
    NVIDIA, `nvidia-smi` manual, "GPU Link Info".
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
        fix=(
            "Reseat the GPU, its riser and its cables, look for PCIe errors in the kernel log of "
            "its host, and compare the settings of its slot in the firmware with those of others."
        ),
        ranks=ranks_of(devices),
        evidence=("telemetry.conditions",),
    )
