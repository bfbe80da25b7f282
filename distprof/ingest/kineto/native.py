"""Chunks read by the compiled kernel: its arguments, and its result as columns.

The kernel returns what the Python decoder would, or declines the chunk (``native/chunk.hpp``). It
numbers the texts of each chunk from 0 in order of first appearance. This module gives them their
codes in the file's dictionaries, in the order in which the Python decoder would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.ingest.kineto.comm import INTEGER_KEYS, TEXT_KEYS, CommColumns
from distprof.ingest.kineto.damage import as_text
from distprof.ingest.kineto.events import (
    COMM_PREFIXES,
    DECODE_ANY,
    DEVICE_KINDS,
    EXACT_BELOW_US,
    HOST_WORDS,
    LARGEST_NS,
    LONGEST_NS,
    PYTHON_FRAME,
    SKIPPED_PHASES,
    STEP_PREFIX,
    Metadata,
    MetadataArguments,
    normalise,
)
from distprof.ingest.kineto.parsed import SymbolTable, kind_of
from distprof.kernel import kernel

__all__ = ["NativeChunk", "NativeResult", "find_natively", "with_codes"]

_ALWAYS = ("name", "stream", "correlation", "device", "bytes", "grid", "Collective name")
"""Arguments in the order of ``enum Argument`` in ``native/chunk.hpp``."""

_INT32 = ("name", "category", "thread", "device", "blocks")

_INT8 = ("kind",)


class NativeChunk(NamedTuple):
    """Columns of one chunk, as in :class:`~distprof.ingest.kineto.decode.EventColumns`."""

    device: dict[str, NDArray[Any]]
    host: dict[str, NDArray[Any]]
    comm: CommColumns
    metadata: Sequence[Metadata]
    num_events: int
    num_clamped: int


class NativeResult(NamedTuple):
    """The kernel's result for a chunk; it holds no reference to the chunk.

    Args:
        columns: Its result, see ``_kernel.pyi``.
        texts: For each text column of arguments, the texts that its codes index.
    """

    columns: Any
    texts: list[list[str]]

    @property
    def num_rows(self) -> int:
        """Device and host rows."""
        rows = len(self.columns["device"]["start_ns"]) + len(self.columns["host"]["start_ns"])
        return rows // np.dtype(np.int64).itemsize


def find_natively(
    data: bytes | bytearray, stop: int, *, exact: bool, device_only: bool
) -> NativeResult | None:
    """The events in ``data[:stop]``; None if Python must read them.

    Args:
        data: Its first ``stop`` bytes are closed like a JSON array.
        stop: Where the array ends.
        exact: Whether times are converted from their text.
        device_only: Keep device rows and step marks only.
    """
    compiled = kernel()
    found = compiled and _decoder(compiled).decode(data, stop, exact, device_only)
    if not found:
        return None
    try:
        texts = [[as_text(DECODE_ANY(raw)) for raw in raws] for raws in found["comm"]["raw_texts"]]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
        return None
    return NativeResult(found, texts)


@cache
def _decoder(compiled: ModuleType) -> Any:
    """The kernel's decoder, configured with what Python declares."""
    words = {*HOST_WORDS, *DEVICE_KINDS, PYTHON_FRAME}
    columns = (*INTEGER_KEYS.values(), *TEXT_KEYS.values())
    arguments = tuple(dict.fromkeys((*_ALWAYS, *(key for keys in columns for key in keys))))

    def numbers(columns: Mapping[str, tuple[str, ...]]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(arguments.index(key) for key in keys) for keys in columns.values())

    return compiled.Decoder(
        categories={word: kind_of(normalise(word)) for word in words},
        step_prefix=STEP_PREFIX,
        comm_prefixes=COMM_PREFIXES,
        skipped_phases=SKIPPED_PHASES,
        arguments=arguments,
        comm_integers=numbers(INTEGER_KEYS),
        comm_texts=numbers(TEXT_KEYS),
        longest_ns=LONGEST_NS,
        largest_ns=LARGEST_NS,
        exact_below_us=int(EXACT_BELOW_US),
    )


def with_codes(read: NativeResult, symbols: SymbolTable) -> NativeChunk:
    """The columns with codes of the file's dictionaries, which grow."""
    found, texts = read
    names = [name if isinstance(name, str) else DECODE_ANY(name) for name in found["names"]]
    threads = [tuple(thread.split("/", 1)) for thread in found["threads"]]
    codes = {
        "name": _codes(names, symbols.names),
        "category": _codes(found["categories"], symbols.categories),
        "thread": _codes(threads, symbols.threads),
    }
    comm = _columns(found["comm"], codes)
    columns = zip(found["comm"]["texts"], texts, strict=True)
    return NativeChunk(
        device=_columns(found["device"], codes),
        host=_columns(found["host"], codes),
        comm=CommColumns(
            integers={
                **{name: comm[name] for name in ("start_ns", "end_ns", "stream", "correlation")},
                **{
                    name: np.frombuffer(values, np.int64)
                    for name, values in zip(INTEGER_KEYS, found["comm"]["integers"], strict=True)
                },
            },
            codes={name: comm[name] for name in codes},
            texts={
                name: (np.frombuffer(values, np.int32), known)
                for name, (values, known) in zip(TEXT_KEYS, columns, strict=True)
            },
        ),
        metadata=[_metadata(*name) for name in found["thread_names"]],
        num_events=found["num_events"],
        num_clamped=found["num_clamped"],
    )


def _codes(texts: Sequence[Any], known: Mapping[Any, int]) -> NDArray[np.int32]:
    return np.array([known[text] for text in texts], np.int32)


def _columns(
    found: Mapping[str, Any], codes: Mapping[str, NDArray[np.int32]]
) -> dict[str, NDArray[Any]]:
    """Arrays from bytes, with codes of the chunk replaced by those of the file."""
    columns: dict[str, NDArray[Any]] = {}
    for name, values in found.items():
        if not isinstance(values, bytes):
            continue
        dtype = np.int32 if name in _INT32 else np.int8 if name in _INT8 else np.int64
        column = np.frombuffer(values, dtype)
        columns[name] = codes[name][column] if name in codes else column
    return columns


def _metadata(process: str, thread: str, name: str | bytes) -> Metadata:
    text = name if isinstance(name, str) else DECODE_ANY(name)
    arguments = MetadataArguments(name=text)
    return Metadata(name="thread_name", pid=process, tid=thread, args=arguments)
