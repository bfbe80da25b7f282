"""Writes the packets of a Perfetto trace: track descriptors, slices, flows, instants and counters.

Field numbers are those of ``perfetto_trace.proto``, and a test compares each of them with it. Rows
of packets are encoded at once: objects of the protobuf package take 4 to 12 µs per event, arrays
less than 1 µs (https://protobuf.dev/programming-guides/encoding).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import cache
from itertools import count
from typing import IO, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.escape import plain, shorten
from distprof.intervals import Intervals
from distprof.schema import ABSENT, Coded, Int64Array
from distprof.verbs.export import bracket_order

_VARINT, _FIXED64, _LENGTH = 0, 1, 2
Kept = NDArray[np.bool_]


class Rows(msgspec.Struct, frozen=True):
    """Encoded bytes of N messages, or parts of messages, of up to W bytes."""

    # uint8, shape ``(W, N)``: bytes in rows, because this makes joining parts fast.
    values: NDArray[np.uint8]
    # bool, the same shape: whether each byte is part of the message; None for all.
    kept: Kept | None = None

    def __len__(self) -> int:
        return int(self.values.shape[1])

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of bytes of each message, shape ``(N,)``."""
        if self.kept is None:
            return np.full(len(self), len(self.values), np.int64)
        counts: NDArray[np.int64] = self.kept.sum(axis=0, dtype=np.int64)
        return counts

    def to_bytes(self) -> bytes:
        """All messages, one after another."""
        rows = self.values.T
        return (rows if self.kept is None else rows[self.kept.T]).tobytes()

    def where(self, mask: Kept) -> Rows:
        """The same messages, with empty ones where the mask is False."""
        kept = np.broadcast_to(mask, self.values.shape)
        return Rows(self.values, kept if self.kept is None else kept & self.kept)


def field(field_number: int, values: NDArray[Any]) -> Rows:
    """An integer field per row; negative values take ten bytes, as in protobuf's int64."""
    return _joined((_constant(_key(field_number, _VARINT), len(values)), _varints(values)))


def fixed64(field_number: int, values: NDArray[Any]) -> Rows:
    """A 64-bit field per row: unsigned integers, or floating-point numbers."""
    little = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<")))
    raw = little.view(np.uint8).reshape(len(values), 8).T
    return _joined((_constant(_key(field_number, _FIXED64), len(values)), Rows(raw)))


def message(field_number: int, *parts: Rows) -> Rows:
    """A field per row with a message that consists of ``parts``."""
    body = _joined(parts)
    lengths = _varints(body.lengths)
    return _joined((_constant(_key(field_number, _LENGTH), len(body)), lengths, body))


def number(field_number: int, value: int) -> bytes:
    """A field with one integer."""
    return _key(field_number, _VARINT) + _varint(value)


def text(field_number: int, content: str | bytes) -> bytes:
    """A field with a string, or with an encoded message."""
    data = content.encode() if isinstance(content, str) else content
    return _key(field_number, _LENGTH) + _varint(len(data)) + data


@cache
def _key(field_number: int, kind: int) -> bytes:
    return _varint(field_number << 3 | kind)


def _varint(value: int) -> bytes:
    left, groups = value & 0xFFFF_FFFF_FFFF_FFFF, bytearray()
    while left > 0x7F:
        groups.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes((*groups, left))


def _constant(data: bytes, count: int) -> Rows:
    return Rows(np.broadcast_to(np.frombuffer(data, np.uint8)[:, None], (len(data), count)))


def _varints(values: NDArray[Any]) -> Rows:
    """Integers in groups of seven bits, lowest first, with the high bit set in all but the last."""
    left = values.astype(np.int64).view(np.uint64) if values.dtype.kind == "i" else values
    left = left.astype(np.uint64)
    width = max((int(left.max()).bit_length() + 6) // 7, 1) if len(left) else 1
    raw = np.empty((width, len(left)), np.uint8)
    kept = np.ones((width, len(left)), np.bool_)
    for place in range(width):
        raw[place] = left & np.uint64(0x7F)
        left = left >> np.uint64(7)
        if place + 1 < width:
            kept[place + 1] = left > 0
            raw[place] |= kept[place + 1].view(np.uint8) << 7
    return Rows(raw, None if kept.all() else kept)


def _joined(parts: Sequence[Rows]) -> Rows:
    """Concatenate the parts of each row."""
    values = np.concatenate([part.values for part in parts])
    if all(part.kept is None for part in parts):
        return Rows(values)
    kept = [np.ones(p.values.shape, np.bool_) if p.kept is None else p.kept for p in parts]
    return Rows(values, np.concatenate(kept))


MAX_NAME = 4_096
"""Maximum number of characters of a name: C++ templates make kernel names long, but not this long.
"""
_CHUNK = 1 << 15
"""Number of events encoded at a time: enough for fast arrays, but few enough to need little memory
(about 100 bytes each)."""
_FIRST_TRACK, _FIRST_NAME = 1 << 21, 1 << 7
"""Starting from these numbers, all track numbers take four bytes and nearly all name numbers two.
Equal lengths are faster to encode."""


class Trace(IntEnum):
    """Fields of the file."""

    PACKET = 1


class TracePacket(IntEnum):
    """Fields of a packet."""

    CLOCK_SNAPSHOT = 6
    TIMESTAMP = 8
    TRUSTED_PACKET_SEQUENCE_ID = 10
    TRACK_EVENT = 11
    INTERNED_DATA = 12
    SEQUENCE_FLAGS = 13
    TRACK_DESCRIPTOR = 60


class TrackEvent(IntEnum):
    """Fields of an event on a track."""

    CATEGORY_IIDS = 3
    DEBUG_ANNOTATIONS = 4
    TYPE = 9
    NAME_IID = 10
    TRACK_UUID = 11
    COUNTER_VALUE = 30
    DOUBLE_COUNTER_VALUE = 44
    FLOW_IDS = 47


class DebugAnnotation(IntEnum):
    """Fields of an argument of an event."""

    NAME_IID = 1
    INT_VALUE = 4
    STRING_VALUE = 6


class TrackDescriptor(IntEnum):
    """Fields of a track's description."""

    UUID = 1
    NAME = 2
    PARENT_UUID = 5
    COUNTER = 8
    CHILD_ORDERING = 11
    SIBLING_ORDER_RANK = 12
    DESCRIPTION = 14
    SIBLING_MERGE_BEHAVIOR = 15


class CounterDescriptor(IntEnum):
    """Fields of a counter's description."""

    UNIT_NAME = 6


class InternedData(IntEnum):
    """Fields of a table of names."""

    EVENT_CATEGORIES = 1
    EVENT_NAMES = 2
    DEBUG_ANNOTATION_NAMES = 3


class EventName(IntEnum):
    """Fields of an entry in a table of names; categories and arguments have the same fields."""

    IID = 1
    NAME = 2


class ClockSnapshot(IntEnum):
    """Fields of a snapshot, which relates clocks to each other."""

    CLOCKS = 1
    PRIMARY_TRACE_CLOCK = 2


class Clock(IntEnum):
    """Fields of a clock in a snapshot."""

    CLOCK_ID = 1
    TIMESTAMP = 2


class Type(IntEnum):
    """Type of an event."""

    SLICE_BEGIN = 1
    SLICE_END = 2
    INSTANT = 3
    COUNTER = 4


_NEW_NAMES, _NEEDS_NAMES = 1, 2  # flags of packets: SEQ_INCREMENTAL_STATE_CLEARED and SEQ_NEEDS_…
_EXPLICIT = 3  # ChildTracksOrdering
_NEVER_MERGED = 2  # SiblingMergeBehavior
_REALTIME, _BOOTTIME = 1, 6  # BuiltinClock


class WriteError(Exception):
    """The file cannot be written; the cause is the OSError with the reason."""


class Slices(msgspec.Struct, frozen=True, kw_only=True):
    """Slices of one track, N of them, that nest properly."""

    spans: Intervals  # Start and end, ns on the clock of the file.
    name: Coded  # Displayed names.
    category: Coded  # Searchable categories.
    # int64, ID of the flow (arrows) through each slice, or 0. None without flows.
    flow: Int64Array | None = None
    # Values of integer arguments by name; ABSENT if a slice does not have it.
    numbers: Mapping[str, Int64Array] = {}


def shown_name(name: str) -> str:
    """A name from a trace as valid text of bounded length, with control characters escaped."""
    return plain(shorten(name, MAX_NAME))


class PacketFile:
    """An open file of packets; ``epoch_ns`` is its first time, if times are since the epoch."""

    def __init__(self, file: IO[bytes], epoch_ns: int | None) -> None:
        self._file = file
        self._sequences = count(1)
        self._tracks = count(_FIRST_TRACK)
        if epoch_ns is not None:  # the clock of the trace is the real-time clock
            at = number(Clock.TIMESTAMP, epoch_ns)
            both = b"".join(
                text(ClockSnapshot.CLOCKS, number(Clock.CLOCK_ID, clock) + at)
                for clock in (_BOOTTIME, _REALTIME)
            )
            primary = number(ClockSnapshot.PRIMARY_TRACE_CLOCK, _BOOTTIME)
            self.write_packet(
                number(TracePacket.TRUSTED_PACKET_SEQUENCE_ID, next(self._sequences)),
                text(TracePacket.CLOCK_SNAPSHOT, both + primary),
            )

    def sequence(self) -> PacketSequence:
        """A new sequence of packets."""
        return PacketSequence(self, next(self._sequences))

    def new_track(self) -> int:
        """A number that no other track has."""
        return next(self._tracks)

    def write(self, data: bytes) -> None:
        """Append encoded packets; a WriteError is unlike the OSError of a failed read."""
        try:
            self._file.write(data)
        except OSError as error:
            raise WriteError(str(error)) from error

    def write_packet(self, *fields: bytes) -> None:
        """Append one packet."""
        self.write(text(Trace.PACKET, b"".join(fields)))


class PacketSequence:
    """Packets that share a table of names. Made by :meth:`PacketFile.sequence`."""

    def __init__(self, file: PacketFile, identity: int) -> None:
        self._file = file
        self._id = identity
        self._flags = _NEW_NAMES | _NEEDS_NAMES
        self._known: dict[InternedData, dict[str, int]] = {kind: {} for kind in InternedData}

    def track(
        self,
        name: str,
        parent: int | None,
        *,
        place: int = 0,
        about: str = "",
        unit: str | None = None,
    ) -> int:
        """Describe a new track, with the unit of its values if it is a counter."""
        uuid = self._file.new_track()
        fields = [number(TrackDescriptor.UUID, uuid), text(TrackDescriptor.NAME, shown_name(name))]
        if parent is not None:
            fields.append(number(TrackDescriptor.PARENT_UUID, parent))
        if about:
            fields.append(text(TrackDescriptor.DESCRIPTION, shown_name(about)))
        if unit is not None:
            fields.append(text(TrackDescriptor.COUNTER, text(CounterDescriptor.UNIT_NAME, unit)))
        fields += [
            number(TrackDescriptor.CHILD_ORDERING, _EXPLICIT),
            number(TrackDescriptor.SIBLING_ORDER_RANK, place),
            number(TrackDescriptor.SIBLING_MERGE_BEHAVIOR, _NEVER_MERGED),
        ]
        self._write(text(TracePacket.TRACK_DESCRIPTOR, b"".join(fields)))
        return uuid

    def slices(self, track: int, slices: Slices) -> None:
        """Write slices that nest properly: i below N opens slice i, and N + i closes it."""
        size = slices.spans.size
        if size == 0:
            return
        names = self._interned(InternedData.EVENT_NAMES, _used(slices.name))
        categories = self._interned(InternedData.EVENT_CATEGORIES, _used(slices.category))
        keys = self._interned(InternedData.DEBUG_ANNOTATION_NAMES, tuple(slices.numbers))
        name, category = names[slices.name.codes], categories[slices.category.codes]
        order = np.empty(2 * size, np.int64)
        order[bracket_order(slices.spans)] = np.arange(2 * size)
        for first in range(0, 2 * size, _CHUNK):
            brackets = order[first : first + _CHUNK]
            row, opens = brackets % size, brackets < size
            at_ns = np.where(opens, slices.spans.start[row], slices.spans.end[row])
            kind = np.where(opens, int(Type.SLICE_BEGIN), int(Type.SLICE_END))
            parts = [
                *_of_track(track, kind),
                field(TrackEvent.NAME_IID, name[row]).where(opens),
                field(TrackEvent.CATEGORY_IIDS, category[row]).where(opens),
            ]
            for key, values in zip(keys.tolist(), slices.numbers.values(), strict=True):
                argument = (
                    field(DebugAnnotation.NAME_IID, np.full(len(row), key)),
                    field(DebugAnnotation.INT_VALUE, values[row]),
                )
                has_it = opens & (values[row] != ABSENT)
                parts.append(message(TrackEvent.DEBUG_ANNOTATIONS, *argument).where(has_it))
            if slices.flow is not None:
                flow = slices.flow[row]
                parts.append(fixed64(TrackEvent.FLOW_IDS, flow).where(opens & (flow > 0)))
            event = message(TracePacket.TRACK_EVENT, *parts)
            self._file.write(self._packets(at_ns, event).to_bytes())

    def marks(self, track: int, at_ns: Iterable[int], name: str, words: Mapping[str, str]) -> None:
        """Write instants that share a name and arguments."""
        (iid,) = self._interned(InternedData.EVENT_NAMES, (name,))
        keys = self._interned(InternedData.DEBUG_ANNOTATION_NAMES, tuple(words))
        arguments = b"".join(
            text(
                TrackEvent.DEBUG_ANNOTATIONS,
                number(DebugAnnotation.NAME_IID, int(key))
                + text(DebugAnnotation.STRING_VALUE, shown_name(word)),
            )
            for key, word in zip(keys, words.values(), strict=True)
        )
        event = number(TrackEvent.TYPE, Type.INSTANT) + number(TrackEvent.TRACK_UUID, track)
        event += number(TrackEvent.NAME_IID, int(iid)) + arguments
        for moment in at_ns:
            stamp = number(TracePacket.TIMESTAMP, moment)
            self._write(stamp, text(TracePacket.TRACK_EVENT, event))

    def counter(self, track: int, at_ns: Int64Array, values: np.ndarray) -> None:
        """Write the values of a counter, integers or floating-point numbers."""
        if len(at_ns) == 0:
            return
        if values.dtype.kind == "f":
            value = fixed64(TrackEvent.DOUBLE_COUNTER_VALUE, values)
        else:
            value = field(TrackEvent.COUNTER_VALUE, values)
        kind = np.full(len(at_ns), Type.COUNTER, np.int64)
        event = message(TracePacket.TRACK_EVENT, *_of_track(track, kind), value)
        self._file.write(self._packets(at_ns, event).to_bytes())

    # Encoding -------------------------------------------------------------------------------------

    def _packets(self, at_ns: Int64Array, event: Rows) -> Rows:
        if len(at_ns) and int(at_ns.min()) < 0:
            raise ValueError("a time before the start of the file's clock")
        ones = np.ones(len(at_ns), np.int64)
        return message(
            Trace.PACKET,
            field(TracePacket.TIMESTAMP, at_ns),
            field(TracePacket.TRUSTED_PACKET_SEQUENCE_ID, ones * self._id),
            field(TracePacket.SEQUENCE_FLAGS, ones * _NEEDS_NAMES),
            event,
        )

    def _write(self, *fields: bytes) -> None:
        """Write one packet; the first one of a sequence clears the table of names."""
        self._file.write_packet(
            number(TracePacket.TRUSTED_PACKET_SEQUENCE_ID, self._id),
            number(TracePacket.SEQUENCE_FLAGS, self._flags),
            *fields,
        )
        self._flags = _NEEDS_NAMES

    # Names ----------------------------------------------------------------------------------------

    def _interned(self, kind: InternedData, names: tuple[str, ...]) -> Int64Array:
        """Numbers of names; new names are written first, and empty, unused names get 0."""
        known, new = self._known[kind], []
        for name in names:
            if name and name not in known:
                known[name] = _FIRST_NAME + len(known)
                entry = number(EventName.IID, known[name]) + text(EventName.NAME, shown_name(name))
                new.append(text(kind, entry))
        if new:
            self._write(text(TracePacket.INTERNED_DATA, b"".join(new)))
        return np.array([known[name] if name else 0 for name in names], np.int64)


def _used(column: Coded) -> tuple[str, ...]:
    """Values in use, with ``(no name)`` for empty ones; values not in use become empty."""
    used = np.zeros(len(column.values), np.bool_)
    used[column.codes] = True
    return tuple(
        (value or "(no name)") if is_used else ""
        for value, is_used in zip(column.values, used.tolist(), strict=True)
    )


def _of_track(track: int, kind: Int64Array) -> Iterator[Rows]:
    yield field(TrackEvent.TYPE, kind)
    yield field(TrackEvent.TRACK_UUID, np.full(len(kind), track))
