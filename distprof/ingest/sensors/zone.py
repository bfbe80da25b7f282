"""When local times were: the zone under which samples cover the recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distprof.run.device_log import Clock
from distprof.run.run import Run
from distprof.schema import Int64Array
from distprof.units import NS_PER_S

__all__ = ["Recorded", "Zone", "find_zone", "recorded"]

QUARTER_NS = 900 * NS_PER_S
"""Zones differ from UTC by multiples of this."""

_FARTHEST = 14 * 4  # quarters of an hour: no zone is farther from UTC
_LEAST_SHARED = 0.5
_SLACK_NS = 2 * NS_PER_S
_WRITTEN_WITHIN_NS = 5 * NS_PER_S


@dataclass(frozen=True, slots=True)
class Recorded:
    """The time that a recording covers, ns since the epoch."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Zone:
    """What to add to times, ns, and for people what was decided."""

    shift_ns: int
    text: str = ""


def recorded(run: Run) -> Recorded | None:
    """When the run was recorded: its traces, else its job; None where neither tells."""
    ranks = [rank for rank in run.ranks if rank.has_epoch]
    if ranks:
        return Recorded(
            min(rank.capture_start_ns for rank in ranks), max(rank.capture_end_ns for rank in ranks)
        )
    if run.job is not None and run.job.ended_ns is not None:
        return Recorded(run.job.started_ns, run.job.ended_ns)
    return None


def find_zone(
    clock: Clock, times: Sequence[Int64Array], when: Recorded, written_ns: int | None
) -> Zone | None:
    """The shift under which samples cover the recording.

    Samples of a whole day cover a recording of a minute under many zones; then the one is taken
    under which the file was last written when its last sample was taken.

    Args:
        clock: What the times are; not ``none``.
        times: Of the series of one file, each ascending.
        when: The recording.
        written_ns: When the file was last written, None where that is not known.

    Returns:
        None where no zone fits, or several do.
    """
    times = [series for series in times if len(series)]
    if not times:
        return None
    first = min(int(series[0]) for series in times)
    last = max(int(series[-1]) for series in times)
    slack = _SLACK_NS + 2 * _period(times)
    if clock == "epoch":
        return Zone(0) if _covers(first, last, 0, when, slack) else None
    low = -(-(when.start_ns - slack - last) // QUARTER_NS)
    high = (when.end_ns + slack - first) // QUARTER_NS
    if clock == "local":
        low, high = max(low, -_FARTHEST), min(high, _FARTHEST)
    fitting = [
        k * QUARTER_NS
        for k in range(low, min(high, low + 10_000) + 1)
        if _covers(first, last, k * QUARTER_NS, when, slack)
    ]
    if len(fitting) > 1 and written_ns is not None:
        fitting = [s for s in fitting if abs(last + s - written_ns) < _WRITTEN_WITHIN_NS + slack]
    if len(fitting) != 1:
        return None
    (shift,) = fitting
    return Zone(shift, f"taken as local time of {_name(shift)}" if clock == "local" else "")


def _covers(first: int, last: int, shift: int, when: Recorded, slack: int) -> bool:
    start, end = first + shift - slack, last + shift + slack
    shared = min(end, when.end_ns) - max(start, when.start_ns)
    return shared >= _LEAST_SHARED * (when.end_ns - when.start_ns) and shared >= 0


def _period(times: Sequence[Int64Array]) -> int:
    """Time from one sample to the next, at most a minute."""
    steps = [int(np.median(np.diff(series))) for series in times if len(series) > 1]
    return min(max(steps, default=0), 60 * NS_PER_S)


def _name(shift_ns: int) -> str:
    """``UTC``, ``UTC+02:00``: times of that zone are less by its distance."""
    minutes = -shift_ns // (60 * NS_PER_S)
    if minutes == 0:
        return "UTC"
    hours, rest = divmod(abs(minutes), 60)
    return f"UTC{'+' if minutes > 0 else '-'}{hours:02d}:{rest:02d}"
