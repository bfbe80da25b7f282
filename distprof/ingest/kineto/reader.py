"""One Kineto file to exact tables, in bounded memory, whatever its layout and damage."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec
import numpy as np

from distprof.errors import InputError
from distprof.ingest.kineto.collect import Collector, HostSink
from distprof.ingest.kineto.decode import DecodeState, EventColumns, decode_events
from distprof.ingest.kineto.device import DeviceSearch, parse_metadata
from distprof.ingest.kineto.framing import Framer
from distprof.ingest.kineto.parsed import ParsedTrace
from distprof.ingest.kineto.salvage import salvage_events
from distprof.ingest.kineto.source import ByteSource
from distprof.ingest.kineto.times import LARGEST_NS
from distprof.run.launches import CALL_CATEGORIES, join_launches
from distprof.run.run import Quality
from distprof.schema import Table
from distprof.terms import ActivityKind

__all__ = ["HostSink", "read_trace"]

_LARGEST_KEPT_BYTES = 16 << 20

_EPOCH_NS = 10**17
"""Times before this (1973) are since a base that the file does not name, not since the epoch."""


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
        stream_or_path: A local path, or a binary file object open for reading. Gzip is told by its
            content.
        rows: ``device`` reads device rows, step marks and the arguments of device rows only, by
            searching for them, which is two to three times faster. Damage elsewhere goes unseen
            then, and thread names are not read.
        strict: Refuse a file with any broken event instead of mending or leaving it out.
        host_sink: Takes all host rows; the result then keeps only those that analyses need.
        source: What to call the input in messages.

    Returns:
        Tables with exact int64 ns times, and what was met on the way.

    Raises:
        InputError: If the input is no trace, or if ``strict`` and something in it is broken.
    """
    name = source or (str(stream_or_path) if isinstance(stream_or_path, (str, Path)) else "trace")
    _keep_freed_memory()
    with ByteSource(stream_or_path, name) as opened, _collection_paused():
        reader = _Reader(opened, name, device_only=rows == "device", strict=strict, sink=host_sink)
        return reader.read()


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
        self._sink = sink
        self._state = DecodeState(device_only=device_only)
        self._collector = Collector(self._state.symbols, sink)
        self._framer = Framer(source, name, searched=device_only)
        self._search: DeviceSearch | None = None

    def read(self) -> ParsedTrace:
        framer, collector = self._framer, self._collector
        framer.run(self._take, self._salvage)
        metadata, is_complete = parse_metadata(framer.head, framer.tail, ended=framer.ended)
        truncated = not (framer.ended and is_complete) or self._source.damage is not None
        if not collector.has_rows:
            raise self._nothing_recorded(truncated)
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
            host_is_complete=self._sink is None and not self._state.device_only,
            comm_args=comm_args,
            first_ns=first_ns,
            last_ns=last_ns,
            has_epoch=first_ns > _EPOCH_NS,
            quality=self._quality(truncated, activity, host),
        )

    def _take(self, data: bytearray, stop: int, offset: int) -> bool:
        self._learn()
        try:
            columns = self._decode(data, stop)
        except (msgspec.DecodeError, RecursionError):
            return False
        self._add(columns, data, offset)
        return True

    def _decode(self, data: bytearray, stop: int) -> EventColumns:
        if self._state.device_only:
            hits = self._hits(data, stop)
            if hits is not None:
                try:
                    return decode_events(hits, len(hits), self._state)
                except (msgspec.DecodeError, RecursionError):
                    pass  # the boundary misled, or an event is broken
        return decode_events(data, stop, self._state)

    def _hits(self, data: bytearray, stop: int) -> bytes | None:
        if self._search is None or self._search.boundary != self._state.boundary:
            self._search = DeviceSearch(self._state.boundary)
        return self._search.select(data, stop) if self._search.usable else None

    def _salvage(self, data: bytearray, stop: int, offset: int) -> None:
        self._learn()
        for columns in salvage_events(data, stop, self._state):
            self._add(columns, data, offset)

    def _learn(self) -> None:
        if self._framer.boundary is not None:
            self._state.boundary = self._framer.boundary

    def _add(self, columns: EventColumns, data: bytearray, offset: int) -> None:
        if self._strict and (columns.num_repaired or columns.num_quarantined):
            place = data.find(columns.first_fault or b"[")
            raise self._broken(offset + max(place, 0), "an event that is not valid")
        if self._strict and columns.num_clamped:
            raise self._broken(offset, "a negative or absurd duration in the events that follow")
        self._collector.add(columns)

    def _broken(self, offset: int, what: str) -> InputError:
        return InputError(
            self._name,
            expected="a trace without damage, for strict reading was asked for",
            found=f"{what}, at byte {offset}",
            fix="read without strict, which mends or leaves out what is broken and counts it",
        )

    def _nothing_recorded(self, truncated: bool) -> InputError:
        what = "device activity" if self._state.device_only else "event that has a time"
        return InputError(
            self._name,
            expected="a PyTorch profiler trace: a list of events, each an object with a phase ph",
            found=f"not a single {what}{' before the file ends early' if truncated else ''}",
            fix="name a file that torch.profiler wrote while the profiler was active",
        )

    def _quality(self, truncated: bool, activity: Table, host: Table) -> Quality:
        collector, framer = self._collector, self._framer
        return Quality(
            num_events=collector.num_events - collector.num_quarantined,
            num_repaired=collector.num_repaired,
            num_quarantined=collector.num_quarantined + framer.num_giants,
            num_clamped=collector.num_clamped,
            num_unlaunched=_count_unlaunched(activity, host),
            lost_bytes=framer.lost_bytes,
            truncated=truncated,
            notes=tuple(self._notes(truncated)),
        )

    def _notes(self, truncated: bool) -> Iterator[str]:
        collector, framer = self._collector, self._framer
        if truncated:
            where = framer.truncated_at or framer.offset
            why = f": {self._source.damage}" if self._source.damage else ""
            yield f"The file ends early, at uncompressed byte {where}{why}; the rest is lost."
        if collector.num_repaired:
            yield f"Mended, for they were not valid JSON: {_events(collector.num_repaired)}."
        if collector.num_quarantined:
            yield f"Left out, for they could not be read: {_events(collector.num_quarantined)}."
        if framer.num_giants:
            yield f"Left out, for they are larger than 64 MiB: {_events(framer.num_giants)}."
        if collector.num_clamped:
            yield (
                "Counted as instants, for their duration is missing, negative or absurd: "
                f"{_events(collector.num_clamped)}."
            )


def _events(count: int) -> str:
    return f"{count:,} event{'' if count == 1 else 's'}"


def _base(metadata: Mapping[str, Any]) -> int:
    base = metadata.get("baseTimeNanoseconds", 0)
    if isinstance(base, str) and base.isdigit() and len(base) < 20:
        base = int(base)
    usable = isinstance(base, int) and not isinstance(base, bool) and 0 <= base < LARGEST_NS
    return int(base) if usable else 0


def _count_unlaunched(activity: Table, host: Table) -> int:
    """Device activities, ranges apart, without a launch; 0 where launches were not read at all."""
    if not host.coded("category").isin(CALL_CATEGORIES).any():
        return 0
    correlation = activity["correlation"][activity["kind"] != ActivityKind.ANNOTATION]
    return int(np.count_nonzero(~join_launches(correlation, host).known))


def _keep_freed_memory() -> None:
    """Let arrays be made from the memory of earlier ones, not from fresh and therefore slow pages.

    The C library of Linux returns large blocks to the system at once, but for sizes up to the
    largest that was ever freed. The block made here is never touched.
    """
    np.empty(_LARGEST_KEPT_BYTES, np.uint8)


@contextmanager
def _collection_paused() -> Iterator[None]:
    """Without the cyclic collector: the decoder makes millions of objects that hold no cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
