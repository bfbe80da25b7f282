"""# inactive-nvlinks

## What it detects
GPUs with fewer or slower active NVLinks than other GPUs of the same model, or than the model has.

## Why it costs time
Collectives inside a node run at the speed of the weakest GPU: one missing link of 18 costs all GPUs
6 % of the bandwidth.

## Evidence needed
The output of `nvidia-smi nvlink --status` from one or more hosts.

## How the cost is computed
Not computed: the output shows links, not the traffic over them. If collectives are slow,
`below-fabric-bandwidth` and `slow-link` report the cost.

## How to fix
Reset the GPUs and restart the fabric manager (`systemctl restart nvidia-fabricmanager`), look for
XID 74 and NVSwitch errors, and have the board checked if the link stays down.

## When it is wrong
Some cloud machines, and PCIe cards, have fewer links than the same chip elsewhere. All their GPUs
then have equal links, and only SXM models are compared with their data sheet.

## Sources
NVIDIA, `nvidia-smi nvlink` manual; formula sheet, "Hardware" (bandwidth by kind).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.telemetry.result import DeviceNvlink, TelemetryResult
from distprof.sections.telemetry.rules._shared import NO_SENSORS
from distprof.terms import Severity
from distprof.units import format_bandwidth

NO_STATUS = "no output of nvidia-smi nvlink --status was read: pass it with --with"
_MAX_NAMED = 4


@rule(
    code="TEL105",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={
        "peers_ratio": Limit(0.97, "bandwidth relative to the best GPU of the same model"),
        "sheet_ratio": Limit(0.95, "bandwidth relative to the data sheet of the GPU"),
    },
    costs_time=False,
)
def check(telemetry: TelemetryResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding per kind of GPU."""
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
            yield _draft(short, best)


def _is_short(links: DeviceNvlink, best: float, limits: Limits) -> bool:
    own, sheet = links.bytes_per_s, links.expected_bytes_per_s
    return own < limits["peers_ratio"] * best or (
        sheet is not None and own < limits["sheet_ratio"] * sheet
    )


def _draft(short: Sequence[DeviceNvlink], best: float) -> Draft:
    worst = min(short, key=lambda links: links.bytes_per_s)
    num_others = len(short) - 1
    expected = max(best, worst.expected_bytes_per_s or 0.0)
    more = f"; {num_others} more GPUs also lack links" if num_others > 1 else ""
    more = "; 1 more GPU also lacks links" if num_others == 1 else more
    rank = "" if worst.rank is None else f" (rank {worst.rank})"
    return Draft(
        message=(
            f"{worst.device}{rank} has {worst.num_active} of {worst.num_links} active NVLinks, "
            f"{format_bandwidth(worst.bytes_per_s)} of {format_bandwidth(expected)} per "
            f"direction{_which(worst)}{more}."
        ),
        fix=(
            "Reset the GPUs and restart the fabric manager, look for XID 74 and NVSwitch errors "
            "in the host's logs, and have the board checked if links stay down."
        ),
        ranks=tuple(sorted(links.rank for links in short if links.rank is not None)),
        evidence=("telemetry.nvlinks",),
    )


def _which(links: DeviceNvlink) -> str:
    if not links.inactive:
        return ""
    some = ", ".join(map(str, links.inactive[:_MAX_NAMED]))
    rest = ", …" if len(links.inactive) > _MAX_NAMED else ""
    return f" (inactive: {some}{rest})"
