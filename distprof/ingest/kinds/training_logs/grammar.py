"""What every grammar of a training log has in common: signs to look for, and what it gathers."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from distprof.units import NS_PER_MS, NS_PER_S

__all__ = [
    "MAX_ROWS",
    "NUMBER",
    "Grammar",
    "Row",
    "TimerValues",
    "ms_to_ns",
    "s_to_ns",
    "stamp_s",
    "to_float",
    "to_int",
]

MAX_ROWS = 500_000
MAX_TIMERS = 200
MAX_TIMER_VALUES = 4_000_000
MAX_SECONDS = 1e7
"""An iteration that lasts longer (four months) was written in another unit."""

MAX_COUNT = 1 << 53
NUMBER = rb"[-+]?(?:\d{1,25}(?:\.\d{0,25})?|\.\d{1,25})(?:[eE][-+]?\d{1,4})?"
"""One way to match, whatever stands there: hostile lines cost no more than others."""
_STAMP = re.compile(rb"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")


class Row(NamedTuple):
    """One report on iterations.

    Args:
        iteration: Number of the last iteration that it is about, None where not told.
        duration_ns: Of one iteration, None where not told.
        span: Iterations that it is the mean of; None where only the numbers can tell.
        samples_per_s: All ranks together.
        tokens_per_s: All ranks together.
        tokens_per_s_per_device: Of one device.
        tflops: Per device.
        loss: As printed.
        rank: Rank that printed it, None where not told.
        at_s: Time of the report, seconds since any moment, None where not told.
    """

    iteration: int | None
    duration_ns: int | None = None
    span: int | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    tokens_per_s_per_device: float | None = None
    tflops: float | None = None
    loss: float | None = None
    rank: int | None = None
    at_s: float | None = None


@dataclass(slots=True)
class TimerValues:
    """Values of one timer.

    Args:
        report: Indexes of the reports that they belong to, ascending.
        ns: Per iteration.
    """

    report: array[int] = field(default_factory=lambda: array("q"))
    ns: array[int] = field(default_factory=lambda: array("q"))


@dataclass(slots=True)
class Grammar:
    """A way of writing that is looked for in every block of a log. Subclasses say how.

    Args:
        rows: Reports, in the order of the log.
        timers: Of each timer, its values.
        startup: Timers before the first report.
        facts: What is said of the job, by the names of :class:`TrainingFacts`' fields and axes.
        num_unknown: Lines with a sign that could not be understood.
        rates: Throughput printed on its own, samples per second of all ranks together.
        num_timer_lines: Lines with timers.
        num_timer_values: Values of timers that are kept.
        is_full: Whether more reports came than are kept.
        is_of_slowest_ranks: Whether timers are of whichever rank was slowest in each.
        notes: What was assumed.
    """

    rows: list[Row] = field(default_factory=list)
    timers: dict[str, TimerValues] = field(default_factory=dict)
    startup: dict[str, int] = field(default_factory=dict)
    facts: dict[str, int] = field(default_factory=dict)
    num_unknown: int = 0
    num_timer_lines: int = 0
    num_timer_values: int = 0
    rates: list[float] = field(default_factory=list)
    is_full: bool = False
    is_of_slowest_ranks: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Whose words they are."""
        raise NotImplementedError

    @property
    def signs(self) -> tuple[bytes, ...]:
        """A block without any of these holds nothing of the grammar."""
        raise NotImplementedError

    def take(self, block: bytes) -> None:
        """Gather from whole lines that hold a sign."""
        raise NotImplementedError

    def finish(self) -> None:
        """Called after the last block."""

    def add(self, row: Row) -> None:
        """Keep a report, unless there are too many."""
        if len(self.rows) >= MAX_ROWS:
            self.is_full = True
        else:
            self.rows.append(row)

    def add_timers(self, timers: Mapping[str, int]) -> None:
        """Keep timers of the last report, or of the start."""
        self.num_timer_lines += 1
        index = len(self.rows) - 1
        for name, ns in timers.items():
            if index < 0:
                if len(self.startup) < MAX_TIMERS:
                    self.startup[name] = ns
            elif name in self.timers or len(self.timers) < MAX_TIMERS:
                self._add_timer(self.timers.setdefault(name, TimerValues()), index, ns)

    def _add_timer(self, values: TimerValues, index: int, ns: int) -> None:
        """The last value that belongs to a report counts."""
        if values.report and values.report[-1] == index:
            values.ns[-1] = ns
        elif self.num_timer_values < MAX_TIMER_VALUES and not self.is_full:
            values.report.append(index)
            values.ns.append(ns)
            self.num_timer_values += 1
        else:
            self.is_full = True


def to_float(text: bytes | None) -> float | None:
    """A finite number; None for anything else."""
    if text is None:
        return None
    try:
        value = float(text.replace(b",", b""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def to_int(text: bytes | None) -> int | None:
    """A count of a bearable size; None for anything else."""
    if text is None or not 0 < len(text) < 20:
        return None
    try:
        value = int(text.replace(b",", b""))
    except ValueError:
        return None
    return value if 0 <= value < MAX_COUNT else None


def ms_to_ns(value: float | None) -> int | None:
    """Milliseconds as int ns; None where it cannot be a time of an iteration."""
    if value is None or not 0 <= value < MAX_SECONDS * 1e3:
        return None
    return round(value * NS_PER_MS)


def s_to_ns(value: float | None) -> int | None:
    """Seconds as int ns; None where it cannot be a time of an iteration."""
    if value is None or not 0 <= value < MAX_SECONDS:
        return None
    return round(value * NS_PER_S)


def stamp_s(text: bytes) -> float | None:
    """The last date and time in a text as seconds since 1970, zones left aside."""
    stamps = list(_STAMP.finditer(text))
    if not stamps:
        return None
    found = stamps[-1]
    parts = [int(part) for part in found.groups()[:6]]
    try:
        moment = datetime(*parts)  # type: ignore[arg-type]
    except ValueError:
        return None
    fraction = float(b"0." + found[7]) if found[7] else 0.0
    return (moment - datetime(1970, 1, 1)).total_seconds() + fraction
