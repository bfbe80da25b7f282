"""Writes the tracks of one rank: steps, collectives, pipeline slots, streams, threads, sensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Literal

import msgspec
import numpy as np

from distprof.intervals import Intervals, union
from distprof.run.records import MEMORY_LOG, TELEMETRY
from distprof.run.run import Rank, Run
from distprof.run.tables import RankTables, distinct, intervals_of, runs_of
from distprof.schema import ABSENT, Coded, Column, Int64Array, Table, TableSchema
from distprof.sections.context import RankAnalysis
from distprof.sections.picture.drawing import call_names, slot_names
from distprof.sections.stragglers import StragglerSet
from distprof.terms import ActivityKind, StepSource
from distprof.verbs.export import Arrivals, CommonClock, inside, lanes_of
from distprof.verbs.export.packets import PacketSequence, Slices

Only = Literal["collectives", "gpu"]
ONLY: tuple[Only, ...] = ("collectives", "gpu")
"""Choices to write only part of a rank."""
WAITS = "waits for rank {}"
WITHIN_ERROR = "wait shorter than the clock error"
TRANSFERS = "transfer"
LATE = "all other members wait for this rank"
_STEPS, _COLLECTIVES, _LATE, _SLOTS, _STREAMS, _THREADS, _SENSORS = range(7)
_PLACES = 10_000  # tracks of each of these kinds that keep their order


class RankTracks(msgspec.Struct, frozen=True, kw_only=True):
    """Writes the tracks of one rank."""

    run: Run  # The recording.
    rank: Rank  # The rank.
    clock: CommonClock  # The clock of the file.
    arrivals: Arrivals  # Arrivals of all members at its collectives.
    # When the last member started, per row of COLLECTIVES, on the rank's own clock; ABSENT if
    # unknown.
    wait_end_ns: Int64Array
    analysis: RankAnalysis | None  # Its analysis; None if it was not analysed.
    slow: Sequence[StragglerSet]  # Straggler sets that it belongs to.
    steps: frozenset[int] | None  # Numbers of the steps to write; None for all.
    only: Only | None  # Part to write; None for everything.
    packets: PacketSequence  # Sequence of packets to write to.
    parent: int  # Track of the rank.

    def write(self) -> int:
        """Write the tracks and return the number of slices."""
        written = self._steps() + self._collectives() + self._late() + self._slots()
        if self.only != "collectives":
            tables = self.rank.tables.load(every_host_row=self.only is None)
            written += self._streams(tables)
            written += self._threads(tables) if self.only is None else 0
        self._sensors()
        return written

    # Tracks with results of distprof --------------------------------------------------------------

    def _steps(self) -> int:
        table = self.rank.steps.take(inside(intervals_of(self.rank.steps), self._windows))
        label = "capture" if self.rank.step_source is StepSource.CAPTURE else "step {}"
        rows = zip(table["step"].tolist(), table["complete"].tolist(), strict=True)
        cut = " (cut by the capture)"
        names = [label.format(step) + ("" if complete else cut) for step, complete in rows]
        own = intervals_of(table)
        return self._write("steps", _STEPS, own, Coded.encode(names), _constant("step", own.size))

    def _collectives(self) -> int:
        """Each collective, and inside it the wait for its last member and the transfer."""
        table = self.rank.collectives
        kept = inside(intervals_of(table), self._windows)
        own = intervals_of(table.take(kept))
        whole = Slices(
            spans=self.clock.spans(self.rank.rank, own),
            name=call_names(self.analysis, table, kept),
            category=_constant("collective", len(kept)),
            flow=self.arrivals.instance[kept],
            numbers={
                "bytes": table["bytes"][kept],
                "sequence number": table["seq"][kept],
                "last rank": self.arrivals.last_rank[kept],
            },
        )
        inner = self._waits_and_transfers(own, kept)
        return self._write_lanes("collectives", _COLLECTIVES, whole, inner)

    def _waits_and_transfers(self, own: Intervals, kept: Int64Array) -> Slices:
        """The waits, then the transfers, of collectives whose last member is known."""
        until = self.wait_end_ns[kept]
        known = np.flatnonzero((until != ABSENT) & (own.end > own.start))
        middle = np.clip(until[known], own.start[known], own.end[known])
        last = self.arrivals.last_rank[kept][known]
        waits = np.flatnonzero(middle > own.start[known])
        moves = np.flatnonzero(middle < own.end[known])
        start = np.concatenate((own.start[known][waits], middle[moves]))
        end = np.concatenate((middle[waits], own.end[known][moves]))
        error = self.clock.error_between(self.rank.rank, last[waits])
        columns = (last[waits], (end - start)[: len(waits)], error)
        names = [
            WAITS.format(rank) if wait > error >= 0 else WITHIN_ERROR
            for rank, wait, error in np.stack(columns, axis=1).tolist()
        ]
        both = ["wait"] * len(waits) + ["transfer"] * len(moves)
        return Slices(
            spans=self.clock.spans(self.rank.rank, Intervals(start, end)),
            name=Coded.encode(names + [TRANSFERS] * len(moves)),
            category=Coded.encode(both),
        )

    def _late(self) -> int:
        """Steps in which the rank is a straggler, and times when only it was missing."""
        if not self.slow:
            return 0
        rank, table = self.rank.rank, self.rank.collectives
        start, before = table["start_ns"], self.arrivals.others_ns + self.clock.shift_ns
        common = self.clock.times(rank, start)
        late = (self.arrivals.last_rank == rank) & (self.wait_end_ns != ABSENT) & (before < common)
        rows = np.flatnonzero(late)
        rows = rows[np.isin(rows, inside(intervals_of(table), self._windows))]
        waited = common[rows] - before[rows]
        others = np.array([rank.rank for rank in self.run.ranks], np.int64)
        rows = rows[waited > int(self.clock.error_between(self.rank.rank, others).max())]
        steps, names = self._slow_steps()
        spans = Intervals(
            np.concatenate((steps.start, before[rows])), np.concatenate((steps.end, common[rows]))
        )
        name = Coded.encode([*names, *[LATE] * len(rows)])
        category = _constant("straggler", len(name))
        slices = Slices(spans=spans, name=name, category=category)
        return self._write_lanes("straggler", _LATE, slices)

    def _slow_steps(self) -> tuple[Intervals, list[str]]:
        """Steps in which the rank is slow, on the clock of the file, and the reasons."""
        chosen: list[Intervals] = []
        names: list[str] = []
        table, rank = self.rank.steps, self.rank.rank
        analysed = np.array(self.run.window.steps, np.int64)
        for one in self.slow:
            steps = dict(zip(one.ranks, one.steps_by_rank, strict=False)).get(rank) or one.steps
            wanted = np.array(steps, np.int64) if steps else analysed
            if one.since_step is not None:
                wanted = wanted[wanted >= one.since_step]
            rows = np.flatnonzero(np.isin(table["step"], wanted))
            rows = rows[np.isin(rows, inside(intervals_of(table), self._windows))]
            chosen.append(self.clock.spans(rank, intervals_of(table.take(rows))))
            names += [f"{one.pattern.value}: {one.cause.value}"] * len(rows)
        return Intervals(*map(np.concatenate, zip(*chosen, strict=True))), names

    def _slots(self) -> int:
        slots = self.analysis.slots if self.analysis is not None else None
        if slots is None or len(slots) == 0:
            return 0
        own = Intervals(slots.start_ns, slots.end_ns)
        kept = inside(own, self._windows)
        names = slot_names(slots, kept)
        own = Intervals(own.start[kept], own.end[kept])
        category = _constant("pipeline", own.size)
        return self._write("pipeline slots", _SLOTS, own, Coded.encode(names), category)

    # Tracks from the trace ------------------------------------------------------------------------

    def _streams(self, tables: RankTables) -> int:
        """One track per stream, and another for ranges that the program annotated on it."""
        table = tables.activity.take(inside(intervals_of(tables.activity), self._windows))
        ranged = (table["kind"] == ActivityKind.ANNOTATION).astype(np.int64)
        several = len(distinct(table["device"])) > 1
        written = 0
        groups = _groups(table["device"], table["stream"], ranged)
        for nth, ((device, stream, is_range), rows) in enumerate(groups):
            name = self._stream_name(stream)
            name += f" of GPU {device}" if several else ""
            name += " (ranges)" if is_range else ""
            of_stream = table.take(rows)
            kinds = Coded(of_stream["kind"].astype(np.int32), _KIND_NAMES)
            names = of_stream.coded("name")
            written += self._write(name, _STREAMS, intervals_of(of_stream), names, kinds, nth=nth)
        return written

    def _stream_name(self, stream: int) -> str:
        if self.rank.device.name == "cpu":
            return f"work of CPU thread {stream}"
        return "stream unknown" if stream == ABSENT else f"stream {stream}"

    def _threads(self, tables: RankTables) -> int:
        host = tables.host.take(inside(intervals_of(tables.host), self._windows))
        threads = host.coded("thread")
        written = 0
        for nth, ((code,), rows) in enumerate(_groups(threads.codes)):
            name, calls = f"CPU thread {threads.values[code]}", host.take(rows)
            names, category = calls.coded("name"), calls.coded("category")
            written += self._write(name, _THREADS, intervals_of(calls), names, category, nth=nth)
        return written

    # Sensors --------------------------------------------------------------------------------------

    def _sensors(self) -> None:
        """Counters of the values that probes or sensor files recorded during the capture."""
        source = self.run.records.get(self.rank.rank)
        if source is None:
            return
        records, rank = source.load(), self.rank.rank
        tables = ((TELEMETRY, records.telemetry), (MEMORY_LOG, records.memory))
        found = chain.from_iterable(_series(schema, table) for schema, table in tables)
        for place, (name, unit, own_ns, values) in enumerate(found):
            at_ns = self.clock.times(rank, own_ns)
            kept = (at_ns >= self.clock.first_ns) & (at_ns <= self.clock.last_ns)
            chosen = inside(Intervals(own_ns, own_ns), self._windows)
            kept &= np.isin(np.arange(len(own_ns)), chosen)
            if kept.any():
                track = self.packets.track(name, self.parent, place=_at(_SENSORS, place), unit=unit)
                self.packets.counter(track, at_ns[kept], values[kept])

    # Writing --------------------------------------------------------------------------------------

    @property
    def _windows(self) -> Intervals | None:
        """Windows of the steps to write, on the rank's own clock; None for the whole recording."""
        return None if self.steps is None else windows_of_steps(self.rank, self.steps)

    def _write(
        self, title: str, kind: int, own: Intervals, name: Coded, category: Coded, *, nth: int = 0
    ) -> int:
        spans = self.clock.spans(self.rank.rank, own)
        slices = Slices(spans=spans, name=name, category=category)
        return self._write_lanes(title, kind, slices, nth=nth)

    def _write_lanes(
        self, title: str, kind: int, slices: Slices, inner: Slices | None = None, *, nth: int = 0
    ) -> int:
        """Write slices on as many tracks as needed; ``inner`` slices are parts of some of them."""
        if slices.spans.size == 0:
            return 0
        parts = slices if inner is None else _with_parts(slices, inner)
        lanes = lanes_of(parts.spans)
        for lane in range(int(lanes.max()) + 1):
            name = title if lane == 0 else f"{title} (overlapping, {lane + 1})"
            place = _at(kind, nth * 8 + min(lane, 7))
            track = self.packets.track(name, self.parent, place=place)
            self.packets.slices(track, _taken(parts, np.flatnonzero(lanes == lane)))
        return parts.spans.size


def windows_of_steps(rank: Rank, steps: frozenset[int]) -> Intervals:
    """Windows of these steps on a rank's own clock, as disjoint intervals."""
    rows = np.isin(rank.steps["step"], list(steps))
    return union(intervals_of(rank.steps.take(rows)))


def _at(kind: int, nth: int) -> int:
    return kind * _PLACES + min(nth, _PLACES - 1)


def _groups(*columns: np.ndarray) -> Iterator[tuple[tuple[int, ...], Int64Array]]:
    """Groups of rows with equal values in all columns: the values, ascending, and the rows."""
    order = np.lexsort(columns[::-1]).astype(np.int64)
    first, _ = runs_of(*(column[order] for column in columns))
    for rows in np.split(order, first[1:]) if len(order) else ():
        yield tuple(int(column[rows[0]]) for column in columns), rows


_KIND_NAMES = tuple(kind.label for kind in ActivityKind)


def _constant(text: str, size: int) -> Coded:
    return Coded(np.zeros(size, np.int32), (text,))


def _series(schema: TableSchema, table: Table) -> Iterator[tuple[str, str, Int64Array, np.ndarray]]:
    """Name, unit, times and values of each numeric column with known values."""
    for column in schema:
        if column.dtype not in ("int64", "float64") or column.name in ("t_ns", "step"):
            continue
        values = table[column.name]
        known = ~np.isnan(values) if column.dtype == "float64" else values != ABSENT
        if known.any():
            yield _sensor_name(column), column.unit, table["t_ns"][known], values[known]


def _sensor_name(column: Column) -> str:
    """Name without the unit, which the viewer shows: ``power`` for ``power_w``."""
    last = column.name.rpartition("_")[2] if column.unit else ""
    endings = {"B": "bytes", "B/s": "bytes_per_s"}
    return column.name.removesuffix(f"_{endings.get(column.unit, last)}").replace("_", " ")


def _with_parts(slices: Slices, inner: Slices) -> Slices:
    """Both sets of slices in one; inner slices have no flows and no arguments."""
    more = inner.spans.size

    def padded(values: Int64Array, with_what: int) -> Int64Array:
        return np.concatenate((values, np.full(more, with_what, np.int64)))

    return Slices(
        spans=Intervals(*map(np.concatenate, zip(slices.spans, inner.spans, strict=True))),
        name=Coded.concat([slices.name, inner.name]),
        category=Coded.concat([slices.category, inner.category]),
        flow=None if slices.flow is None else padded(slices.flow, 0),
        numbers={name: padded(values, ABSENT) for name, values in slices.numbers.items()},
    )


def _taken(slices: Slices, rows: Int64Array) -> Slices:
    return Slices(
        spans=Intervals(slices.spans.start[rows], slices.spans.end[rows]),
        name=slices.name.take(rows),
        category=slices.category.take(rows),
        flow=None if slices.flow is None else slices.flow[rows],
        numbers={name: values[rows] for name, values in slices.numbers.items()},
    )
