"""Interpret the output of ``nvidia-smi`` on one GPU, in any of its formats.

Each format is read into facts, which map the format's name of a value to its text. This module
lists the names of each value in all formats: the text of ``-q`` and its XML (``-q -x``), with
levels joined by slashes, and the columns of ``--query-gpu``.

Source: ``nvidia-smi`` manual, "GPU Attributes"; ``nvidia-smi --help-query-gpu``; output of drivers
418 to 590 (``nvsmi_device_v11.dtd`` to ``v13``), which renamed throttle reasons to event reasons in
535 and split the power readings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec.structs import asdict

from distprof.ingest.sensors.collect import Identity, bus_id, number, whole
from distprof.run.logs import DeviceState
from distprof.run.records import NO_THROTTLING

# Column of TELEMETRY to the names of its value, best first, and the unit of a plain number.
_VALUES: tuple[tuple[str, tuple[str, ...], float], ...] = (
    (
        "sm_clock_mhz",
        ("clocks/sm", "clocks/sm_clock", "clocks/graphics", "clocks/graphics_clock"),
        1,
    ),
    ("memory_clock_mhz", ("clocks/memory", "clocks/mem_clock"), 1),
    (
        "power_w",
        (
            "gpu_power_readings/instantaneous_power_draw",
            "gpu_power_readings/instant_power_draw",
            "gpu_power_readings/power_draw",
            "power_readings/power_draw",
            "gpu_power_readings/average_power_draw",
        ),
        1,
    ),
    (
        "temperature_c",
        ("temperature/gpu_current_temp", "temperature/gpu_temp", "temperature/gpu"),
        1,
    ),
    ("gpu_utilization_ratio", ("utilization/gpu", "utilization/gpu_util"), 0.01),
    ("memory_utilization_ratio", ("utilization/memory", "utilization/memory_util"), 0.01),
    ("memory_used_bytes", ("fb_memory_usage/used", "memory_usage/used"), 1024.0**2),
    ("pcie_tx_bytes_per_s", ("pci/tx_throughput", "pci/tx_util"), 1e3),
    ("pcie_rx_bytes_per_s", ("pci/rx_throughput", "pci/rx_util"), 1e3),
)

_TEXT_ECC, _CSV_ECC = "ecc_errors/volatile/", "ecc.errors.uncorrected.volatile."
_ECC_TOTAL = (f"{_TEXT_ECC}double_bit/total", f"{_CSV_ECC}total")
_ECC_PARTS = (
    f"{_TEXT_ECC}dram_uncorrectable",
    f"{_TEXT_ECC}sram_uncorrectable",
    f"{_TEXT_ECC}sram_uncorrectable_parity",
    f"{_TEXT_ECC}sram_uncorrectable_sec-ded",
    f"{_TEXT_ECC}sram_uncorrectable_secded",
)

_TEXT_LINK, _XML_LINK = "pci/gpu_link_info/", "pci/pci_gpu_link_info/"
_GENERATION = (
    f"{_TEXT_LINK}pcie_generation/current",
    f"{_XML_LINK}pcie_gen/current_link_gen",
    "pcie.link.gen.current",
)
_GENERATION_MAX = (
    f"{_TEXT_LINK}pcie_generation/max",
    f"{_XML_LINK}pcie_gen/max_link_gen",
    "pcie.link.gen.max",
)
_WIDTH = (
    f"{_TEXT_LINK}link_width/current",
    f"{_XML_LINK}link_widths/current_link_width",
    "pcie.link.width.current",
)
_WIDTH_MAX = (
    f"{_TEXT_LINK}link_width/max",
    f"{_XML_LINK}link_widths/max_link_width",
    "pcie.link.width.max",
)
_REPAIR_PENDING = (
    "remapped_rows/pending",
    "remapped_rows/remapped_row_pending",
    "remapped_rows.pending",
    "retired_pages/pending_page_blacklist",
    "retired_pages/pending_blacklist",
    "retired_pages/pending_retirement",
    "retired_pages.pending",
    "ecc_errors/channel_repair_pending",
    "ecc_errors/tpc_repair_pending",
)
_REPAIR_FAILED = (
    "remapped_rows/remapping_failure_occurred",
    "remapped_rows/remapped_row_failure",
    "remapped_rows.failure",
    "ecc_errors/unrepairable_memory",
)
_RECOVERY = ("gpu_recovery_action",)
_RESET = ("gpu_reset_status/reset_required",)
_PERFORMANCE = ("performance_state", "pstate")
_USE = ("utilization/gpu", "utilization/gpu_util")
_DRIVER, _CUDA = ("driver_version",), ("cuda_version",)


_STATE = (
    *_ECC_TOTAL,
    *_ECC_PARTS,
    *_GENERATION,
    *_GENERATION_MAX,
    *_WIDTH,
    *_WIDTH_MAX,
    *_REPAIR_PENDING,
    *_REPAIR_FAILED,
    *_RECOVERY,
    *_RESET,
    *_PERFORMANCE,
    *_USE,
    *_DRIVER,
    *_CUDA,
)

_REPAIRS_AND_LINKS = frozenset(
    (*_GENERATION, *_WIDTH, *_REPAIR_PENDING, *_REPAIR_FAILED, *_RECOVERY)
)

_REASONS = ("clocks_event_reasons/", "clocks_throttle_reasons/")
_REASON_TAG = re.compile(r"^clocks_(?:event|throttle)_reason_")
_IDLE = ("idle", "gpu_idle")
_OF_DEVICE = ("product_name", "gpu_uuid", "uuid", "pci/bus_id", "pci/pci_bus_id")
_USED = frozenset((*_STATE, *_OF_DEVICE, *(n for _, names, _ in _VALUES for n in names)))
_FAST = ("P0", "P1", "P2")  # states of a busy GPU; in higher ones the link is slowed down as well
_BUSY = 10.0  # a GPU of unknown performance state is in use from this utilisation on, in per cent
_DEPRECATED = "Requested functionality has been deprecated"
_MAX_TEXT = 200
_ANSWERS = {"yes": True, "1": True, "no": False, "0": False}


def is_used(name: str) -> bool:
    """Whether a fact is used, so a reader should keep its text."""
    return name in _USED or name.startswith(_REASONS)


def state_columns(names: Sequence[str]) -> list[tuple[int, str]]:
    """Positions and names of the columns of a query that describe a GPU's state."""
    has_state = any(name in _REPAIRS_AND_LINKS for name in names)
    return [(i, name) for i, name in enumerate(names) if has_state and name in _STATE]


def device_of(facts: Mapping[str, str], bus: str, index: int | None) -> Identity:
    """The GPU, with ``index`` if the output lists all GPUs in their order."""
    return Identity(
        index=index,
        uuid=_text(facts, ("gpu_uuid", "uuid")),
        bus_id=bus_id(_text(facts, ("pci/bus_id", "pci/pci_bus_id")) or bus),
        name=_text(facts, ("product_name",)),
    )


def values_of(facts: Mapping[str, str]) -> dict[str, float | None]:
    """Values of the TELEMETRY columns that the facts contain."""
    values: dict[str, float | None] = {}
    for column, names, scale in _VALUES:
        cell = _text(facts, names)
        value = number(cell)
        if value is not None:
            values[column] = value if "iB" in cell else value * scale
    errors = _errors(facts)
    return values if errors is None else {**values, "ecc_uncorrected": errors}


def reasons_in(facts: Mapping[str, str]) -> str:
    """Throttling reasons joined by commas; empty if unknown."""
    reasons: dict[str, str] = {}  # by their names in ``--query-gpu``
    for name, text in facts.items():
        if name.startswith(_REASONS) and text in ("Active", "Not Active"):
            last = _REASON_TAG.sub("", name.rpartition("/")[2])
            reasons[last.replace("display_clocks_", "display_clock_")] = text
    active = [name for name, text in reasons.items() if text == "Active" and name not in _IDLE]
    return "" if not reasons else ",".join(active) or NO_THROTTLING


def state_of(facts: Mapping[str, str], device: Identity, file: str) -> DeviceState | None:
    """The GPU's state; None if the facts contain none of it."""
    recovery = _text(facts, _RECOVERY) or ("Reset" if _any(facts, _RESET) else "")
    state = DeviceState(
        file=file,
        driver=_text(facts, _DRIVER),
        cuda=_text(facts, _CUDA),
        is_in_use=_is_in_use(facts),
        pcie_generation=_whole(facts, _GENERATION),
        pcie_generation_max=_whole(facts, _GENERATION_MAX),
        pcie_width=_whole(facts, _WIDTH),
        pcie_width_max=_whole(facts, _WIDTH_MAX),
        ecc_uncorrected=_errors(facts),
        is_repair_pending=_any(facts, _REPAIR_PENDING),
        has_repair_failed=_any(facts, _REPAIR_FAILED),
        recovery=recovery if recovery != "None" else "",
        **asdict(device),
    )
    reported = (state.driver, state.pcie_generation, state.pcie_width, state.ecc_uncorrected)
    repairs = (state.is_repair_pending, state.has_repair_failed, state.recovery)
    return state if any(one not in (None, "") for one in (*reported, *repairs)) else None


def _is_in_use(facts: Mapping[str, str]) -> bool | None:
    state = _text(facts, _PERFORMANCE)
    if state:
        return state in _FAST
    use = number(_text(facts, _USE))
    return None if use is None else use >= _BUSY


def _errors(facts: Mapping[str, str]) -> int | None:
    """Uncorrected errors since the driver was loaded."""
    total = _whole(facts, _ECC_TOTAL)
    parts = [count for name in _ECC_PARTS if (count := _whole(facts, (name,))) is not None]
    return total if total is not None else sum(parts) if parts else None


def _any(facts: Mapping[str, str], names: Sequence[str]) -> bool | None:
    """Whether the answer to any of these is yes; None if none is answered."""
    answers = [
        answer for n in names if (answer := _ANSWERS.get(_text(facts, (n,)).lower())) is not None
    ]
    return any(answers) if answers else None


def _whole(facts: Mapping[str, str], names: Sequence[str]) -> int | None:
    """The number of a text such as ``16x``."""
    return whole(_text(facts, names).removesuffix("x"))


def _text(facts: Mapping[str, str], names: Sequence[str]) -> str:
    """The text of the first of these names that has one; empty if none has."""
    for name in names:
        text = facts.get(name, "").strip()[:_MAX_TEXT]
        if text and not text.startswith("[") and text != "N/A" and text != _DEPRECATED:
            return text
    return ""
