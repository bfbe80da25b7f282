"""What a slow device's sensors show that its peers' do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from distprof.analyzers.telemetry import RankTelemetry, TelemetryResult
from distprof.analyzers.telemetry_window import WindowSensors
from distprof.units import format_ratio

__all__ = ["sensed_difference"]

_Figures: TypeAlias = RankTelemetry | WindowSensors

LOWER_CLOCK = 0.97
"""Clock relative to the peers' median from which it counts as low."""
MORE_THROTTLED = 0.2
"""Share of samples beyond the peers' median in which something slows the device down."""


def sensed_difference(
    rank: int, peers: Sequence[int], telemetry: TelemetryResult | None
) -> tuple[tuple[str, ...], str]:
    """Sentences on throttling, clocks and heat, and the word for the first that differs.

    Args:
        rank: The slow rank.
        peers: Ranks it is compared with, itself among them.
        telemetry: Of all ranks; nothing is said without it.

    Returns:
        Evidence, and ``throttled``, ``low_clocks`` or nothing.
    """
    rows = {row.rank: row for row in telemetry.ranks} if telemetry is not None else {}
    with_sensors = [rows[peer] for peer in peers if peer != rank and peer in rows]
    if rank not in rows or not with_sensors:
        return (), ""
    own, others = _comparable(rows[rank], with_sensors)
    found = [
        text
        for text in (_throttling(own, others), _clock(own, others), _heat(own, others))
        if text is not None
    ]
    detail = "low_clocks" if _clock(own, others) else ""
    detail = "throttled" if _throttling(own, others) else detail
    return tuple(found), detail


def _comparable(
    own: RankTelemetry, others: Sequence[RankTelemetry]
) -> tuple[_Figures, list[_Figures]]:
    """Figures of the analysed steps, where the rank and a peer have them; else of the whole run.

    A device that was throttled before or after says nothing of why these steps were slow.
    """
    in_steps: list[_Figures] = [row.in_steps for row in others if row.in_steps is not None]
    if own.in_steps is not None and in_steps:
        return own.in_steps, in_steps
    return own, list(others)


def _median(others: Sequence[_Figures], value: Callable[[_Figures], float | None]) -> float | None:
    known = [number for number in map(value, others) if number is not None]
    return float(np.median(known)) if known else None


def _throttling(own: _Figures, others: Sequence[_Figures]) -> str | None:
    usual = _median(others, lambda row: row.throttled_ratio)
    if own.throttled_ratio is None or usual is None:
        return None
    if own.throttled_ratio - usual < MORE_THROTTLED:
        return None
    reasons = ", ".join(sorted(own.throttle_reasons, key=lambda key: -own.throttle_reasons[key]))
    return (
        f"its device is throttled in {format_ratio(own.throttled_ratio)} of the samples "
        f"({reasons or 'no reason told'}), its peers' median is {format_ratio(usual)}"
    )


def _clock(own: _Figures, others: Sequence[_Figures]) -> str | None:
    usual = _median(others, lambda row: row.sm_clock_mhz_median)
    if own.sm_clock_mhz_median is None or not usual:
        return None
    if own.sm_clock_mhz_median > LOWER_CLOCK * usual:
        return None
    return f"its clock is {own.sm_clock_mhz_median} MHz, its peers' median is {usual:.0f} MHz"


def _heat(own: _Figures, others: Sequence[_Figures]) -> str | None:
    usual = _median(others, lambda row: row.temperature_c_max)
    if own.temperature_c_max is None or usual is None or own.temperature_c_max < usual + 8:
        return None
    return f"it gets {own.temperature_c_max} °C hot, its peers' median is {usual:.0f} °C"
