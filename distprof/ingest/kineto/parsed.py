"""The result of parsing one Kineto file, before anything is inferred from it."""

from __future__ import annotations

import mmap
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import compress, islice
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.ingest.kineto.events import (
    COMM_PREFIXES,
    DEVICE_KINDS,
    KEPT_PREFIXES,
    PYTHON_FRAME,
    STEP_PREFIX,
    WITHOUT_INPUTS,
    normalise,
)
from distprof.run.run import Quality
from distprof.schema import Coded, Column, Table, TableSchema, text, whole

Scalar = TypeVar("Scalar", np.int8, np.bool_)
MAX_NAMES = 1 << 20  # the largest traces have about ten thousand
MAX_NAME_CHARACTERS = 1 << 25
MOST_OF_A_NAME = 4096  # characters; template names of real kernels have up to a few thousand
OTHER_NAMES = "(one of too many names)"
_CODES_AT_ONCE = 1 << 16
HOST = -1
DROPPED = -2
Texts = Callable[[Sequence[Any]], list[str]]  # what keys are called


class Symbols(dict[Any, int]):
    """Codes of keys, assigned in order of first appearance.

    ``symbols[key]`` is fast, because it is a dict look-up if the key is known. Keys with the same
    text share a code. Of a text longer than ``most`` characters a hash replaces the rest, so that
    different texts stay different.

    After :data:`MAX_NAMES` texts, or :data:`MAX_NAME_CHARACTERS` characters in total, new texts all
    become :data:`OTHER_NAMES`, so a trace in which every name is new cannot fill the memory.
    """

    def __init__(self, texts: Texts = list, most: int | None = None) -> None:
        super().__init__()
        self._texts = texts
        self._most = most
        self._codes: dict[str, int] = {}
        self._num_characters = 0
        self.is_full = False

    def of(self, keys: Sequence[Any]) -> list[int]:
        """Codes of keys. If all are new, they are entered together, which is faster."""
        codes, first = self._codes, len(self._codes)
        size = first + len(keys)
        if keys and size <= MAX_NAMES:
            texts = self._texts(keys)
            new, lengths = dict(zip(texts, range(first, size), strict=True)), [*map(len, texts)]
            length = self._num_characters + sum(lengths)
            is_short = self._most is None or max(lengths) <= self._most
            is_new = len(new) == len(keys) and codes.keys().isdisjoint(new)
            if is_short and is_new and length <= MAX_NAME_CHARACTERS:
                codes.update(new)
                self.update(zip(keys, new.values(), strict=True))
                self._num_characters = length
                return [*new.values()]
        return [self[key] for key in keys]

    def __missing__(self, key: Any) -> int:
        (text,) = self._texts([key])
        codes, most = self._codes, self._most
        if most is not None and len(text) > most:  # is cut, and not kept as a key
            from hashlib import blake2b

            digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
            return self[f"{text[: most - len(digest) - 2]}…#{digest}"]
        code = codes.get(text)
        if code is None:
            if len(codes) >= MAX_NAMES or self._num_characters > MAX_NAME_CHARACTERS:
                self.is_full = True
                return codes.setdefault(OTHER_NAMES, len(codes))
            code = codes[text] = len(codes)
            self._num_characters += len(text)
        if len(self) < 4 * MAX_NAMES:  # several keys may have one text
            self[key] = code
        return code

    @property
    def num_texts(self) -> int:
        """Number of distinct texts."""
        return len(self._codes)

    @property
    def texts(self) -> list[str]:
        """The texts, by code."""
        return list(self._codes)

    def texts_from(self, code: int) -> Iterator[str]:
        """The texts from ``code`` on."""
        return islice(self._codes, code, None)


class Verdicts(Generic[Scalar]):
    """A property of each symbol, computed once from its text; symbols may be added later."""

    def __init__(self, symbols: Symbols, judge: Callable[[str], int], dtype: type[Scalar]) -> None:
        self._symbols = symbols
        self._judge = judge
        self._known: NDArray[Scalar] = np.empty(0, dtype)

    def of(self, codes: NDArray[np.int32]) -> NDArray[Scalar]:
        """The property of each coded row."""
        known = self._known
        if self._symbols.num_texts > len(known):
            new = map(self._judge, self._symbols.texts_from(len(known)))
            self._known = np.concatenate((known, np.fromiter(new, known.dtype)))
        return self._known.take(codes)


# Categories whose rows the profiler numbers (``External id``).
_NUMBERED = frozenset({"cpu_op", "annotation"})


class SymbolTable:
    """The dictionaries of one file; ``arguments`` has one for each column of COMM_ARGS."""

    def __init__(self) -> None:
        self.arguments: defaultdict[str, Symbols] = defaultdict(Symbols)
        for name in ("collective", "dtype", "group", "group_desc", "comms_id"):
            self.arguments[name] = Symbols(most=MOST_OF_A_NAME)  # others are lists
        self.names = Symbols(most=MOST_OF_A_NAME)
        self.categories = Symbols(lambda keys: [*map(normalise, keys)], MOST_OF_A_NAME)
        self.threads = Symbols(lambda keys: [f"{a}/{b}" for a, b in keys], MOST_OF_A_NAME)
        self.inputs = Symbols(lambda keys: [*map(_compact_json, keys)])
        self.kinds = Verdicts(self.categories, kind_of, np.int8)
        self.is_spare = Verdicts(self.categories, ("cpu_op", PYTHON_FRAME).__contains__, np.bool_)
        self.is_frame = Verdicts(self.categories, PYTHON_FRAME.__eq__, np.bool_)
        self.is_numbered = Verdicts(self.categories, _NUMBERED.__contains__, np.bool_)
        self.is_comm = Verdicts(self.names, lambda name: name.startswith(COMM_PREFIXES), np.bool_)
        self.is_kept = Verdicts(self.names, _is_kept, np.bool_)
        self.has_inputs = Verdicts(self.names, lambda name: name not in WITHOUT_INPUTS, np.bool_)
        self.is_step = Verdicts(self.names, lambda name: name.startswith(STEP_PREFIX), np.bool_)

    def needed(self, host: Columns) -> NDArray[np.bool_]:
        """Host rows that analyses need: all except most operators and the calls of modules."""
        return ~self.is_spare.of(host["category"]) | self.is_kept.of(host["name"])


def _compact_json(text: str | bytes) -> str:
    """JSON without spaces between its parts; the kernel's texts have none."""
    if isinstance(text, str):
        return text
    with suppress(msgspec.MsgspecError, UnicodeError, RecursionError):
        return str(msgspec.json.format(text, indent=-1), "utf-8")
    return ""


def _is_kept(name: str) -> bool:
    return name.startswith(KEPT_PREFIXES) or "ataLoader" in name or "ataloader" in name


def compact(codes: NDArray[np.int32], texts: list[str]) -> Coded:
    """A column whose dictionary holds only the texts that occur, in code order."""
    blocks = [codes[n : n + _CODES_AT_ONCE] for n in range(0, len(codes), _CODES_AT_ONCE)]
    used = np.zeros(len(texts), bool)
    for block in blocks:
        used |= np.bincount(block, minlength=len(texts)) > 0
    if used.all():
        return Coded(codes, tuple(texts))
    remap = np.cumsum(used, dtype=np.int32) - np.int32(1)
    for block in blocks:
        block[:] = remap.take(block)
    return Coded(codes, tuple(compress(texts, used.tolist())))


def kind_of(word: str) -> int:
    """Kind of the rows of a category: an ActivityKind for device rows, else HOST or DROPPED."""
    if word == PYTHON_FRAME:
        return DROPPED
    return int(DEVICE_KINDS.get(word, HOST))


# The whole file -----------------------------------------------------------------------------------


COMM_ARGS = TableSchema(
    name="comm_args",
    doc=(
        "Events that carry collective arguments or name a communication operator, as written: "
        "device kernels and record_param_comms with NCCL arguments, c10d:: and gloo: events."
    ),
    columns=(
        Column(name="start_ns", dtype="int64", unit="ns", doc="Start."),
        Column(name="end_ns", dtype="int64", unit="ns", doc="End."),
        Column(name="name", dtype="category", doc="Event name."),
        Column(name="category", dtype="category", doc="As in HOST; kernel for device rows."),
        Column(name="thread", dtype="category", doc="Process and thread id, as pid/tid."),
        whole("stream", "Stream of a device row."),
        whole("correlation", "Launch correlation."),
        whole("external_id", "External id argument."),
        text("collective", "Collective name."),
        whole("in_nelems", "In msg nelems."),
        whole("out_nelems", "Out msg nelems."),
        text("dtype", "Element type."),
        whole("group_size", "Group size."),
        text("group", "Process Group Name."),
        text("group_desc", "Process Group Description."),
        text("group_ranks", "Process Group Ranks, raw."),
        whole("seq", "Seq."),
        text("comms_id", "Comms Id; may exceed int64."),
        text("in_splits", "In split size, raw."),
        text("out_splits", "Out split size, raw."),
        whole("src_rank", "Src Rank."),
        whole("dst_rank", "Dst Rank."),
        text("input_dims", "Input Dims, JSON text."),
        text("input_types", "Input type, JSON text."),
        text("concrete_inputs", "Concrete Inputs, JSON text."),
    ),
)


class ParsedTrace(msgspec.Struct, frozen=True, kw_only=True):
    """One Kineto file as tables, with exact int64 ns times."""

    # Top-level keys of the file except ``traceEvents``, for example ``distributedInfo``.
    metadata: Mapping[str, Any]
    # ``pid/tid`` to the last name of that thread; empty if only device rows were read.
    thread_names: Mapping[str, str]
    # ACTIVITY table; kernels are COMPUTATION until classified, copies and annotations are
    # distinguished by category.
    activity: Table
    # HOST table. With a host sink, only the rows that analyses need (runtime and driver calls,
    # annotations, synchronisation, communication and data loading operators); the sink got all of
    # them. Without a sink, all rows. If only device rows were read, only step marks.
    host: Table
    comm_args: Table  # COMM_ARGS table.
    first_ns: int  # Start of the first event.
    last_ns: int  # End of the last event.
    has_epoch: bool  # Whether times count from the Unix epoch.
    quality: Quality  # Quality of the file.


Columns = dict[str, NDArray[Any]]
_ROWS_AT_ONCE = 1 << 15  # collected before they are written; shorter tables use no map
_CAN_REMAP = sys.platform == "linux"
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, which Python does not name


class GrowingColumns:
    """The columns of one table, part by part; categories are int32 codes."""

    def __init__(self, schema: TableSchema) -> None:
        self._schema = schema
        self._waiting: list[Columns] = []
        self._num_waiting = 0
        self._maps: dict[str, _Growing] = {}

    def append(self, part: Columns) -> None:
        """Add rows; from now on, the part belongs to the table."""
        self._waiting.append(part)
        self._num_waiting += len(part["start_ns"])
        if self._num_waiting >= _ROWS_AT_ONCE:
            self._write()

    def columns(self) -> Columns:
        """All rows. Call this once; the arrays may be written to."""
        if not self._maps:
            return joined(self._schema, self._waiting)
        if self._num_waiting:
            self._write()
        maps, self._maps = self._maps, {}
        return {name: values.array() for name, values in maps.items()}

    def _write(self) -> None:
        if not self._maps:
            self._maps = {column.name: _Growing(_dtype(column)) for column in self._schema}
        for name, values in self._maps.items():
            values.extend([part.pop(name) for part in self._waiting], self._num_waiting)
        self._waiting, self._num_waiting = [], 0


def joined(schema: TableSchema, parts: Sequence[Columns]) -> Columns:
    """Concatenate the parts, and free them column by column because they are large."""
    return {
        column.name: np.concatenate(
            [np.empty(0, _dtype(column)), *(part.pop(column.name) for part in parts)]
        )
        for column in schema
    }


def _dtype(column: Column) -> np.dtype[Any]:
    return np.dtype(np.int32 if column.dtype == "category" else column.dtype)


class _Growing:
    """One column in an anonymous memory map; its unused part takes no memory."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._rows = 0
        self._map = _anonymous(2 * _ROWS_AT_ONCE * dtype.itemsize)

    def extend(self, parts: Sequence[NDArray[Any]], count: int) -> None:
        size = self._dtype.itemsize
        rows = self._rows + count
        if rows * size > len(self._map):
            self._map = _resized(self._map, 2 * rows * size)
        _populate(self._map, self._rows * size, rows * size)
        room = np.frombuffer(self._map, self._dtype, count, self._rows * size)
        np.concatenate(parts, out=room)
        self._rows = rows

    def array(self) -> NDArray[Any]:
        """The values, which keep the map alive."""
        return np.frombuffer(self._map, self._dtype, self._rows)


def _anonymous(size: int) -> mmap.mmap:
    """A private map, because a shared one could not grow."""
    if _CAN_REMAP:
        return mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return mmap.mmap(-1, size)


def _populate(memory: mmap.mmap, start: int, stop: int) -> None:
    """Map the pages of ``memory[start:stop]`` at once; one at a time takes longer."""
    if _CAN_REMAP:
        start -= start % mmap.PAGESIZE
        with suppress(OSError):  # Linux before 5.14
            memory.madvise(_POPULATE_WRITE, start, stop - start)


def _resized(old: mmap.mmap, size: int) -> mmap.mmap:
    if _CAN_REMAP:
        old.resize(size)
        return old
    new = _anonymous(size)
    with memoryview(old) as content:
        new[: len(old)] = content
    return new
