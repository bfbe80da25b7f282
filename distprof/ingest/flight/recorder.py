"""The dump of torch's Flight Recorder: one rank's latest collectives and messages.

A dump is a pickle (written by the NCCL watchdog) or JSON (requested on demand). Versions 1 and 2 of
the format are supported, with or without stack frames; a damaged entry does not affect the others.
Nothing in a dump is executed: see :mod:`distprof.ingest.flight.safe_pickle`.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Sequence
from math import prod
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.artefacts.records import LIBRARY
from distprof.bounds import Bound
from distprof.errors import InputError
from distprof.ingest.communication import collective_kind
from distprof.ingest.files import Folder, refusing
from distprof.ingest.flight.safe_pickle import PickleRefused, read_pickle
from distprof.ingest.metadata import parse_ranks
from distprof.run.records import FLIGHT, FlightDump, FlightGroup, FlightState, GroupStatus
from distprof.schema import ABSENT, Coded, Int64Array, Table

MAX_ENTRIES = 1_000_000
MAX_TEXT = 512
MAX_DIMS = 64
MAX_FRAMES = 64
LARGEST = 1 << 62
"""Numbers from here on are invalid."""

_MAX_ELEMENTS = 1 << 50
_STATES = {
    "scheduled": FlightState.SCHEDULED,
    "started": FlightState.STARTED,
    "completed": FlightState.COMPLETED,
}
_refuse = refusing(
    expected="a dump of PyTorch's Flight Recorder, as pickle or JSON",
    fix="leave the file out, or dump again: TORCH_FR_DUMP_TEMP_FILE sets the destination",
)
BROKEN = (
    msgspec.MsgspecError,
    UnicodeDecodeError,
    RecursionError,
    ValueError,
    OverflowError,
    TypeError,
)


class EntriesError(ValueError):
    """The entries are not a list."""


class _Frame(msgspec.Struct, frozen=True):
    name: str = ""
    filename: str = ""
    line: int = 0


class _Entry(msgspec.Struct):
    """The fields used, in all versions of the format."""

    time_created_ns: int = ABSENT
    profiling_name: str = ""
    record_id: int = ABSENT
    id: int = ABSENT  # record_id in version 1
    pg_id: int = ABSENT
    process_group: tuple[str, ...] = ()
    collective_seq_id: int = ABSENT
    seq_id: int = ABSENT  # version 1, which counts collectives and messages together
    p2p_seq_id: int = ABSENT
    input_sizes: tuple[tuple[int, ...], ...] | None = None
    output_sizes: tuple[tuple[int, ...], ...] | None = None
    input_dtypes: tuple[str, ...] | str | None = None
    state: str = ""
    time_discovered_started_ns: int | None = None
    time_discovered_completed_ns: int | None = None
    retired: bool = False
    timeout_ms: int = ABSENT
    is_p2p: bool | None = None
    frames: tuple[_Frame, ...] = ()


_FIELDS: dict[str, Any] = {
    field.encode_name: field.default for field in msgspec.structs.fields(_Entry)
}
_NUMBERS = (
    "time_created_ns", "record_id", "id", "pg_id", "collective_seq_id", "seq_id", "p2p_seq_id",
    "timeout_ms", "time_discovered_started_ns", "time_discovered_completed_ns",
)  # fmt: skip
_KINDS: dict[str, set[type]] = {
    **{key: {int} for key in _NUMBERS},
    "time_discovered_started_ns": {int, type(None)},
    "time_discovered_completed_ns": {int, type(None)},
    "profiling_name": {str},
    "state": {str},
    "retired": {bool},
    "is_p2p": {bool, type(None)},
    "process_group": {tuple, list},
    "input_dtypes": {tuple, list, str, type(None)},
    "frames": {tuple, list},
}


def convert(value: Any, kind: Any) -> Any:
    """A part of a dump, from a pickle or raw JSON; raises one of :data:`BROKEN`."""
    if isinstance(value, msgspec.Raw):
        return msgspec.json.decode(value, type=kind, strict=False)
    return msgspec.convert(value, type=kind, strict=False)


def entries_table(value: Any, source: str, notes: list[str]) -> Table:
    """The entries as FLIGHT, converted at once or, if one is damaged, one by one."""
    if value is None:
        return Table.empty(FLIGHT)
    try:
        return _table(_columns(value))
    except BROKEN:
        pass
    found, lost = _each(value)
    good = [entry for entry in found[:MAX_ENTRIES] if _is_sane(entry)]
    lost += len(found) - len(good)
    if lost:
        notes.append(f"{lost:,} damaged entries of {source} were skipped.")
    return _table(_columns_of(good))


def _columns(value: Any) -> dict[str, list[Any]]:
    """Field to its values; raises one of :data:`BROKEN` if an entry is invalid."""
    if isinstance(value, msgspec.Raw):
        return _columns_of(
            msgspec.json.decode(value, type=list[_Entry], strict=False)[:MAX_ENTRIES]
        )
    if not (isinstance(value, list) and all(type(entry) is dict for entry in value)):
        raise TypeError("entries are not a list of dicts")
    entries: list[dict[str, Any]] = value[:MAX_ENTRIES]
    columns = {name: [e.get(name, default) for e in entries] for name, default in _FIELDS.items()}
    for name, kinds in _KINDS.items():
        if not set(map(type, columns[name])) <= kinds:
            raise TypeError(f"{name} has the wrong type")
    return columns


def _columns_of(entries: Sequence[_Entry]) -> dict[str, list[Any]]:
    return {name: [getattr(entry, name) for entry in entries] for name in _FIELDS}


def _each(value: Any) -> tuple[list[_Entry], int]:
    try:
        parts = convert(value, list[msgspec.Raw]) if isinstance(value, msgspec.Raw) else value
    except BROKEN as error:
        raise EntriesError("entries that are not a list") from error
    if not isinstance(parts, list | tuple):
        raise EntriesError("entries that are not a list")
    found, lost = [], 0
    for part in parts:
        try:
            found.append(convert(part, _Entry))
        except BROKEN:
            lost += 1
    return found, lost


def _is_sane(entry: _Entry) -> bool:
    numbers = [getattr(entry, name) or 0 for name in _NUMBERS]
    return min(numbers) > -LARGEST and max(numbers) < LARGEST


def _table(columns: dict[str, list[Any]]) -> Table:
    """Fields of entries as FLIGHT, in order of launch."""
    numbers = {name: _numbers(columns[name]) for name in _NUMBERS}
    texts = columns["profiling_name"]
    if max(map(len, texts), default=0) > MAX_TEXT:
        texts = [text[:MAX_TEXT] for text in texts]
    names = Coded.encode(texts)
    kinds = np.array([int(collective_kind(name)) for name in names.values] or [0], dtype=np.int8)
    is_message = ["send " in name or "recv " in name for name in names.values] or [False]
    recorded = columns["is_p2p"]
    guessed = np.array(is_message)[names.codes].tolist() if None in recorded else recorded
    shapes, inputs = _shapes(columns["input_sizes"])
    _, outputs = _shapes(columns["output_sizes"])
    states = [_STATES.get(state, FlightState.UNKNOWN) for state in columns["state"]]
    pairs = columns["process_group"]
    table = Table(
        FLIGHT,
        {
            "record": np.maximum(numbers["record_id"], numbers["id"]),
            "pg": numbers["pg_id"],
            "group": Coded.encode([_text(pair, 0) for pair in pairs]),
            "description": Coded.encode(
                ["" if (text := _text(pair, 1)) == "undefined" else text for pair in pairs]
            ),
            "seq": np.maximum(numbers["collective_seq_id"], numbers["seq_id"]),
            "p2p_seq": np.maximum(numbers["p2p_seq_id"], ABSENT),
            "name": names,
            "kind": kinds[names.codes],
            "is_p2p": np.array(
                [guess if is_p2p is None else is_p2p
                 for is_p2p, guess in zip(recorded, guessed, strict=True)], dtype=np.bool_),
            "shape": shapes,
            "in_dtype": _spelled(columns["input_dtypes"], _dtypes),
            "in_elements": inputs,
            "out_elements": outputs,
            "state": np.array(states, dtype=np.int8),
            "retired": np.array(columns["retired"], dtype=np.bool_),
            "created_ns": _times(numbers["time_created_ns"]),
            "started_ns": _times(numbers["time_discovered_started_ns"]),
            "completed_ns": _times(numbers["time_discovered_completed_ns"]),
            "timeout_ms": np.maximum(numbers["timeout_ms"], ABSENT),
            "frame": _spelled(columns["frames"], _frame),
        },
    )  # fmt: skip
    record = table["record"]
    by = record if len(record) and record.min() >= 0 else table["created_ns"]
    if len(by) < 2 or (np.diff(by) >= 0).all():
        return table
    return table.take(np.argsort(by, kind="stable"))


def _numbers(values: Sequence[int | None]) -> Int64Array:
    """Integers, ABSENT for None; ValueError if one is out of range."""
    if None in values:
        values = [ABSENT if value is None else value for value in values]
    found = np.array(values, dtype=np.int64)
    if len(found) and not (found.min() > -LARGEST and found.max() < LARGEST):
        raise ValueError("a number is too large")
    return found


def _times(found: Int64Array) -> Int64Array:
    """Times, ABSENT for 0 and less, which some versions write for unknown times."""
    return np.where(found > 0, found, ABSENT)


def _spelled(values: Sequence[Any], text: Any) -> Coded:
    """A column of texts for values; each distinct value is converted once."""
    keys, distinct = _distinct(values)
    texts = {key: text(value) for key, value in distinct.items()}
    return Coded.encode([texts[key] for key in keys])


def _distinct(values: Sequence[Any]) -> tuple[list[Any], dict[Any, Any]]:
    """A key for each value, and the distinct values by key.

    Lists come from a pickle, in which equal lists are one object, so their identity is the key.
    """
    is_shared = any(type(value) is list for value in values)
    keys = [id(value) for value in values] if is_shared else list(values)
    return keys, dict(zip(keys, values, strict=True))


def _shapes(values: Sequence[Any]) -> tuple[Coded, Int64Array]:
    """Sizes for display, and the number of elements."""
    keys, distinct = _distinct(values)
    texts = {
        key: ", ".join("×".join(map(str, one[:16])) or "scalar" for one in (value or ())[:16])
        for key, value in distinct.items()
    }
    counts = {key: _elements(value) for key, value in distinct.items()}
    shown = Coded.encode([texts[key][:MAX_TEXT] for key in keys])
    return shown, np.array([counts[key] for key in keys], dtype=np.int64)


def _elements(shapes: Sequence[Sequence[int]] | None) -> int:
    if not shapes or any(len(shape) > MAX_DIMS or min(shape, default=0) < 0 for shape in shapes):
        return ABSENT
    total = sum(prod(shape) for shape in shapes)
    return total if total < _MAX_ELEMENTS else ABSENT


def _text(pair: Sequence[str], index: int) -> str:
    return pair[index][:MAX_TEXT] if index < len(pair) else ""


def _dtypes(dtypes: Sequence[str] | str | None) -> str:
    if dtypes is None or isinstance(dtypes, str):
        return (dtypes or "")[:MAX_TEXT]
    return ", ".join(dict.fromkeys(dtypes[:16]))[:MAX_TEXT]


def _frame(frames: Sequence[Any]) -> str:
    """The innermost call in the user's code, else the innermost call."""
    calls = msgspec.convert(frames[:MAX_FRAMES], tuple[_Frame, ...], strict=False)
    own = next((f for f in calls if not LIBRARY.search(f.filename)), None)
    frame = own or (calls[0] if calls else None)
    if frame is None:
        return ""
    return f"{frame.name} ({frame.filename.rpartition('/')[2]}:{frame.line})"[:MAX_TEXT]


MAX_BYTES = 1 << 28  # the default ring of 2,000 entries takes 1 MB, or 10 MB with frames

BOUND = Bound(
    reads="a dump of the Flight Recorder",
    num_bytes=MAX_BYTES,
    rows=MAX_ENTRIES,
    depth=1_000,
    seconds_per_mb=2,
)


class _Config(msgspec.Struct):
    name: str = ""
    desc: str = ""
    ranks: str | tuple[int, ...] = ""


class _Status(msgspec.Struct):
    last_enqueued_collective: int = ABSENT
    last_started_collective: int = ABSENT
    last_completed_collective: int = ABSENT


class _Head(msgspec.Struct):
    """Everything but the entries."""

    version: str = ""
    nccl_version: str = ""
    comm_lib_version: str = ""
    rank: int | None = None
    host_name: str = ""


def looks_like_dump(head: bytes) -> bool:
    """Whether a file with this beginning may be a dump: a pickle, or JSON with a dump's fields."""
    if head[:2] in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
        return True
    start = head.lstrip()[:1]
    if (
        b'"traceEvents"' in head or b'"deviceProperties"' in head
    ):  # a Kineto trace, which also names groups
        return False
    words = (b'"pg_config"', b'"pg_status"', b'"profiling_name"', b'"entries"', b'"nccl_comm_state')
    return start == b"{" and any(word in head for word in words)


def parse_flight(data: bytes, *, rank: int, source: str) -> FlightDump:
    """Read a dump: operations, groups and their progress, with notes on damaged and skipped data.

    A file that would run code is refused.
    """
    import hashlib  # OpenSSL takes 3.6 MB, and few jobs have a dump

    plain = _unzipped(data, source)
    content = _decoded(plain, source)
    if not ("entries" in content or "pg_status" in content or "pg_config" in content):
        _refuse(source, "neither entries nor pg_status nor pg_config")
    notes: list[str] = []
    try:
        entries = entries_table(content.get("entries"), source, notes)
    except EntriesError as error:
        _refuse(source, str(error))
    head = _one(content, _Head) or _Head()
    return FlightDump(
        rank=rank,
        source=source,
        entries=entries,
        version=head.version[:MAX_TEXT],
        library=(head.nccl_version or head.comm_lib_version)[:MAX_TEXT],
        groups=_groups(content.get("pg_config"), notes),
        status=_status(content.get("pg_status"), notes),
        host=head.host_name[:MAX_TEXT],
        digest=hashlib.sha1(data, usedforsecurity=False).hexdigest(),
        notes=tuple(notes),
    )


def _unzipped(data: bytes, source: str) -> bytes:
    if data[:2] != b"\x1f\x8b":
        return data
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            plain = stream.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        _refuse(source, f"damaged gzip ({error})")
    if len(plain) > MAX_BYTES:
        _refuse(source, f"more than {MAX_BYTES:,} bytes when decompressed")
    return plain


def _decoded(data: bytes, source: str) -> dict[str, Any]:
    """The top level of a dump, with raw entries."""
    if not data:
        _refuse(source, "an empty file")
    try:
        if data[:1] == b"\x80":
            content = read_pickle(data)
        else:
            content = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except PickleRefused as error:
        _refuse(source, f"a pickle that distprof does not read: {error}")
    except BROKEN as error:
        _refuse(source, f"damaged JSON ({' '.join(str(error).split())[:200]})")
    if not isinstance(content, dict):
        _refuse(source, f"a pickled {type(content).__name__}")
    return content


def _one(value: Any, kind: Any) -> Any:
    try:
        if isinstance(value, dict) and any(isinstance(v, msgspec.Raw) for v in value.values()):
            known = {field.encode_name for field in msgspec.structs.fields(kind)}
            value = {k: msgspec.json.decode(v) for k, v in value.items() if k in known}
        return msgspec.convert(value, type=kind, strict=False)
    except BROKEN:
        return None


def _groups(value: Any, notes: list[str]) -> tuple[FlightGroup, ...]:
    if value is None:
        return ()
    try:
        found: dict[str, _Config] = convert(value, dict[str, _Config])
    except BROKEN:
        notes.append(
            "pg_config is damaged, so distprof takes the members of groups from their entries."
        )
        return ()
    return tuple(
        FlightGroup(
            name=(config.name or name)[:MAX_TEXT],
            description=config.desc[:MAX_TEXT],
            ranks=parse_ranks(config.ranks),
        )
        for name, config in found.items()
    )


def _status(value: Any, notes: list[str]) -> dict[int, GroupStatus]:
    if value is None:
        return {}
    try:
        found: dict[int, _Status] = convert(value, dict[int, _Status])
    except BROKEN:
        notes.append("pg_status is damaged: distprof ignores it.")
        return {}
    return {
        pg: GroupStatus(
            enqueued=_known(status.last_enqueued_collective),
            started=_known(status.last_started_collective),
            completed=_known(status.last_completed_collective),
        )
        for pg, status in found.items()
        if abs(pg) < LARGEST
    }


def _known(number: int) -> int | None:
    return number if 0 <= number < LARGEST else None


# The dump of a rank in a run directory ------------------------------------------------------------


class FlightEntries(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives that one rank requested, in order of time, without messages."""

    time_ns: Int64Array  # int64, time of the request, ns since the epoch on the rank's own clock.
    # int8, the CollectiveKind as executed: gloo runs a reduce-scatter as an all-reduce.
    kind: NDArray[np.int8]
    seq: Int64Array  # int64, sequence number in its group, ABSENT if unknown.
    elements: Int64Array  # int64, elements of the input, ABSENT if unknown.
    group: Coded  # Name of its process group.
    description: Coded  # Description of its process group.
    digest: str = ""  # Digest of the file, the cache key of everything inferred from it.
    notes: tuple[str, ...] = ()  # Damaged data, one sentence each.

    def __len__(self) -> int:
        return len(self.time_ns)


def read_flight(path: str) -> FlightEntries:
    """The collectives in the dump of a rank; empty and with a note if the file cannot be used."""
    folder, _, name = path.rpartition("/")
    nothing = Table.empty(FLIGHT)
    try:
        data = Folder(folder or ".").read(name, MAX_BYTES)
    except OSError as error:
        return _collectives(nothing, "unreadable", (f"Cannot read {name}: {error.strerror}.",))
    try:
        dump = parse_flight(data, rank=0, source=name)
    except InputError:
        return _collectives(nothing, "damaged", (f"{name} is damaged: distprof ignores it.",))
    return _collectives(dump.entries, dump.digest, dump.notes)


def _collectives(entries: Table, digest: str, notes: tuple[str, ...]) -> FlightEntries:
    """Entries that are collectives with a timestamp, in order of time."""
    rows = np.flatnonzero(~entries["is_p2p"] & (entries["created_ns"] > 0))
    rows = rows[np.argsort(entries["created_ns"][rows], kind="stable")]
    return FlightEntries(
        time_ns=entries["created_ns"][rows],
        kind=entries["kind"][rows],
        seq=entries["seq"][rows],
        elements=entries["in_elements"][rows],
        group=entries.coded("group").take(rows),
        description=entries.coded("description").take(rows),
        digest=digest,
        notes=notes,
    )
