"""What rules on sensors share: devices with or without a rank. Private to this family: no rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from distprof.rules.base import InsufficientEvidenceError
from distprof.run.device_log import name_of_device
from distprof.sections.stragglers.result import StragglersResult
from distprof.sections.telemetry.result import RankTelemetry, TelemetryResult, WindowSensors
from distprof.terms import Confidence
from distprof.units import name_ranks

__all__ = [
    "NO_SENSORS",
    "Meaning",
    "Unit",
    "by_kind",
    "cost_of",
    "meaning_of",
    "median_of",
    "medians_of_others",
    "named",
    "ranks_of",
    "units_of",
]

NO_SENSORS = (
    "no sensors were recorded: name what nvidia-smi or DCGM wrote beside the job after --with, or "
    "record with distprof capture"
)

LEAST_BUSY = 0.5
"""Share of time with a kernel running from which a device without a rank counts as working."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One device.

    Args:
        rank: Who ran on it, None where that is not known.
        label: Its name where it has no rank.
        kind: What is compared with it: devices of the same name, or all ranks'.
        figures: Of the analysed steps where they are known, else of the whole run.
        is_in_steps: Which of these.
    """

    rank: int | None
    label: str
    kind: str
    figures: WindowSensors | RankTelemetry
    is_in_steps: bool

    @property
    def is_sure(self) -> bool:
        """Whether samples were taken during the analysed steps."""
        return isinstance(self.figures, WindowSensors) and not self.figures.is_bracketed

    @property
    def is_busy(self) -> bool:
        """Whether it surely worked while it was sampled, so that a low clock means something."""
        used = self.figures.gpu_utilization_ratio
        return self.is_in_steps if used is None else used >= LEAST_BUSY


def units_of(telemetry: TelemetryResult) -> list[Unit]:
    """Devices with sensors; none for jobs without devices.

    Raises:
        InsufficientEvidenceError: If the job has devices, and nothing was recorded of them.
    """
    if telemetry.is_missing:
        raise InsufficientEvidenceError(NO_SENSORS)
    units = [
        Unit(
            rank=row.rank,
            label="",
            kind="",
            figures=row.in_steps or row,
            is_in_steps=row.in_steps is not None,
        )
        for row in telemetry.ranks
    ]
    units += [
        Unit(
            rank=None,
            label=name_of_device(device.host, device.index, device.bus_id, device.uuid),
            kind=device.name or device.file,
            figures=device.sensors,
            is_in_steps=False,
        )
        for device in telemetry.devices
    ]
    return units


def named(units: Sequence[Unit]) -> str:
    """For example ``The devices of ranks 3, 5``, ``GPU 3 of node-1, GPU 4 of node-1``."""
    ranks = ranks_of(units)
    others = list(dict.fromkeys(unit.label for unit in units if unit.rank is None))
    parts = [f"the device{'s' if len(ranks) > 1 else ''} of {name_ranks(ranks)}"] if ranks else []
    if others:
        more = f" and {len(others) - 4} more" if len(others) > 4 else ""
        parts.append(", ".join(others[:4]) + more)
    text = " and ".join(parts)
    return text[:1].upper() + text[1:]


def ranks_of(units: Sequence[Unit]) -> tuple[int, ...]:
    """Their ranks, ascending."""
    return tuple(sorted(unit.rank for unit in units if unit.rank is not None))


def median_of(
    units: Sequence[Unit], value: Callable[[WindowSensors | RankTelemetry], float | None]
) -> float | None:
    """Median over the devices that tell; None where none does."""
    known = [number for unit in units if (number := value(unit.figures)) is not None]
    return float(np.median(known)) if known else None


def medians_of_others(values: Sequence[float | None]) -> list[float | None]:
    """For each value the median of the others that are known, None where there are none.

    Jobs have thousands of devices: the values are sorted once.
    """
    known = sorted((value, i) for i, value in enumerate(values) if value is not None)
    numbers = [value for value, _ in known]
    result = [_median(numbers)] * len(values)
    for place, (_, i) in enumerate(known):
        result[i] = _median(numbers, without=place)
    return result


def _median(ascending: Sequence[float], without: int | None = None) -> float | None:
    """Median of sorted numbers, of all or all but one."""
    count = len(ascending) - (without is not None)
    if count <= 0:
        return None
    places = ((count - 1) // 2, count // 2)
    low, high = (p + 1 if without is not None and p >= without else p for p in places)
    return (ascending[low] + ascending[high]) / 2


def by_kind(units: Sequence[Unit]) -> list[list[Unit]]:
    """Devices that are compared with each other."""
    kinds: dict[str, list[Unit]] = {}
    for unit in units:
        kinds.setdefault(unit.kind, []).append(unit)
    return list(kinds.values())


def cost_of(
    units: Sequence[Unit], stragglers: StragglersResult
) -> tuple[int | None, str, Confidence]:
    """What the others wait for these ranks per step, the scenario without it, and how sure.

    One rank's is simulated; of several only the waiting is known.
    """
    ranks = ranks_of(units)
    wanted = set(ranks)
    lost = sum(row.lost_ns_per_step for row in stragglers.ranks if row.rank in wanted)
    sure = all(unit.is_sure for unit in units)
    without = f"rank {ranks[0]}" if len(ranks) == 1 and lost else ""
    return lost or None, without, Confidence.MEASURED if sure else Confidence.INFERRED


# Well-known XID errors of GPUs: what they mean and what to do. Private to this family: no rul ----

_RESET = (
    "Drain the host, reset the GPU (nvidia-smi -r) or reboot; replace it if the error comes back."
)

_PROGRAM = (
    "Run the program with compute-sanitizer, and with CUDA_LAUNCH_BLOCKING=1, to find the kernel; "
    "if several programs have it on this GPU alone, run diagnostics (dcgmi diag -r 3)."
)

_LINK = (
    "Reset all GPUs of the host and its switches; if it comes back, have links and boards checked."
)


@dataclass(frozen=True, slots=True)
class Meaning:
    """What an XID means.

    Args:
        text: For people.
        fix: What to do.
        is_hardware: Whether the device, and not usually the program, is at fault.
    """

    text: str
    fix: str
    is_hardware: bool = True


_MEANINGS = {
    13: Meaning("a kernel did something illegal (graphics engine exception)", _PROGRAM, False),
    31: Meaning("a kernel reached for memory that is not its own (page fault)", _PROGRAM, False),
    43: Meaning("the GPU stopped a program's work, mostly for a fault of its own", _PROGRAM, False),
    45: Meaning(
        "a program's work was cleared away, as it died or after another error",
        "Look for the error before it in the same log, and for who ended the program.",
        False,
    ),
    48: Meaning(
        "memory had an error of two bits that could not be corrected",
        "Drain the host and reset the GPU, so that the row is remapped; replace it if rows run out "
        "(nvidia-smi -q -d ROW_REMAPPER).",
    ),
    61: Meaning("the GPU's own controller stopped at a breakpoint or a warning", _RESET),
    62: Meaning("the GPU's own controller halted", _RESET),
    63: Meaning(
        "a row of memory was remapped, or a page retired, after errors",
        "Reset the GPU at the next chance, as only then it takes effect; watch if more follow.",
    ),
    64: Meaning(
        "a row of memory could not be remapped, or a page not retired",
        "Drain the host and reset the GPU; replace it if the error comes back.",
    ),
    74: Meaning("an NVLink had an error", _LINK),
    79: Meaning(
        "the GPU fell off the bus",
        "Reboot the host; if it comes back, look at power, seating and PCIe, and replace the GPU.",
    ),
    92: Meaning(
        "memory has many errors of single bits",
        "Watch the GPU (nvidia-smi -q -d ECC), and have it replaced if the rate stays high.",
    ),
    94: Meaning(
        "an error of memory that could not be corrected was contained in one program",
        "Restart the program, and reset the GPU at the next chance.",
    ),
    95: Meaning(
        "an error of memory could be neither corrected nor contained",
        "Drain the host and reset the GPU at once: results of every program on it may be wrong.",
    ),
    119: Meaning("the GPU's system processor did not answer in time (GSP)", _RESET),
    120: Meaning("the GPU's system processor had an error (GSP)", _RESET),
}

_UNKNOWN = Meaning(
    "see NVIDIA's list of XID errors",
    "Look the number up in NVIDIA's list of XID errors, and run dcgmi diag -r 3 on the host.",
    False,
)


def meaning_of(number: int) -> Meaning:
    """What a number means; of one that is not well known, where to look."""
    return _MEANINGS.get(number, _UNKNOWN)
