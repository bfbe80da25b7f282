"""The Flight Recorder's dump of one rank: which collectives it asked for, in which group.

A trace of gloo names neither groups nor sequence numbers; the recorder, which is on by default,
does. Dumps in pickle format are not read: a file from elsewhere is never unpickled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.ingest.communication import collective_kind
from distprof.ingest.job.columns import MAX_NAME
from distprof.ingest.job.files import Folder
from distprof.schema import ABSENT, Coded, Int64Array

__all__ = ["FlightEntries", "read_flight"]

MAX_BYTES = 1 << 28  # the ring of 2000 entries that is the default makes 1 MB

_MAX_ELEMENTS = 1 << 40
_LARGEST = 1 << 62
_BROKEN = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError)


class _Entry(msgspec.Struct):
    """The fields that are used, as torch 2.13 writes them (version 2.10 of the format)."""

    time_created_ns: int
    profiling_name: str
    process_group: list[str] = []
    collective_seq_id: int = ABSENT
    input_sizes: list[list[int]] | None = None
    is_p2p: bool = False


class _Dump(msgspec.Struct):
    entries: list[msgspec.Raw] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightEntries:
    """Collectives that one rank asked for, in order of time; messages are left out.

    Args:
        time_ns: int64, when it was asked for, ns since the epoch on the rank's own clock.
        kind: int8, the CollectiveKind as executed: gloo runs a reduce-scatter as an all-reduce.
        seq: int64, sequence number in its group, ABSENT where not told.
        elements: int64, elements of the input, ABSENT where not told.
        group: Name of its process group.
        description: Description of its process group.
        digest: Of the file, so that what is concluded from it can be cached.
        notes: What was damaged, one sentence each.
    """

    time_ns: Int64Array
    kind: NDArray[np.int8]
    seq: Int64Array
    elements: Int64Array
    group: Coded
    description: Coded
    digest: str = ""
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.time_ns)


def read_flight(path: str) -> FlightEntries:
    """Read a dump in JSON format.

    Args:
        path: Local path or URL.

    Returns:
        Its collectives; none, with a note, where the file cannot be used.
    """
    folder, _, name = path.rpartition("/")
    try:
        data = Folder(folder or ".").read(name, MAX_BYTES)
    except OSError as error:
        return _entries([], "", (f"{name} is not read: {error.strerror}.",))
    digest = hashlib.sha1(data, usedforsecurity=False).hexdigest()
    try:
        raw = msgspec.json.decode(data, type=_Dump).entries
    except _BROKEN:
        return _entries([], digest, (f"{name} is damaged and not used.",))
    decoded = [_decoded(item) for item in raw]
    good = [entry for entry in decoded if entry is not None]
    notes: tuple[str, ...] = ()
    if len(good) < len(raw):
        notes = (f"{len(raw) - len(good):,} entries of {name} are damaged and left out.",)
    return _entries([entry for entry in good if not entry.is_p2p], digest, notes)


def _decoded(raw: msgspec.Raw) -> _Entry | None:
    try:
        entry = msgspec.json.decode(raw, type=_Entry)
    except _BROKEN:
        return None
    is_sane = 0 < entry.time_created_ns < _LARGEST and entry.collective_seq_id < _LARGEST
    return entry if is_sane else None


def _entries(entries: Sequence[_Entry], digest: str, notes: tuple[str, ...]) -> FlightEntries:
    ordered = sorted(entries, key=lambda entry: entry.time_created_ns)
    return FlightEntries(
        time_ns=_integers([entry.time_created_ns for entry in ordered]),
        kind=np.array([collective_kind(e.profiling_name) for e in ordered], dtype=np.int8),
        seq=_integers([max(entry.collective_seq_id, ABSENT) for entry in ordered]),
        elements=_integers([_elements(entry.input_sizes) for entry in ordered]),
        group=Coded.encode([_text(entry.process_group, 0) for entry in ordered]),
        description=Coded.encode([_text(entry.process_group, 1) for entry in ordered]),
        digest=digest,
        notes=notes,
    )


def _integers(values: Sequence[int]) -> Int64Array:
    return np.array(values, dtype=np.int64)


def _elements(sizes: list[list[int]] | None) -> int:
    if not sizes or any(size < 0 for shape in sizes for size in shape):
        return ABSENT
    total = sum(prod(shape) for shape in sizes)
    return total if total < _MAX_ELEMENTS else ABSENT


def _text(pair: Sequence[Any], index: int) -> str:
    return str(pair[index])[:MAX_NAME] if index < len(pair) else ""
