"""Why a GPU's clocks are low: the bits that NVML and DCGM report, and their names."""

from __future__ import annotations

# Bits of nvmlDeviceGetCurrentClocksEventReasons, named as nvidia-smi does (clocks_event_reasons.*).
# Bit 0, "GPU idle", is not throttling.
_REASONS: tuple[tuple[int, str], ...] = (
    (0x002, "applications_clocks_setting"),
    (0x004, "sw_power_cap"),
    (0x008, "hw_slowdown"),
    (0x010, "sync_boost"),
    (0x020, "sw_thermal_slowdown"),
    (0x040, "hw_thermal_slowdown"),
    (0x080, "hw_power_brake_slowdown"),
    (0x100, "display_clock_setting"),
)
_KNOWN = 0x001 | sum(bit for bit, _ in _REASONS)


def throttle_reasons(bits: int) -> tuple[str, ...]:
    """Names of the active reasons, except idle; unknown bits as one hexadecimal number."""
    named = tuple(name for bit, name in _REASONS if bits & bit)
    unknown = bits & ~_KNOWN
    return (*named, f"0x{unknown:x}") if unknown else named
