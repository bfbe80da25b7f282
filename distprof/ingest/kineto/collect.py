"""Columns of chunks, gathered to tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from distprof.ingest.kineto.comm import CommRows
from distprof.ingest.kineto.decode import EventColumns
from distprof.ingest.kineto.rows import Columns
from distprof.ingest.kineto.symbols import Symbols, SymbolTable, compact
from distprof.run.tables import ACTIVITY, HOST
from distprof.schema import Coded, Table, TableSchema

__all__ = ["SINK_ROWS", "Collector", "HostSink"]


SINK_ROWS = 1 << 17
"""Host rows that a sink is given at once, but for the last."""


class HostSink(Protocol):
    """Takes host rows while a file is read, so that they need not stay in memory."""

    def write(self, rows: Table) -> None:
        """Take a HOST table whose times do not have the file's base added yet."""
        ...

    def shift(self, base_ns: int) -> None:
        """Add ``base_ns`` to the times of all rows: called once, after the last rows.

        Most files name the base only at their end.
        """
        ...


class Collector:
    """Gathers the columns of all chunks.

    Args:
        symbols: The dictionaries of the file.
        sink: Takes host rows; without one they are kept.
    """

    def __init__(self, symbols: SymbolTable, sink: HostSink | None) -> None:
        self._symbols = symbols
        self._sink = sink
        self._device: list[Columns] = []
        self._host: list[Columns] = []
        self._waiting: list[Columns] = []  # host rows for the sink
        self._num_waiting = 0
        self._comm = CommRows(symbols)
        self._ranges: list[tuple[int, int]] = []
        self.thread_names: dict[str, str] = {}
        self.num_events = 0
        self.num_repaired = 0
        self.num_quarantined = 0
        self.num_clamped = 0

    def add(self, columns: EventColumns) -> None:
        """Take the columns of one chunk."""
        self.num_events += columns.num_events
        self.num_repaired += columns.num_repaired
        self.num_quarantined += columns.num_quarantined
        self.num_clamped += columns.num_clamped
        for part in (columns.device, columns.host):
            if len(part["start_ns"]):
                self._ranges.append((int(part["start_ns"].min()), int(part["end_ns"].max())))
        if len(columns.device["start_ns"]):
            self._device.append(columns.device)
        self._add_host(columns)
        self._comm.extend(columns.comm)
        for event in columns.metadata:
            if event.name == "thread_name" and isinstance(event.args.name, str):
                self.thread_names[f"{event.pid}/{event.tid}"] = event.args.name

    def _add_host(self, columns: EventColumns) -> None:
        host = columns.host
        if not len(host["start_ns"]):
            return
        if self._sink is None:
            self._host.append(host)
            return
        kept = np.flatnonzero(columns.kept)
        self._host.append({name: values[kept] for name, values in host.items()})
        self._waiting.append(host)
        self._num_waiting += len(columns.kept)
        if self._num_waiting >= SINK_ROWS:
            self._write_waiting(self._sink)

    def _write_waiting(self, sink: HostSink) -> None:
        """Hand on what waits. A table for each chunk would cost more than its rows."""
        if self._waiting:
            sink.write(self._host_table(_joined(HOST, self._waiting)))
        self._waiting, self._num_waiting = [], 0

    @property
    def has_rows(self) -> bool:
        """Whether anything that has a time was met, on the device or the host."""
        return bool(self._ranges)

    def span(self, base_ns: int) -> tuple[int, int]:
        """First start and last end of all rows; zeros when there are none."""
        if not self._ranges:
            return 0, 0
        starts, ends = zip(*self._ranges, strict=True)
        return min(starts) + base_ns, max(ends) + base_ns

    def tables(self, base_ns: int) -> tuple[Table, Table, Table]:
        """ACTIVITY, HOST and COMM_ARGS, ``base_ns`` added to all times."""
        if self._sink is not None:
            self._write_waiting(self._sink)
            self._sink.shift(base_ns)
        names = {"name": self._symbols.names}
        device = _shifted(_joined(ACTIVITY, self._device), base_ns)
        activity = _table(ACTIVITY, device, names)
        host = self._host_table(_shifted(_joined(HOST, self._host), base_ns))
        return activity, host, self._comm.to_table(base_ns)

    def _host_table(self, columns: Columns) -> Table:
        symbols = self._symbols
        texts = {
            "name": symbols.names,
            "category": symbols.categories,
            "thread": symbols.threads,
        }
        return _table(HOST, columns, texts)


def _joined(schema: TableSchema, parts: Sequence[Columns]) -> Columns:
    """The parts one after another. Frees the parts column by column, for they are large."""
    joined: Columns = {}
    for column in schema:
        dtype = np.int32 if column.dtype == "category" else np.dtype(column.dtype)
        arrays = [part.pop(column.name) for part in parts]
        joined[column.name] = np.concatenate([np.empty(0, dtype), *arrays])
    return joined


def _shifted(columns: Columns, base_ns: int) -> Columns:
    for name in ("start_ns", "end_ns"):
        columns[name] += base_ns
    return columns


def _table(schema: TableSchema, columns: Columns, texts: Mapping[str, Symbols]) -> Table:
    finished: dict[str, NDArray[Any] | Coded] = {
        name: compact(values, texts[name].texts) if name in texts else values
        for name, values in columns.items()
    }
    return Table(schema, finished)
