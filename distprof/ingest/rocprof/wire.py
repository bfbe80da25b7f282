"""Decode the protobuf wire format as far as Perfetto's packets need it.

The protobuf package would need Perfetto's definitions, and memory for the whole trace. This module
reads one message at a time and skips unknown fields.

Source: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_MOST_BITS = 64
_PACKET = 1 << 3 | _LENGTH  # the only field of a trace
_BLOCK_BYTES = 1 << 20


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field of a message, in order; values are unsigned 64 bit or bytes.

    Raises:
        ValueError: If the bytes are not a message.
    """
    place, end = 0, len(data)
    while place < end:
        key, place = _varint(data, place)
        kind = key & 7
        if kind == _VARINT:
            value, place = _varint(data, place)
            yield key >> 3, value
            continue
        if kind == _LENGTH:
            size, place = _varint(data, place)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"a field of kind {kind}")
        if size > end - place:
            raise ValueError("a field that is longer than its message")
        found = data[place : place + size]
        place += size
        yield key >> 3, found if kind == _LENGTH else int.from_bytes(found, "little")


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """A number, and the position after it."""
    number = shift = 0
    while place < len(data) and shift < _MOST_BITS + 6:
        byte = data[place]
        place += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number & (1 << _MOST_BITS) - 1, place
        shift += 7
    raise ValueError("a number that does not end")


def packets(stream: BinaryIO, *, most_bytes: int, longest: int) -> Iterator[bytes]:
    """Packets of a trace, one after another.

    Raises:
        ValueError: If the trace is cut off, exceeds a limit, or does not consist of packets.
    """
    kept, place, total = b"", 0, 0
    while True:
        if len(kept) - place < _BLOCK_BYTES:
            part = stream.read(_BLOCK_BYTES)
            total += len(part)
            kept, place = kept[place:] + part, 0
        if not kept:
            return
        if total > most_bytes:
            raise ValueError(f"more than {most_bytes:,} bytes")
        key, start = _varint(kept, place)
        size, start = _varint(kept, start)
        if key != _PACKET or size > longest:
            raise ValueError("something other than packets of Perfetto")
        while len(kept) - start < size:
            part = stream.read(size - (len(kept) - start))
            if not part:
                raise ValueError("a packet that is cut off")
            total += len(part)
            kept += part
        yield kept[start : start + size]
        place = start + size
