"""Read one Kineto file into exact tables, in bounded memory, whatever its layout and damage."""

from __future__ import annotations

import gc
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.bounds import Bound
from distprof.errors import InputError
from distprof.ingest.kineto.comm import CommRows
from distprof.ingest.kineto.decode import (
    DecodeState,
    decode_events,
    decode_in_python,
    decode_texts,
    find_events,
)
from distprof.ingest.kineto.events import DECODE_OBJECT, LARGEST_NS
from distprof.ingest.kineto.framing import DeviceSearch, Framer
from distprof.ingest.kineto.native import EventColumns
from distprof.ingest.kineto.parsed import (
    MAX_NAMES,
    Columns,
    GrowingColumns,
    ParsedTrace,
    Symbols,
    SymbolTable,
    compact,
    joined,
)
from distprof.ingest.kineto.source import ByteSource
from distprof.ingest.metadata import parse_metadata
from distprof.kernel import threads_help
from distprof.run.run import Quality
from distprof.run.tables import ACTIVITY, CALL_CATEGORIES, HOST, have_launches
from distprof.schema import Coded, Table, TableSchema
from distprof.terms import ActivityKind

SINK_ROWS = 1 << 17  # that a sink gets at once, except for the last ones


class HostSink(Protocol):
    """Takes host rows while a file is read, so they need not stay in memory."""

    def write(self, rows: Table) -> None:
        """Take a HOST table whose times do not include the file's base yet."""

    def shift(self, base_ns: int) -> None:
        """Add the base to the times of all rows; called once, as most files record it last."""


class Collector:
    """Gathers the columns of all chunks; ``sink`` takes host rows, None keeps them."""

    def __init__(self, symbols: SymbolTable, sink: HostSink | None) -> None:
        self._symbols = symbols
        self._sink = sink
        self._device = GrowingColumns(ACTIVITY)
        self._host = GrowingColumns(HOST)
        self._waiting: list[Columns] = []  # host rows for the sink
        self._num_waiting = 0
        self._comm = CommRows(symbols)
        self.ranges: list[tuple[int, int]] = []  # first start and last end of rows with a time
        self.thread_names: dict[str, str] = {}
        self.num_events = self.num_rows = self.num_numbered = 0
        self.num_repaired = self.num_quarantined = self.num_clamped = 0

    def add(self, columns: EventColumns) -> None:
        """Add the columns of one chunk."""
        self.num_events += columns.num_events
        self.num_rows += len(columns.device["start_ns"]) + int(np.count_nonzero(columns.kept))
        self.num_repaired += columns.num_repaired
        self.num_quarantined += columns.num_quarantined
        self.num_clamped += columns.num_clamped
        category = columns.host["category"]
        self.num_numbered += int(np.count_nonzero(self._symbols.is_numbered.of(category)))
        times = [(part["start_ns"], part["end_ns"]) for part in (columns.device, columns.host)]
        if (frames := self._symbols.is_frame.of(category)).any():  # these may be open all the time
            times[1] = times[1][0][~frames], times[1][1][~frames]
        for start, end in times:
            if len(start):
                self.ranges.append((int(start.min()), int(end.max())))
        if len(columns.device["start_ns"]):
            self._device.append(columns.device)
        if len(columns.host["start_ns"]):
            self._add_host(columns.host, columns.kept)
        self._comm.extend(columns.comm)
        for event in columns.metadata:
            if event.name == "thread_name" and isinstance(event.args.name, str):
                self.thread_names[f"{event.pid}/{event.tid}"] = event.args.name

    def _add_host(self, host: Columns, is_kept: NDArray[np.bool_]) -> None:
        if self._sink is None:
            self._host.append(host)
            return
        kept = np.flatnonzero(is_kept)
        self._host.append({name: values[kept] for name, values in host.items()})
        self._waiting.append(host)
        self._num_waiting += len(is_kept)
        if self._num_waiting >= SINK_ROWS:
            self._write_waiting(self._sink)

    def _write_waiting(self, sink: HostSink) -> None:
        """Write the waiting rows. One table per chunk would cost more than its rows."""
        if self._waiting:
            sink.write(self._host_table(joined(HOST, self._waiting)))
        self._waiting, self._num_waiting = [], 0

    def span(self, base_ns: int) -> tuple[int, int]:
        """First start and last end of all rows."""
        starts, ends = zip(*self.ranges, strict=True)
        return min(starts) + base_ns, max(ends) + base_ns

    def tables(self, base_ns: int) -> tuple[Table, Table, Table]:
        """ACTIVITY, HOST and COMM_ARGS, ``base_ns`` added to all times."""
        if self._sink is not None:
            self._write_waiting(self._sink)
            self._sink.shift(base_ns)
        names = {"name": self._symbols.names}
        device = _shifted(self._device.columns(), base_ns)
        activity = _table(ACTIVITY, device, names)
        host = self._host_table(_shifted(self._host.columns(), base_ns))
        return activity, host, self._comm.to_table(base_ns)

    def _host_table(self, columns: Columns) -> Table:
        symbols = self._symbols
        texts = {"name": symbols.names, "category": symbols.categories, "thread": symbols.threads}
        texts["inputs"] = symbols.inputs
        return _table(HOST, columns, texts)


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


# Salvaging a window that is not a JSON array ------------------------------------------------------

_GROUP = 256
_MOST_PIECES = 4  # of an event, when the boundary also occurs inside events
_STARTS = re.compile(rb'\{\s*"(?:ph|cat|name"\s*:\s*"[^"]*"\s*,\s*"(?:ph|cat))"\s*:')
_BETWEEN = b" \t\r\n,"


def salvage_events(data: bytearray, stop: int, state: DecodeState) -> Iterator[EventColumns]:
    """Columns of the events in a damaged ``data[:stop]``, which is closed like an array.

    Groups of events between boundaries are decoded unchanged. If a group fails, each of its events
    is tried separately, then repaired or given up.
    """
    texts = state.boundary.split(bytes(data[:stop]))
    between = state.boundary.text[1 : state.boundary.opening]
    for first in range(0, len(texts), _GROUP):
        group = texts[first : first + _GROUP]
        array = b"[%b]" % between.join(group)
        try:
            yield decode_events(array, len(array), state)
        except (msgspec.DecodeError, RecursionError):
            yield decode_texts(list(_salvaged_events(group, between)), state)


def _salvaged_events(texts: list[bytes], between: bytes) -> Iterator[bytes]:
    """One text per event: pieces of an event are joined, broken texts cut where events begin."""
    position = 0
    while position < len(texts):
        for count in range(1, _MOST_PIECES + 1):
            text = between.join(texts[position : position + count])
            try:
                DECODE_OBJECT(text)
            except (msgspec.DecodeError, RecursionError):
                continue
            yield text
            position += count
            break
        else:
            yield from _cut_at_starts(texts[position])
            position += 1


def _cut_at_starts(text: bytes) -> Iterator[bytes]:
    starts = [match.start() for match in _STARTS.finditer(text)]
    if not starts:
        if text.strip(_BETWEEN):
            yield text
        return
    for start, end in zip([0, *starts[1:]], [*starts[1:], len(text)], strict=True):
        yield text[start:end].strip(_BETWEEN)


# The file -----------------------------------------------------------------------------------------

MAX_ROWS = 1 << 24  # device rows and calls, at 200 bytes of memory each; the rest is skipped

BOUND = Bound(
    reads="a trace of torch.profiler",
    num_bytes=1 << 43,
    rows=MAX_ROWS,
    names=MAX_NAMES,
    depth=1_000,
    beyond="skipped",
)
"""The text of a trace is never in memory as a whole, only one row per event."""

_LARGEST_KEPT_BYTES = 16 << 20
_EPOCH_NS = 10**17  # earlier times (before 1973) count from a base that the file does not record
_LEAST_NUMBERS = 1000  # fewer do not tell whether rows are missing
_LONG = 16 << 20  # bytes of text above which a separate thread pays off
_MOST_PENDING = 2  # windows whose columns wait


def read_trace(
    stream_or_path: str | Path | BinaryIO,
    *,
    rows: Literal["all", "device"] = "all",
    strict: bool = False,
    host_sink: HostSink | None = None,
    source: str | None = None,
) -> ParsedTrace:
    """Read one trace that ``torch.profiler`` wrote.

    Args:
        stream_or_path: A local path, or a binary file object open for reading. Gzip is detected
            from the content.
        rows: ``device`` reads only device rows, step marks and the arguments of device rows, by
            searching for them, which is two to three times faster. Damage elsewhere then goes
            unseen, and thread names are not read.
        strict: Refuse a file with any broken event instead of repairing or skipping it.
        host_sink: Takes all host rows; the result then keeps only those that analyses need.
        source: Name of the input for messages.

    Returns:
        Tables with exact int64 ns times, and the quality of the file.

    Raises:
        InputError: If the input is not a trace, or is damaged and ``strict`` is set.
    """
    name = source or (str(stream_or_path) if isinstance(stream_or_path, (str, Path)) else "trace")
    # Newly mapped pages are slow, and the C library of Linux returns large blocks to the system,
    # except for sizes up to the largest that was ever freed. This one is never touched.
    np.empty(_LARGEST_KEPT_BYTES, np.uint8)
    with ByteSource(stream_or_path, name) as opened, _collection_paused():
        reader = _Reader(opened, name, device_only=rows == "device", strict=strict, sink=host_sink)
        return reader.read()


class _Background:
    """Runs follow-up work of earlier windows in a thread, in order, while the next is parsed.

    That work is Python and holds the GIL; the kernel does not.
    """

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._pending: deque[Future[None]] = deque()

    def __enter__(self) -> _Background:
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)

    def do(self, work: Callable[[], None]) -> None:
        """Queue work; raises what earlier work raised."""
        while len(self._pending) >= _MOST_PENDING:
            self._pending.popleft().result()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "distprof-collect")
        self._pending.append(self._thread.submit(work))

    def wait(self) -> None:
        """Wait until all work is done; raises what it raised."""
        while self._pending:
            self._pending.popleft().result()


class _Reader:
    def __init__(
        self,
        source: ByteSource,
        name: str,
        *,
        device_only: bool,
        strict: bool,
        sink: HostSink | None,
    ) -> None:
        self._source = source
        self._name = name
        self._strict = strict
        self._state = DecodeState(device_only=device_only)
        self._collector = Collector(self._state.symbols, sink)
        self._framer = Framer(source, name, searched=device_only)
        self._search: DeviceSearch | None = None
        self._background = _Background()
        self._may_gather_behind = threads_help() and not (strict or device_only)
        self._num_found = 0

    def read(self) -> ParsedTrace:
        framer, collector = self._framer, self._collector
        with self._background:
            framer.run(self._take, self._salvage, lambda: self._has_enough)
            self._background.wait()
        metadata, is_complete = parse_metadata(framer.head, framer.tail, ended=framer.ended)
        truncated = not (framer.ended and is_complete) or self._source.damage is not None
        if not collector.ranges:
            what = "device activity" if self._state.device_only else "event with a time"
            valid = "a list of events, each an object with a phase `ph`"
            raise InputError(
                self._name,
                expected=f"a PyTorch profiler trace: {valid}",
                found=f"not a single {what}{' before the file ends early' if truncated else ''}",
                fix="name a file that torch.profiler wrote while the profiler was active",
            )
        if self._strict and (truncated or framer.num_giants):
            raise self._broken(framer.truncated_at or framer.offset, "the file ends early")
        base_ns = _base(metadata)
        activity, host, comm_args = collector.tables(base_ns)
        first_ns, last_ns = collector.span(base_ns)
        return ParsedTrace(
            metadata=metadata,
            thread_names={} if self._state.device_only else collector.thread_names,
            activity=activity,
            host=host,
            comm_args=comm_args,
            first_ns=first_ns,
            last_ns=last_ns,
            has_epoch=first_ns > _EPOCH_NS,
            quality=self._quality(truncated, activity, host, comm_args),
        )

    @property
    def _has_enough(self) -> bool:
        """Whether memory allows no more rows."""
        if self._num_found + self._collector.num_rows >= MAX_ROWS:  # at least as many as there are
            self._background.wait()
        return self._collector.num_rows >= MAX_ROWS

    def _take(self, data: bytearray, stop: int, offset: int) -> bool:
        self._learn()
        may_gather_behind = offset > _LONG and self._may_gather_behind
        if may_gather_behind:
            found = find_events(data, stop, self._state)
            if found is not None:
                self._num_found += found.num_rows
                self._background.do(
                    lambda: self._collector.add(self._state.native.with_codes(found))
                )
                return True
        self._background.wait()
        decode = decode_in_python if may_gather_behind else self._decode  # the kernel declined
        try:
            columns = decode(data, stop, self._state)
        except (msgspec.DecodeError, RecursionError):
            return False
        self._add(columns, data, offset)
        return True

    def _decode(self, data: bytearray, stop: int, state: DecodeState) -> EventColumns:
        if state.device_only:
            if self._search is None or self._search.boundary != state.boundary:
                self._search = DeviceSearch(state.boundary)
            hits = self._search.select(data, stop) if self._search.usable else None
            if hits is not None:
                try:
                    return decode_events(hits, len(hits), state)
                except (msgspec.DecodeError, RecursionError):
                    pass  # the boundary misled, or an event is broken
        return decode_events(data, stop, state)

    def _salvage(self, data: bytearray, stop: int, offset: int) -> None:
        self._learn()
        self._background.wait()
        for columns in salvage_events(data, stop, self._state):
            self._add(columns, data, offset)

    def _learn(self) -> None:
        if self._framer.boundary is not None:
            self._state.boundary = self._framer.boundary

    def _add(self, columns: EventColumns, data: bytearray, offset: int) -> None:
        if self._strict and (columns.num_repaired or columns.num_quarantined):
            place = data.find(columns.first_fault or b"[")
            raise self._broken(offset + max(place, 0), "an invalid event")
        if self._strict and columns.num_clamped:
            raise self._broken(offset, "a negative or absurd duration in one of the next events")
        self._collector.add(columns)

    def _broken(self, offset: int, what: str) -> InputError:
        return InputError(
            self._name,
            expected="an undamaged trace, because strict reading was requested",
            found=f"{what}, at byte {offset}",
            fix="read without strict: distprof then repairs or skips broken events and counts them",
        )

    def _quality(self, truncated: bool, activity: Table, host: Table, comm_args: Table) -> Quality:
        collector, framer = self._collector, self._framer
        ratio = _operator_ratio(collector.num_numbered, comm_args)
        return Quality(
            num_events=collector.num_events - collector.num_quarantined,
            num_repaired=collector.num_repaired,
            num_quarantined=collector.num_quarantined + framer.num_giants,
            num_clamped=collector.num_clamped,
            num_unlaunched=_count_unlaunched(activity, host),
            lost_bytes=framer.lost_bytes,
            truncated=truncated,
            operator_ratio=None if self._state.device_only else ratio,
            notes=tuple(self._notes(truncated)),
        )

    def _notes(self, truncated: bool) -> Iterator[str]:
        collector, framer = self._collector, self._framer
        if truncated:
            where = framer.truncated_at or framer.offset
            why = f": {self._source.damage}" if self._source.damage else ""
            if self._has_enough and not framer.ended:
                yield (
                    f"Read only up to uncompressed byte {where}: the trace has more than "
                    f"{MAX_ROWS:,} rows."
                )
            else:
                yield f"The file ends early, at uncompressed byte {where}{why}. The rest is lost."
        if self._state.symbols.names.is_full:
            yield f"More than {MAX_NAMES:,} different names: the later ones share one name."
        instants = "Counted as instants, because their duration is missing, negative or absurd"
        for what, count in (
            ("Repaired, because they were not valid JSON", collector.num_repaired),
            ("Skipped, because they were unreadable", collector.num_quarantined),
            ("Skipped, because they are larger than 64 MiB", framer.num_giants),
            (instants, collector.num_clamped),
        ):
            if count:
                yield f"{what}: {count:,} event{'' if count == 1 else 's'}."


def _base(metadata: Mapping[str, Any]) -> int:
    base = metadata.get("baseTimeNanoseconds", 0)
    if isinstance(base, str) and base.isdecimal() and len(base) < 20:
        base = int(base)
    usable = isinstance(base, int) and not isinstance(base, bool) and 0 <= base < LARGEST_NS
    return int(base) if usable else 0


def _count_unlaunched(activity: Table, host: Table) -> int:
    """Number of device activities, except ranges, without a launch; 0 if no launches were read."""
    if not host.coded("category").isin(CALL_CATEGORIES).any():
        return 0
    correlation = activity["correlation"][activity["kind"] != ActivityKind.ANNOTATION]
    return int(np.count_nonzero(~have_launches(correlation, host)))


def _operator_ratio(num_operators: int, comm_args: Table) -> float | None:
    """Rows of operators over the numbers (``External id``) given out between two collectives.

    A profiler numbers operators and annotations one by one. Kernels carry the number of the
    operator that launched them, so they show where a filter left no operator. Numbers that equal
    the correlation with the launch number no operators.
    """
    numbers, on_host = comm_args["external_id"], comm_args.coded("category").equals("cpu_op")
    rows = on_host if np.count_nonzero(on_host) > 1 else ~on_host
    known = numbers[rows & (numbers > 0) & (numbers != comm_args["correlation"])]
    span = int(known.max()) - int(known.min()) if len(known) else 0
    return num_operators / span if span >= _LEAST_NUMBERS else None


@contextmanager
def _collection_paused() -> Iterator[None]:
    """Pause the cyclic collector: the decoder makes millions of objects that hold no cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
