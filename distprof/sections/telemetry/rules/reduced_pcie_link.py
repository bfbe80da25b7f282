"""# reduced-pcie-link

## What it detects
GPUs whose PCIe link has fewer lanes, or an older generation, than the GPU and its host allow.

## Why it costs time
Copies between CPU and GPU, and traffic to network cards and to GPUs without NVLink, run over this
link. Half the lanes give half the bandwidth, and every other rank waits for this one.

## Evidence needed
The output of `nvidia-smi -q` or `nvidia-smi -q -x`, or of `nvidia-smi --query-gpu` with
`pcie.link.gen.current`, `pcie.link.gen.max`, `pcie.link.width.current`, `pcie.link.width.max` and
`pstate`, taken while the GPUs work.

## How the cost is computed
Not computed: the output shows the link, not the traffic over it.

## How to fix
Reseat the GPU, its riser and its cables, and look for PCIe errors in the kernel log of its host.
Then look at the slot's settings in the firmware of the host (generation, bifurcation).

## When it is wrong
A slot may be wired with fewer lanes than the GPU has. GPUs slow the link down to save power when
they are idle: distprof judges only those in performance states P0 to P2.

## Sources
NVIDIA, `nvidia-smi` manual, "GPU Link Info".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distprof.rules.base import Draft, InsufficientEvidenceError, Limits, rule
from distprof.sections.telemetry.result import DeviceCondition, TelemetryResult
from distprof.sections.telemetry.rules._shared import NO_SENSORS, name_devices, ranks_of_devices
from distprof.terms import Severity
from distprof.units import capitalized

NO_LINKS = "no PCIe links of working GPUs were read: pass the output of nvidia-smi -q with --with"


@rule(
    code="TEL110",
    severity=Severity.WARNING,
    since="0.1.0",
    costs_time=False,
)
def check(telemetry: TelemetryResult, limits: Limits) -> Iterator[Draft]:  # noqa: ARG001
    """Yield one finding per combination of present and possible link."""
    judged = [one for one in telemetry.conditions if one.is_in_use and one.pcie_width is not None]
    if not judged:
        if telemetry.is_missing:
            raise InsufficientEvidenceError(NO_SENSORS)
        if telemetry.ranks or telemetry.devices or telemetry.conditions:
            raise InsufficientEvidenceError(NO_LINKS)
        return
    by_link: dict[tuple[str, str], list[DeviceCondition]] = {}
    for one in judged:
        if _is_reduced(one):
            by_link.setdefault(_link(one), []).append(one)
    yield from (_draft(link, devices) for link, devices in by_link.items())


def _is_reduced(one: DeviceCondition) -> bool:
    return _below(one.pcie_width, one.pcie_width_max) or _below(
        one.pcie_generation, one.pcie_generation_max
    )


def _below(now: int | None, most: int | None) -> bool:
    return now is not None and most is not None and now < most


def _link(one: DeviceCondition) -> tuple[str, str]:
    """Present and possible link, for example ``PCIe 4.0 x8``, ``PCIe 5.0 x16``."""
    now = _name(one.pcie_generation, one.pcie_width)
    return now, _name(one.pcie_generation_max, one.pcie_width_max)


def _name(generation: int | None, width: int | None) -> str:
    parts = (
        "" if generation is None else f" {generation}.0",
        "" if width is None else f" x{width}",
    )
    return f"PCIe{''.join(parts)}"


def _draft(link: tuple[str, str], devices: Sequence[DeviceCondition]) -> Draft:
    run = "run" if len(devices) > 1 else "runs"
    allow = "the GPUs and their hosts allow" if len(devices) > 1 else "the GPU and its host allow"
    return Draft(
        message=(
            f"{capitalized(name_devices(devices))} {run} over {link[0]}, but {allow} {link[1]}."
        ),
        fix=(
            "Reseat the GPU, its riser and its cables, look for PCIe errors in the kernel log of "
            "its host, and compare the settings of its slot in the firmware with those of others."
        ),
        ranks=ranks_of_devices(devices),
        evidence=("telemetry.conditions",),
    )
