"""Protobuf's wire format for columns: one message per row of arrays, all encoded at once.

Python objects of the protobuf package take 4 to 12 µs per event, several times the cost of reading
it. Arrays take less than 1 µs. This module supports the parts of the format that distprof needs:
varints, 64-bit fields, strings and nested messages
(https://protobuf.dev/programming-guides/encoding).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

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
    every = (np.ones(part.values.shape, np.bool_) for part in parts)
    kept = [
        whole if part.kept is None else part.kept for part, whole in zip(parts, every, strict=True)
    ]
    return Rows(values, np.concatenate(kept))
