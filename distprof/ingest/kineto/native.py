"""Chunks read by the compiled kernel: its arguments, and its result as columns.

The kernel returns what the Python decoder would, or declines the chunk (``native/chunk.hpp``). It
numbers texts in order of first appearance, and hands out those that are new in a chunk. They get
their codes in the file's dictionaries here: the same ones, unless Python read a chunk in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
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
    MODULE_PREFIX,
    PYTHON_FRAME,
    SKIPPED_PHASES,
    STEP_PREFIX,
    WITHOUT_INPUTS,
    Metadata,
    MetadataArguments,
    normalise,
)
from distprof.ingest.kineto.parsed import Columns, Symbols, SymbolTable, kind_of
from distprof.kernel import kernel

# Arguments in the order of ``enum Argument`` in ``native/chunk.hpp``.
_ALWAYS = (
    *("name", "stream", "correlation", "device", "bytes", "grid", "Collective name"),
    *("Sequence number", "Input Dims", "Input dims", "Input type", "Concrete Inputs"),
)
_DTYPES = {
    **dict.fromkeys(("name", "category", "thread", "device", "blocks"), np.int32),
    **dict.fromkeys(("sequence", "inputs"), np.int32),
    "kind": np.int8,
}


class EventColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one chunk. Times are int64 ns as the file counts them, without its base."""

    device: Columns  # The columns of ACTIVITY.
    host: Columns  # The columns of HOST.
    kept: NDArray[np.bool_]  # Host rows that analyses need, as a mask.
    comm: CommColumns  # Communication rows.
    metadata: Sequence[Metadata]  # Process and thread names.
    num_events: int  # Elements of the array.
    num_repaired: int = 0  # Events repaired.
    num_quarantined: int = 0  # Events given up.
    num_clamped: int = 0  # Events kept with duration 0.
    first_fault: bytes | None = None  # Text of the first event that was repaired or given up.


class NativeResult(NamedTuple):
    """The kernel's result for a chunk; it holds no reference to the chunk."""

    columns: Any  # Its result, see ``_kernel.pyi``.
    # For each text column of arguments, the code of its first new text, and the new texts.
    texts: list[tuple[int, list[str]]]

    @property
    def num_rows(self) -> int:
        """Device and host rows."""
        rows = len(self.columns["device"]["start_ns"]) + len(self.columns["host"]["start_ns"])
        return rows // np.dtype(np.int64).itemsize


class NativeReader:
    """The kernel's reader of one trace, and the codes that its texts have in the file."""

    def __init__(self, symbols: SymbolTable) -> None:
        self._decoder: Any = None
        self._symbols = symbols
        self._codes = {
            "name": _Codes(symbols.names),
            "category": _Codes(symbols.categories),
            "thread": _Codes(symbols.threads),
            "inputs": _Codes(symbols.inputs),
        }
        self._texts = {name: _Codes(symbols.arguments[name]) for name in TEXT_KEYS}

    def find(
        self, data: bytes | bytearray, stop: int, *, exact: bool, device_only: bool
    ) -> NativeResult | None:
        """The events in ``data[:stop]``, closed like a JSON array; None if Python must read them.

        ``exact`` converts times from their text; ``device_only`` keeps device rows and step marks
        only.
        """
        compiled = kernel()
        if compiled is None:
            return None
        if self._decoder is None:
            self._decoder = compiled.Decoder(**_settings())
        try:
            found = self._decoder.decode(data, stop, exact, device_only)
            if found is None:
                return None
            new = found["raw_texts"]
            texts = [(first, [as_text(DECODE_ANY(raw)) for raw in raws]) for first, raws in new]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
            self._decoder.forget()
            return None
        return NativeResult(found, texts)

    def with_codes(self, read: NativeResult) -> EventColumns:
        """The columns with codes of the file's dictionaries. Call it for each result, in order."""
        found, texts = read
        for place, known in enumerate(self._texts.values()):
            known.add(*texts[place])
        first, names = found["names"]
        decoded = [name if isinstance(name, str) else _decoded(name) for name in names]
        self._codes["name"].add(first, decoded)
        self._codes["category"].add(*found["categories"])
        first, threads = found["threads"]
        self._codes["thread"].add(first, [tuple(thread.split("/", 1)) for thread in threads])
        self._codes["inputs"].add(*found["inputs"])
        comm = self._columns(found["comm"])
        integers = {name: column for name, column in comm.items() if name not in self._codes}
        for name, values in zip(INTEGER_KEYS, found["comm"]["integers"], strict=True):
            integers[name] = np.frombuffer(values, np.int64)
        codes = {name: comm[name] for name in ("name", "category", "thread")}
        for name, values in zip(TEXT_KEYS, found["comm"]["texts"], strict=True):
            codes[name] = self._texts[name].of(np.frombuffer(values, np.int32))
        device, host = self._columns(found["device"]), self._columns(found["host"])
        return EventColumns(
            device=device,
            host=host,
            kept=self._symbols.needed(host),
            comm=CommColumns(integers, codes),
            metadata=[
                Metadata("thread_name", process, thread, MetadataArguments(_decoded(name)))
                for process, thread, name in found["thread_names"]
            ],
            num_events=found["num_events"],
            num_clamped=found["num_clamped"],
        )

    def _columns(self, found: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """Arrays from bytes, with the file's codes."""
        columns: dict[str, NDArray[Any]] = {}
        for name, values in found.items():
            if isinstance(values, bytes):
                column = np.frombuffer(values, _DTYPES.get(name, np.int64))
                columns[name] = self._codes[name].of(column) if name in self._codes else column
        return columns


class _Codes:
    """Codes in a dictionary of the file, by the kernel's codes."""

    def __init__(self, symbols: Symbols) -> None:
        self._symbols = symbols
        self._codes: list[int] = []
        self._changed: NDArray[np.int32] | None = None

    def add(self, first: int, keys: Sequence[Any]) -> None:
        """Take the texts that the kernel numbers from ``first`` on, and forget later ones."""
        if not keys and first == len(self._codes):
            return
        new = self._symbols.of(keys)
        self._codes[first:] = new
        was_same = self._changed is None or not first
        is_same = was_same and new == list(range(first, first + len(new)))
        self._changed = None if is_same else np.array(self._codes, np.int32)

    def of(self, column: NDArray[Any]) -> NDArray[Any]:
        """The column with the file's codes. Usually these are the kernel's."""
        return column if self._changed is None else self._changed.take(column)


@cache
def _settings() -> dict[str, Any]:
    words = {*HOST_WORDS, *DEVICE_KINDS, PYTHON_FRAME}
    columns = (*INTEGER_KEYS.values(), *TEXT_KEYS.values())
    arguments = tuple(dict.fromkeys((*_ALWAYS, *(key for keys in columns for key in keys))))

    def numbers(columns: Mapping[str, tuple[str, ...]]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(arguments.index(key) for key in keys) for keys in columns.values())

    return {
        "categories": {word: kind_of(normalise(word)) for word in words},
        "module_prefix": MODULE_PREFIX,
        "step_prefix": STEP_PREFIX,
        "without_inputs": tuple(WITHOUT_INPUTS),
        "comm_prefixes": COMM_PREFIXES,
        "skipped_phases": SKIPPED_PHASES,
        "arguments": arguments,
        "comm_integers": numbers(INTEGER_KEYS),
        "comm_texts": numbers(TEXT_KEYS),
        "longest_ns": LONGEST_NS,
        "largest_ns": LARGEST_NS,
        "exact_below_us": int(EXACT_BELOW_US),
    }


def _decoded(name: str | bytes) -> str:
    """A name; with its quotes and escapes it is bytes."""
    return name if isinstance(name, str) else str(DECODE_ANY(name))
