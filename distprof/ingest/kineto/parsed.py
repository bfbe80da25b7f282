"""The result of parsing one Kineto file, before anything is inferred from it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from hashlib import blake2b
from itertools import compress, islice
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.ingest.kineto.events import (
    COMM_PREFIXES,
    DEVICE_KINDS,
    KEPT_OPERATOR_NAME,
    PYTHON_FRAME,
    STEP_PREFIX,
    normalise,
)
from distprof.run.run import Quality
from distprof.schema import Coded, Column, Table, TableSchema

Scalar = TypeVar("Scalar", np.int8, np.bool_)

MAX_NAMES = 1 << 20
"""The largest traces have about ten thousand names."""

MAX_NAME_CHARACTERS = 1 << 25

MOST_OF_A_NAME = 4096
"""Characters that are kept of a name; template names of real kernels have up to a few thousand."""

OTHER_NAMES = "(one of too many names)"

_MANY_NAMES = 1 << 14

HOST = -1

DROPPED = -2


class Symbols(dict[Any, int]):
    """Codes of keys, assigned in order of first appearance.

    ``symbols[key]`` is fast, because it is a dict look-up if the key is known. Keys with the same
    text share a code. Of a text longer than ``most`` characters a hash replaces the rest, so that
    different texts stay different.

    After :data:`MAX_NAMES` texts, or :data:`MAX_NAME_CHARACTERS` characters in total, new texts all
    become :data:`OTHER_NAMES`, so a trace in which every name is new cannot fill the memory.
    """

    def __init__(self, text: Callable[[Any], str] = str, most: int | None = None) -> None:
        super().__init__()
        self._text = text
        self._most = most
        self._codes: dict[str, int] = {}
        self._num_characters = 0
        self.is_full = False

    def __missing__(self, key: Any) -> int:
        text = self._text(key)
        if self._most is not None and len(text) > self._most:
            return self._long(text)
        code = self._codes.get(text)
        if code is None:
            if len(self._codes) >= MAX_NAMES or self._num_characters > MAX_NAME_CHARACTERS:
                self.is_full = True
                return self._codes.setdefault(OTHER_NAMES, len(self._codes))
            code = self._codes[text] = len(self._codes)
            self._num_characters += len(text)
        if len(self) < 4 * MAX_NAMES:  # several keys may have one text
            self[key] = code
        return code

    def _long(self, text: str) -> int:
        """The code of a text that is cut; the text itself is not kept as a key."""
        digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        return self[f"{text[: (self._most or 0) - len(digest) - 2]}…#{digest}"]

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
            new = [self._judge(text) for text in self._symbols.texts_from(len(known))]
            self._known = np.concatenate((known, np.array(new, known.dtype)))
        return self._known.take(codes)


_NUMBERED = frozenset({"cpu_op", "annotation"})
"""Categories whose rows the profiler numbers (``External id``)."""


class SymbolTable:
    """The dictionaries of one file; ``arguments`` has one for each column of COMM_ARGS."""

    def __init__(self) -> None:
        self.arguments: defaultdict[str, Symbols] = defaultdict(Symbols)
        for name in ("collective", "dtype", "group", "group_desc", "comms_id"):
            self.arguments[name] = Symbols(most=MOST_OF_A_NAME)  # others are lists
        self.names = Symbols(most=MOST_OF_A_NAME)
        self.categories = Symbols(normalise, MOST_OF_A_NAME)
        self.threads = Symbols(lambda key: f"{key[0]}/{key[1]}", MOST_OF_A_NAME)
        self.kinds = Verdicts(self.categories, kind_of, np.int8)
        self.is_operator = Verdicts(self.categories, lambda word: word == "cpu_op", np.bool_)
        self.is_numbered = Verdicts(self.categories, _NUMBERED.__contains__, np.bool_)
        self.is_comm = Verdicts(self.names, lambda name: name.startswith(COMM_PREFIXES), np.bool_)
        self.is_kept = Verdicts(self.names, _is_kept, np.bool_)
        self.is_step = Verdicts(self.names, lambda name: name.startswith(STEP_PREFIX), np.bool_)


@lru_cache(_MANY_NAMES)  # the ranks of a job have the same names
def _is_kept(name: str) -> bool:
    return KEPT_OPERATOR_NAME.match(name) is not None


def compact(codes: NDArray[np.int32], texts: list[str]) -> Coded:
    """A column whose dictionary holds only the texts that occur, in code order."""
    used = np.bincount(codes, minlength=len(texts)) > 0
    if used.all():
        return Coded(codes, tuple(texts))
    remap = np.cumsum(used, dtype=np.int32) - np.int32(1)
    for first in range(0, len(codes), _ROWS_AT_ONCE):
        block = codes[first : first + _ROWS_AT_ONCE]
        block[:] = remap.take(block)
    return Coded(codes, tuple(compress(texts, used.tolist())))


_ROWS_AT_ONCE = 1 << 16


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
        Column(name="stream", dtype="int64", nullable=True, doc="Stream of a device row."),
        Column(name="correlation", dtype="int64", nullable=True, doc="Launch correlation."),
        Column(name="external_id", dtype="int64", nullable=True, doc="External id argument."),
        Column(name="collective", dtype="category", nullable=True, doc="Collective name."),
        Column(name="in_nelems", dtype="int64", nullable=True, doc="In msg nelems."),
        Column(name="out_nelems", dtype="int64", nullable=True, doc="Out msg nelems."),
        Column(name="dtype", dtype="category", nullable=True, doc="Element type."),
        Column(name="group_size", dtype="int64", nullable=True, doc="Group size."),
        Column(name="group", dtype="category", nullable=True, doc="Process Group Name."),
        Column(
            name="group_desc", dtype="category", nullable=True, doc="Process Group Description."
        ),
        Column(
            name="group_ranks", dtype="category", nullable=True, doc="Process Group Ranks, raw."
        ),
        Column(name="seq", dtype="int64", nullable=True, doc="Seq."),
        Column(name="comms_id", dtype="category", nullable=True, doc="Comms Id; may exceed int64."),
        Column(name="in_splits", dtype="category", nullable=True, doc="In split size, raw."),
        Column(name="out_splits", dtype="category", nullable=True, doc="Out split size, raw."),
        Column(name="src_rank", dtype="int64", nullable=True, doc="Src Rank."),
        Column(name="dst_rank", dtype="int64", nullable=True, doc="Dst Rank."),
        Column(name="input_dims", dtype="category", nullable=True, doc="Input Dims, JSON text."),
        Column(name="input_types", dtype="category", nullable=True, doc="Input type, JSON text."),
        Column(
            name="concrete_inputs",
            dtype="category",
            nullable=True,
            doc="Concrete Inputs, JSON text.",
        ),
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
