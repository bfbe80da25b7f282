"""Randomly damaged chunks of traces, read with and without the compiled kernel.

The kernel may decline a chunk. If it answers, the answer must be Python's, to the byte.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, Final

import msgspec
import numpy as np

from distprof.ingest.kineto.decode import DecodeState, decode_events, find_events
from distprof.ingest.kineto.native import EventColumns
from distprof.ingest.kineto.parsed import SymbolTable
from distprof.ingest.kineto.reader import Collector
from distprof.kernel import KERNEL_ENVIRONMENT

__all__ = ["answer_of", "answers_of", "is_declined", "mutated_chunk", "switched"]

TOKENS: Final = (
    *(b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b" ", b"\n", b"\t", b"\0", b"\x7f"),
    *(b"0", b"-", b"1", b".5", b"1e3", b"-0", b"00", b"1.0", b"null", b"true", b"false", b"NaN"),
    *(b"9007199254740993", b"9223372036854775807", b"9223372036854775808", b"4294967295", b"-1"),
    *(b"18446744073709551616", b"8796093022208.5", b"8796093022207.999", b"1760000000000000.123"),
    *(b"0.0005", b"123.4565", b"3999999999999999", b"4000000000000000", b"604800000001"),
    *(b'""', b'"x"', b'"7"', b'"0x0"', b'"1 "', b'"-3"', b"[]", b"{}", b"[1,2,3]", b"[0]"),
    *(b"[2147483647,2]", b'{"ph":"X"}', b'"ph":"X",', b'"ts":1,', b'"dur":1,', b'"cat":"kernel",'),
    *(b'"name":"c10d::x",', b'"name":"ProfilerStep#1",', b'"args":{"stream":1},', b'"tid":"a/b",'),
    *(b'"Collective name":"a",', b'"Seq":"5",', b'"Input dims":[1],', b'"stream":4294967295,'),
    *(b"\\u0041", b"\\ud83d\\ude00", b"\\ud800", b"\\n", b"\\/", b"\\x", b"\xc3\xa9", b"\xff"),
    *(b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"\xe2\x80\xa8", b"python_function", b"cuda_runtime"),
    *(b"gpu_memcpy", b"gpu_user_annotation", b"Kernel", b"thread_name", b'"s"', b'"M"', b'"X"'),
)
"""Pieces that a change inserts: elements of JSON, and values at every limit."""


def mutated_chunk(chunk: bytes, chance: Random) -> bytes:
    """The chunk after one to four changes."""
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        chunk = _changed(chunk, chance)
    return chunk


def _changed(chunk: bytes, chance: Random) -> bytes:
    place = chance.randrange(len(chunk) + 1)
    end = min(len(chunk), place + chance.choice((0, 0, 1, 1, 3, 20, 300)))
    kind = chance.randrange(5)
    if kind == 0:
        return chunk[:place] + bytes((chance.randrange(256),)) + chunk[end:]
    if kind == 1:  # repeat a part of it elsewhere
        other = chance.randrange(len(chunk) + 1)
        return chunk[:other] + chunk[place:end] + chunk[other:]
    if kind == 2:
        return chunk[:place] + chunk[end:]
    if kind == 3:
        return chunk[:place] + chance.choice(TOKENS) + chunk[end:]
    return _value_replaced(chunk, place, chance)


def _value_replaced(chunk: bytes, place: int, chance: Random) -> bytes:
    """Replace the value of the next key: most changes elsewhere only break the JSON."""
    start = chunk.find(b":", place) + 1
    ends = [end for sign in b",}]" if (end := chunk.find(sign, start)) > 0]
    if not start or not ends:
        return chunk
    return chunk[:start] + chance.choice(TOKENS) + chunk[min(ends) :]


@contextmanager
def switched(on: bool) -> Iterator[None]:
    """With or without the kernel."""
    before = os.environ.get(KERNEL_ENVIRONMENT)
    os.environ[KERNEL_ENVIRONMENT] = "on" if on else "off"
    try:
        yield
    finally:
        if before is None:
            del os.environ[KERNEL_ENVIRONMENT]
        else:
            os.environ[KERNEL_ENVIRONMENT] = before


def answer_of(
    chunk: bytes, *, kernel: bool, exact: bool | None = None, device_only: bool = False
) -> Any:
    """All results for a chunk, as plain values that can be compared."""
    (answer,) = answers_of([chunk], kernel=kernel, exact=exact, device_only=device_only)
    return answer


def answers_of(
    chunks: Sequence[bytes], *, kernel: bool, exact: bool | None = None, device_only: bool = False
) -> list[Any]:
    """The same for the chunks of one trace, whose dictionaries grow."""
    state = DecodeState(exact=exact, device_only=device_only)
    with switched(kernel):
        return [_answer(chunk, state) for chunk in chunks]


def _answer(chunk: bytes, state: DecodeState) -> Any:
    try:
        columns = decode_events(chunk, len(chunk), state)
    except (msgspec.DecodeError, RecursionError) as error:
        return type(error).__name__
    return [state.exact, state.permissive, *_plain(columns, state.symbols)]


def is_declined(chunk: bytes, *, exact: bool | None = None, device_only: bool = False) -> bool:
    """Whether the kernel leaves a chunk to Python."""
    state = DecodeState(exact=exact, device_only=device_only)
    with switched(True):
        return find_events(chunk, len(chunk), state) is None


def _plain(columns: EventColumns, symbols: SymbolTable) -> Iterator[Any]:
    yield columns.num_events, columns.num_repaired, columns.num_quarantined, columns.num_clamped
    yield columns.kept.tolist()
    yield [symbols.names.texts, symbols.categories.texts, symbols.threads.texts]
    collector = Collector(symbols, None)
    collector.add(columns)
    yield collector.thread_names
    for table in collector.tables(0):
        for column in table.schema:
            if column.dtype == "category":
                coded = table.coded(column.name)
                yield column.name, coded.codes.tolist(), coded.values
            else:
                yield column.name, _typed(table[column.name])


def _typed(values: Any) -> tuple[str, Sequence[int]]:
    return str(np.asarray(values).dtype), values.tolist()
