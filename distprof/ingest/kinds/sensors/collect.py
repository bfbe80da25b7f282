"""Where readers of sensor files put what they find, in bounded memory."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distprof.run.device_log import Clock, DeviceEvent, DeviceLinks, DeviceLog, DeviceSeries
from distprof.run.records import TELEMETRY
from distprof.schema import ABSENT, Coded, Table

__all__ = ["Collector", "Identity", "Samples"]

MAX_SAMPLES = 20_000_000
"""Of all devices together."""

MAX_DEVICES = 4_096
MAX_EVENTS = 10_000
MAX_NAME = 200
_MAX_WORDS = 10_000

_NUMBERS = tuple(c.name for c in TELEMETRY if c.name != "t_ns" and c.dtype in ("int64", "float64"))
_WORDS = ("throttle_reasons", "xid")
_LARGEST = float(1 << 53)


@dataclass(frozen=True, slots=True)
class Identity:
    """What a row says of its device, as in :class:`~distprof.run.device_log.DeviceSeries`."""

    host: str = ""
    index: int | None = None
    uuid: str = ""
    bus_id: str = ""
    name: str = ""


class Samples:
    """Samples of one device, as compact arrays. A column that no row fills costs nothing."""

    def __init__(self) -> None:
        self._times = array("q")
        self._numbers: dict[str, array[float]] = {}
        self._words: dict[str, tuple[array[int], dict[str, int]]] = {}

    def __len__(self) -> int:
        return len(self._times)

    def add(self, t_ns: int, values: Mapping[str, float | None], reasons: str = "") -> None:
        """Add a row. Values of columns that it does not name are not known."""
        count = len(self._times)
        self._times.append(t_ns)
        for name, value in values.items():
            column = self._numbers.get(name)
            if column is None:
                column = self._numbers[name] = array("d")
            if len(column) < count:
                column.extend([np.nan] * (count - len(column)))
            column.append(np.nan if value is None or not 0 <= value < _LARGEST else value)
        if reasons:
            self._say("throttle_reasons", count, reasons)

    def _say(self, name: str, count: int, word: str) -> None:
        codes, words = self._words.setdefault(name, (array("i"), {"": 0}))
        if len(words) >= _MAX_WORDS and word not in words:
            word = ""
        codes.extend([0] * (count - len(codes)))
        codes.append(words.setdefault(word[:MAX_NAME], len(words)))

    def table(self) -> Table:
        """TELEMETRY, ascending in time."""
        count = len(self._times)
        columns = {"t_ns": np.array(self._times, dtype=np.int64)}
        for column in TELEMETRY:
            if column.name in _NUMBERS:
                columns[column.name] = self._column(column.name, column.dtype, count)
        words = {name: self._coded(name, count) for name in _WORDS}
        table = Table(TELEMETRY, {**columns, **words})
        order = np.argsort(columns["t_ns"], kind="stable")
        return table if (np.diff(columns["t_ns"]) >= 0).all() else table.take(order)

    def _column(self, name: str, dtype: str, count: int) -> NDArray[Any]:
        values = np.full(count, np.nan)
        known = self._numbers.get(name)
        if known is not None:
            values[: len(known)] = known
        if dtype == "float64":
            return values
        return np.where(np.isnan(values), ABSENT, np.rint(np.nan_to_num(values))).astype(np.int64)

    def _coded(self, name: str, count: int) -> Coded:
        codes, words = self._words.get(name, (array("i"), {"": 0}))
        padded = np.zeros(count, np.int32)
        padded[: len(codes)] = codes
        return Coded(padded, tuple(words))


@dataclass(slots=True)
class Collector:
    """Everything that one file tells.

    Args:
        file: Its name, for people.
        written_ns: When it was last written, None where that is not known.
    """

    file: str
    written_ns: int | None = None
    num_lines: int = 0
    num_samples: int = 0
    num_events: int = 0
    events: list[DeviceEvent] = field(default_factory=list)
    links: list[DeviceLinks] = field(default_factory=list)
    uuids: dict[str, str] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    _samples: dict[tuple[Identity, Clock], Samples] = field(default_factory=dict)

    def sample(
        self,
        device: Identity,
        when: tuple[int, Clock] | None,
        values: Mapping[str, float | None],
        reasons: str = "",
    ) -> None:
        """Add a sample; without a time it gets its number."""
        clock: Clock = when[1] if when else "none"
        samples = self._samples.get((device, clock))
        if self.num_samples >= MAX_SAMPLES or (
            samples is None and len(self._samples) >= MAX_DEVICES
        ):
            self.left_out["samples beyond what is kept"] += 1
            return
        if samples is None:
            samples = self._samples[device, clock] = Samples()
        samples.add(when[0] if when else len(samples), values, reasons)
        self.num_samples += 1

    def event(self, event: DeviceEvent) -> None:
        """Add an error."""
        self.num_events += 1
        if len(self.events) < MAX_EVENTS:
            self.events.append(event)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was found."""
        return not (self._samples or self.events or self.links)

    def result(self) -> DeviceLog:
        """The log, with what was left out as notes."""
        series = tuple(
            DeviceSeries(
                file=self.file,
                host=device.host,
                index=device.index,
                uuid=device.uuid,
                bus_id=device.bus_id,
                name=device.name,
                clock=clock,
                table=samples.table(),
            )
            for (device, clock), samples in self._samples.items()
        )
        notes = [*self.notes, *(f"{self.file}: {n:,} {what}." for what, n in self.left_out.items())]
        if self.num_events > len(self.events):
            notes.append(
                f"{self.file} holds {self.num_events:,} errors; the first {MAX_EVENTS:,} are kept."
            )
        return DeviceLog(
            files=(self.file,),
            series=series,
            events=tuple(self.events),
            links=tuple(self.links),
            num_lines=self.num_lines,
            written_ns={} if self.written_ns is None else {self.file: self.written_ns},
            notes=tuple(notes),
        )
