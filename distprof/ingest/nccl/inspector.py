"""Read the JSON lines of NCCL Inspector into columns in bounded memory.

Supported formats are v4.0 to v4.3. Up to v4.2, each record has its own header and metadata. Since
v4.3, the preceding ``dump_stats`` record has them. Only durations and sizes are read, as bandwidths
follow from them.

Source: NVIDIA/nccl, ``ext-profiler/inspector`` (``README.md``, ``inspector.cc``,
``inspector_json.cc``); ROCm/rccl has the same plugin.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.ingest.communication import collective_kind
from distprof.run.evidence import INSPECTED, InspectedClass, InspectedMember, InspectorLog
from distprof.schema import ABSENT, Int64Array, Table
from distprof.terms import CollectiveKind

MAX_ROWS = 2_000_000
"""Limit on the rows of the table, 32 bytes each; above it, collectives are sampled."""

MAX_MEMBERS = 1 << 18
MAX_CLASSES = 1 << 15
_MAX_NAME = 200
_LARGEST = 1 << 53
_LAST_US = (1 << 62) // 1_000
_MAX_DURATION_US = 1e12
_MIXED = 0x9E3779B97F4A7C15  # 2⁶⁴ over the golden ratio: spreads consecutive numbers
_DTYPES: tuple[tuple[str, Any], ...] = (
    ("class_index", np.int32),
    ("seq", np.int64),
    ("member", np.int32),
    ("t_ns", np.int64),
    ("duration_ns", np.int64),
)
_TOO_MANY_CLASSES = "Skipped operations above the limit of kinds, sizes and communicators"
_TOO_MANY_MEMBERS = "Skipped operations above the limit of communicator members"
_UNREADABLE = "Skipped unreadable lines"
_ORPHANS = "Skipped operations without a header"
_IMPLAUSIBLE = "Skipped operations with implausible numbers"


class _Header(msgspec.Struct, frozen=True):
    id: str
    rank: int
    n_ranks: int
    nnodes: int = 0
    comm_name: str = ""


class _Metadata(msgspec.Struct, frozen=True):
    inspector_output_format_version: str = ""
    dump_timestamp_us: int = 0
    hostname: str = ""
    pid: int = 0


class _Collective(msgspec.Struct, frozen=True):
    name: str = msgspec.field(name="coll")
    seq: int = msgspec.field(name="coll_sn")
    size: int = msgspec.field(name="coll_msg_size_bytes")
    micros: int | float = msgspec.field(name="coll_exec_time_us")


class _Message(msgspec.Struct, frozen=True):
    name: str = msgspec.field(name="p2p")
    seq: int = msgspec.field(name="p2p_sn")
    size: int = msgspec.field(name="p2p_msg_size_bytes")
    micros: int | float = msgspec.field(name="p2p_exec_time_us")


class _Stats(msgspec.Struct, frozen=True):
    coll_dropped_since_last_dump: int = 0
    p2p_dropped_since_last_dump: int = 0


class _Line(msgspec.Struct, frozen=True):
    header: _Header | None = None
    metadata: _Metadata | None = None
    coll_perf: _Collective | None = None
    p2p_perf: _Message | None = None
    dump_stats: _Stats | None = None


class Inspection:
    """Content of all files. Memory is bounded by the constants above.

    The table is a sample of collectives, chosen by a hash of communicator, kind and number. The
    sample is therefore the same on each rank, and its collectives can be compared. Whenever the
    table exceeds its limit, the sample is halved.
    """

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(_Line)
        self._communicators: dict[tuple[str, int], int] = {}
        self._shapes: list[_Header] = []
        self._hashes: list[int] = []
        self._members: dict[tuple[int, int, str, int], int] = {}
        self._member_of: dict[tuple[_Header, str, int], int] = {}
        self._class_of: dict[tuple[int, str, int], int] = {}
        self._classes: list[tuple[int, CollectiveKind, int]] = []
        self._records_of = Counter[int]()
        self._us_of: dict[int, float] = defaultdict(float)
        self._blocks: list[tuple[NDArray[Any], ...]] = []
        self._num_rows = 0
        self._one_in = 1
        self._first_us: int | None = None
        self._last_us: int | None = None
        self._formats: dict[str, None] = {}
        self._left_out: Counter[str] = Counter()
        self._header: _Header | None = None
        self._metadata: _Metadata | None = None
        self.num_records = 0
        self.num_dropped = 0

    def begin_file(self) -> None:
        """Forget the header of the previous file."""
        self._header = self._metadata = None

    def take(self, block: bytes) -> None:
        """Read a block of whole lines."""
        if rows := [row for row in map(self._row, self._lines(block)) if row is not None]:
            self._add(rows)

    def result(self, num_bytes: int, notes: Iterable[str]) -> InspectorLog:
        """The log."""
        members = self._named_members()
        columns = [np.concatenate(parts) for parts in zip(*self._blocks, strict=True)]
        empty = [np.zeros(0, dtype) for _, dtype in _DTYPES]
        table = dict(zip((name for name, _ in _DTYPES), columns or empty, strict=True))
        left_out = [f"{what}: {count:,}." for what, count in self._left_out.items()]
        return InspectorLog(
            classes=tuple(self._class(index) for index in range(len(self._classes))),
            members=members,
            table=Table(INSPECTED, table),
            sampled_one_in=self._one_in,
            first_ns=None if self._first_us is None else self._first_us * 1_000,
            last_ns=None if self._last_us is None else self._last_us * 1_000,
            num_records=self.num_records,
            num_dropped=self.num_dropped,
            num_bytes=num_bytes,
            formats=tuple(self._formats),
            notes=(*notes, *left_out),
        )

    def _lines(self, block: bytes) -> list[_Line]:
        """Decode a block at once, or line by line if a line is broken, as in a running job."""
        try:
            return self._decoder.decode_lines(block)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        decoded = []
        for line in block.split(b"\n"):
            if line.strip():
                try:
                    decoded.append(self._decoder.decode(line))
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    self._left_out[_UNREADABLE] += 1
        return decoded

    def _row(self, line: _Line) -> tuple[int, int, int, int, float] | None:
        """Class, number, member, time and duration of an operation; None for other records."""
        header, metadata = line.header, line.metadata
        if line.dump_stats is not None:
            stats = line.dump_stats
            for number in (stats.coll_dropped_since_last_dump, stats.p2p_dropped_since_last_dump):
                self.num_dropped += number if 0 <= number < _LARGEST else 0
            self._header, self._metadata = header, metadata
            return None
        if header is None:
            header, metadata = self._header, self._metadata
        done = line.coll_perf or line.p2p_perf
        if done is None:
            return None  # proxy traces, and records of later versions
        if header is None or metadata is None:
            self._left_out[_ORPHANS] += 1
            return None
        at = metadata.dump_timestamp_us
        size, seq, micros = done.size, done.seq, done.micros
        is_time = 0 <= micros < _MAX_DURATION_US and 0 <= at < _LAST_US
        if not (is_time and 0 <= size < _LARGEST and 0 <= seq < _LARGEST):
            self._left_out[_IMPLAUSIBLE] += 1
            return None
        member = self._member_of.get((header, metadata.hostname, metadata.pid))
        if member is None:
            member = self._member(header, metadata)
        if member < 0:
            self._left_out[_TOO_MANY_MEMBERS] += 1
            return None
        index = self._class_index(self._communicators[header.id, header.n_ranks], done.name, size)
        if index < 0:
            self._left_out[_TOO_MANY_CLASSES] += 1
            return None
        return index, seq, member, at, micros

    def _member(self, header: _Header, metadata: _Metadata) -> int:
        """Index of a member with a new header; negative if invalid or above the limit."""
        is_absurd = not 0 <= header.rank < header.n_ranks < 1 << 31
        if is_absurd or len(self._member_of) >= MAX_MEMBERS:
            return -1
        if len(self._formats) < 16:
            self._formats.setdefault(metadata.inspector_output_format_version[:16])
        place = self._communicators.setdefault(
            (header.id, header.n_ranks), len(self._communicators)
        )
        if place == len(self._shapes):
            self._shapes.append(header)
            self._hashes.append(zlib.crc32(header.id.encode("utf-8", "replace")))
        key = (place, header.rank, metadata.hostname, metadata.pid)
        index = self._members.setdefault(key, len(self._members))
        self._member_of[header, metadata.hostname, metadata.pid] = index
        return index

    def _class_index(self, communicator: int, name: str, size: int) -> int:
        key = (communicator, name, size)
        index = self._class_of.get(key)
        if index is None:
            if len(self._classes) >= MAX_CLASSES:
                return -1
            index = self._class_of[key] = len(self._classes)
            self._classes.append((communicator, collective_kind(name[:_MAX_NAME]), size))
        return index

    def _add(self, rows: list[tuple[int, int, int, int, float]]) -> None:
        """Count the rows, and keep those whose collectives are in the sample."""
        index, seq, member, at, micros = zip(*rows, strict=True)
        classes, numbers = np.array(index, np.int32), np.array(seq, np.int64)
        times, durations = np.array(at, np.int64), np.array(micros, np.float64)
        for one in np.unique(classes).tolist():
            mine = classes == one
            self._records_of[one] += int(mine.sum())
            self._us_of[one] += float(durations[mine].sum())
        self.num_records += len(rows)
        first, last = int(times.min()), int(times.max())
        self._first_us = first if self._first_us is None else min(self._first_us, first)
        self._last_us = last if self._last_us is None else max(self._last_us, last)
        columns = (
            classes,
            numbers,
            np.array(member, np.int32),
            times * 1_000,
            np.rint(durations * 1e3).astype(np.int64),
        )
        chosen = self._is_chosen(columns[0], columns[1])
        kept = columns if chosen.all() else tuple(column[chosen] for column in columns)
        if len(kept[0]):
            self._blocks.append(kept)
            self._num_rows += len(kept[0])
        while self._num_rows > MAX_ROWS:
            self._one_in *= 2
            blocks, self._blocks = self._blocks, []
            for block in blocks:
                chosen = self._is_chosen(block[0], block[1])
                if chosen.any():
                    self._blocks.append(tuple(column[chosen] for column in block))
            self._num_rows = sum(len(block[0]) for block in self._blocks)

    def _is_chosen(self, classes: NDArray[np.int32], numbers: Int64Array) -> NDArray[np.bool_]:
        """Mask of the collectives in the sample, which depends on communicator, kind and number."""
        if self._one_in == 1:
            return np.ones(len(classes), bool)
        made = self._classes
        salt = np.array(
            [self._hashes[place] * 16 + int(kind) for place, kind, _ in made], np.uint64
        )
        mixed = (numbers.astype(np.uint64) + salt[classes]) * np.uint64(_MIXED)
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(_MIXED)
        chosen: NDArray[np.bool_] = (mixed >> np.uint64(32)) % np.uint64(self._one_in) == 0
        return chosen

    def _class(self, index: int) -> InspectedClass:
        place, kind, size = self._classes[index]
        shape = self._shapes[place]
        return InspectedClass(
            communicator=place,
            group=(shape.comm_name or shape.id)[:_MAX_NAME],
            kind=kind,
            num_bytes=size,
            num_ranks=shape.n_ranks,
            num_nodes=shape.nnodes if 0 < shape.nnodes <= shape.n_ranks else 0,
            num_records=self._records_of[index],
            total_ns=round(self._us_of[index] * 1e3),
        )

    def _named_members(self) -> tuple[InspectedMember, ...]:
        """Members with global ranks, which are the ranks in the largest communicator."""
        world = max((shape.n_ranks for shape in self._shapes), default=0)
        ranks: dict[tuple[str, int], set[int]] = {}
        for place, number, host, pid in self._members:
            if self._shapes[place].n_ranks == world:
                ranks.setdefault((host, pid), set()).add(number)
        made = []
        for place, number, host, pid in self._members:
            known = ranks.get((host, pid), set())
            is_world = self._shapes[place].n_ranks == world
            rank = number if is_world else (next(iter(known)) if len(known) == 1 else ABSENT)
            made.append(
                InspectedMember(
                    communicator=place, number=number, host=host[:_MAX_NAME], pid=pid, rank=rank
                )
            )
        return tuple(made)
