"""The dump of torch's Flight Recorder: one rank's latest collectives and messages.

Two spellings of one thing: a pickle (what NCCL's watchdog writes) and JSON (what is asked for on
demand). Versions 1 and 2 of the format, with or without stack frames. Nothing in a dump is
executed: see :mod:`distprof.ingest.safe_pickle`.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import zlib
from collections.abc import Sequence
from math import prod
from typing import Any

import msgspec
import numpy as np

from distprof.errors import InputError
from distprof.ingest.communication import collective_kind
from distprof.ingest.safe_pickle import PickleRefused, read_pickle
from distprof.run.flight import FLIGHT, FlightDump, FlightGroup, FlightState, GroupStatus
from distprof.schema import ABSENT, Coded, Int64Array, Table

__all__ = ["MAX_BYTES", "looks_like_dump", "parse_flight"]

MAX_BYTES = 1 << 28  # the ring of 2000 entries that is the default makes 1 MB, with frames 10
MAX_ENTRIES = 1_000_000
MAX_TEXT = 512
MAX_MEMBERS = 1 << 20
MAX_DIMS = 64

_LARGEST = 1 << 62
_MAX_ELEMENTS = 1 << 50
_STATES = {
    "scheduled": FlightState.SCHEDULED,
    "started": FlightState.STARTED,
    "completed": FlightState.COMPLETED,
}
_NUMBERS = re.compile(r"\d+")
_LIBRARY_CODE = re.compile(r"/(?:site|dist)-packages/|/lib/python\d|^<frozen")
_BROKEN = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, OverflowError)


class _Frame(msgspec.Struct):
    name: str = ""
    filename: str = ""
    line: int = 0


class _Entry(msgspec.Struct):
    """The fields that are used, of all versions of the format."""

    time_created_ns: int = ABSENT
    profiling_name: str = ""
    record_id: int = ABSENT
    id: int = ABSENT  # what record_id was called in version 1
    pg_id: int = ABSENT
    process_group: tuple[str, ...] = ()
    collective_seq_id: int = ABSENT
    seq_id: int = ABSENT  # of version 1, which counts collectives and messages together
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
    """Whether a file that starts so may be a dump: a pickle, or JSON that names a part of one."""
    if head[:2] in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
        return True
    start = head.lstrip()[:1]
    if (
        b'"traceEvents"' in head or b'"deviceProperties"' in head
    ):  # Kineto's, which names groups too
        return False
    words = (b'"pg_config"', b'"pg_status"', b'"profiling_name"', b'"entries"', b'"nccl_comm_state')
    return start == b"{" and any(word in head for word in words)


def parse_flight(data: bytes, *, rank: int, source: str) -> FlightDump:
    """Read a dump.

    Args:
        data: The file; gzip is undone.
        rank: Whose it is.
        source: What to call it in messages.

    Returns:
        Its operations, groups and their progress; notes say what was damaged and left out.

    Raises:
        InputError: If the file is no dump, or would run code.
    """
    plain = _unzipped(data, source)
    content = _decoded(plain, source)
    if not ("entries" in content or "pg_status" in content or "pg_config" in content):
        raise _no_dump(source, "none of entries, pg_status and pg_config in it")
    notes: list[str] = []
    entries = _entries(content.get("entries"), source, notes)
    head = _one(content, _Head) or _Head()
    return FlightDump(
        rank=rank,
        source=source,
        entries=_table(entries),
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
        raise _no_dump(source, f"damaged gzip ({error})") from error
    if len(plain) > MAX_BYTES:
        raise _no_dump(source, f"more than {MAX_BYTES:,} bytes once unpacked")
    return plain


def _decoded(data: bytes, source: str) -> dict[str, Any]:
    """The top of a dump, its entries still as they were."""
    if not data:
        raise _no_dump(source, "an empty file")
    try:
        if data[:1] == b"\x80":
            content = read_pickle(data)
        else:
            content = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except PickleRefused as error:
        raise _no_dump(source, f"a pickle that is not read: {error}") from error
    except _BROKEN as error:
        raise _no_dump(source, f"damaged JSON ({' '.join(str(error).split())[:200]})") from error
    if not isinstance(content, dict):
        raise _no_dump(source, f"a pickled {type(content).__name__}")
    return content


def _no_dump(source: str, found: str) -> InputError:
    return InputError(
        source,
        expected="a dump of torch's Flight Recorder, as pickle or JSON",
        found=found,
        fix="leave the file out, or dump again: TORCH_FR_DUMP_TEMP_FILE says where to",
    )


def _convert(value: Any, kind: Any) -> Any:
    """A part of a dump, whether it comes from a pickle or is still JSON."""
    if isinstance(value, msgspec.Raw):
        return msgspec.json.decode(value, type=kind, strict=False)
    return msgspec.convert(value, type=kind, strict=False)


def _one(value: Any, kind: Any) -> Any:
    try:
        if isinstance(value, dict) and any(isinstance(v, msgspec.Raw) for v in value.values()):
            known = {field.encode_name for field in msgspec.structs.fields(kind)}
            value = {k: msgspec.json.decode(v) for k, v in value.items() if k in known}
        return msgspec.convert(value, type=kind, strict=False)
    except _BROKEN:
        return None


def _entries(value: Any, source: str, notes: list[str]) -> list[_Entry]:
    """All entries at once, or, where one is damaged, each on its own."""
    if value is None:
        return []
    try:
        found: list[_Entry] = _convert(value, list[_Entry])
        lost = 0
    except _BROKEN:
        found, lost = _each(value, source)
    good = [entry for entry in found[:MAX_ENTRIES] if _is_sane(entry)]
    lost += len(found) - len(good)
    if lost:
        notes.append(f"{lost:,} entries of {source} are damaged and left out.")
    return good


def _each(value: Any, source: str) -> tuple[list[_Entry], int]:
    try:
        parts = _convert(value, list[msgspec.Raw]) if isinstance(value, msgspec.Raw) else value
    except _BROKEN as error:
        raise _no_dump(source, "entries that are no list") from error
    if not isinstance(parts, list | tuple):
        raise _no_dump(source, "entries that are no list")
    found, lost = [], 0
    for part in parts:
        try:
            found.append(_convert(part, _Entry))
        except _BROKEN:
            lost += 1
    return found, lost


def _is_sane(entry: _Entry) -> bool:
    numbers = (
        entry.time_created_ns, entry.record_id, entry.id, entry.pg_id, entry.collective_seq_id,
        entry.seq_id, entry.p2p_seq_id, entry.timeout_ms,
        entry.time_discovered_started_ns or 0, entry.time_discovered_completed_ns or 0,
    )  # fmt: skip
    return min(numbers) > -_LARGEST and max(numbers) < _LARGEST


def _groups(value: Any, notes: list[str]) -> tuple[FlightGroup, ...]:
    if value is None:
        return ()
    try:
        found: dict[str, _Config] = _convert(value, dict[str, _Config])
    except _BROKEN:
        notes.append("pg_config is damaged: members of groups are taken from their entries.")
        return ()
    return tuple(
        FlightGroup(
            name=(config.name or name)[:MAX_TEXT],
            description=config.desc[:MAX_TEXT],
            ranks=_members(config.ranks),
        )
        for name, config in found.items()
    )


def _members(ranks: str | Sequence[int]) -> tuple[int, ...]:
    """``[0, 1]``, which torch writes as text, and lists."""
    if isinstance(ranks, str):
        ranks = [int(number) for number in _NUMBERS.findall(ranks) if len(number) < 8]
    return tuple(sorted({rank for rank in ranks[:MAX_MEMBERS] if 0 <= rank < MAX_MEMBERS}))


def _status(value: Any, notes: list[str]) -> dict[int, GroupStatus]:
    if value is None:
        return {}
    try:
        found: dict[int, _Status] = _convert(value, dict[int, _Status])
    except _BROKEN:
        notes.append("pg_status is damaged and not used.")
        return {}
    return {
        pg: GroupStatus(
            enqueued=_known(status.last_enqueued_collective),
            started=_known(status.last_started_collective),
            completed=_known(status.last_completed_collective),
        )
        for pg, status in found.items()
        if abs(pg) < _LARGEST
    }


def _known(number: int) -> int | None:
    return number if 0 <= number < _LARGEST else None


def _table(entries: Sequence[_Entry]) -> Table:
    """Entries as FLIGHT, in order of launch."""
    entries = _in_order(entries)
    names = Coded.encode([entry.profiling_name[:MAX_TEXT] for entry in entries])
    kinds = np.array([int(collective_kind(name)) for name in names.values] or [0], dtype=np.int8)
    sizes = {(entry.input_sizes, entry.output_sizes) for entry in entries}
    shapes = {pair: _shape(*pair) for pair in sizes}
    told = [(entry.input_sizes, entry.output_sizes) for entry in entries]
    kind = kinds[names.codes]
    is_p2p = [
        entry.is_p2p if entry.is_p2p is not None else ("send " in name or "recv " in name)
        for entry, name in zip(entries, names.decode(), strict=True)
    ]
    return Table(
        FLIGHT,
        {
            "record": _integers([max(e.record_id, e.id) for e in entries]),
            "pg": _integers([entry.pg_id for entry in entries]),
            "group": Coded.encode([_text(entry.process_group, 0) for entry in entries]),
            "description": Coded.encode([_description(entry.process_group) for entry in entries]),
            "seq": _integers([max(e.collective_seq_id, e.seq_id, ABSENT) for e in entries]),
            "p2p_seq": _integers([max(entry.p2p_seq_id, ABSENT) for entry in entries]),
            "name": names,
            "kind": kind if len(entries) else np.empty(0, np.int8),
            "is_p2p": np.array(is_p2p, dtype=np.bool_),
            "shape": Coded.encode([shapes[pair][0] for pair in told]),
            "in_dtype": Coded.encode([_dtypes(entry.input_dtypes) for entry in entries]),
            "in_elements": _integers([shapes[pair][1] for pair in told]),
            "out_elements": _integers([shapes[pair][2] for pair in told]),
            "state": np.array(
                [_STATES.get(e.state, FlightState.UNKNOWN) for e in entries], np.int8
            ),
            "retired": np.array([entry.retired for entry in entries], dtype=np.bool_),
            "created_ns": _times([entry.time_created_ns for entry in entries]),
            "started_ns": _times([e.time_discovered_started_ns or ABSENT for e in entries]),
            "completed_ns": _times([e.time_discovered_completed_ns or ABSENT for e in entries]),
            "timeout_ms": _integers([max(entry.timeout_ms, ABSENT) for entry in entries]),
            "frame": Coded.encode([_frame(entry.frames) for entry in entries]),
        },
    )


def _in_order(entries: Sequence[_Entry]) -> list[_Entry]:
    """By number of the entry; without numbers by time."""
    by_number = all(max(entry.record_id, entry.id) >= 0 for entry in entries)
    if by_number:
        return sorted(entries, key=lambda entry: max(entry.record_id, entry.id))
    return sorted(entries, key=lambda entry: entry.time_created_ns)


def _integers(values: Sequence[int]) -> Int64Array:
    return np.array(values, dtype=np.int64)


def _times(values: Sequence[int]) -> Int64Array:
    """Times; 0 and less is how some versions say that there is none."""
    found = _integers(values)
    return np.where(found > 0, found, ABSENT)


def _shape(
    inputs: Sequence[Sequence[int]] | None, outputs: Sequence[Sequence[int]] | None
) -> tuple[str, int, int]:
    """Sizes as shown, elements of inputs, elements of outputs."""
    told = _sizes(inputs)
    return told, _elements(inputs), _elements(outputs)


def _sizes(shapes: Sequence[Sequence[int]] | None) -> str:
    text = ", ".join("×".join(map(str, shape[:16])) or "scalar" for shape in (shapes or ())[:16])
    return text[:MAX_TEXT]


def _elements(shapes: Sequence[Sequence[int]] | None) -> int:
    if not shapes or any(len(shape) > MAX_DIMS or min(shape, default=0) < 0 for shape in shapes):
        return ABSENT
    total = sum(prod(shape) for shape in shapes)
    return total if total < _MAX_ELEMENTS else ABSENT


def _text(pair: Sequence[str], index: int) -> str:
    return pair[index][:MAX_TEXT] if index < len(pair) else ""


def _description(pair: Sequence[str]) -> str:
    text = _text(pair, 1)
    return "" if text == "undefined" else text


def _dtypes(told: Sequence[str] | str | None) -> str:
    if told is None or isinstance(told, str):
        return (told or "")[:MAX_TEXT]
    return ", ".join(dict.fromkeys(told[:16]))[:MAX_TEXT]


def _frame(frames: Sequence[_Frame]) -> str:
    """The innermost call of the user's own code, else the innermost."""
    own = next((f for f in frames if not _LIBRARY_CODE.search(f.filename)), None)
    frame = own or (frames[0] if frames else None)
    if frame is None:
        return ""
    return f"{frame.name} ({frame.filename.rpartition('/')[2]}:{frame.line})"[:MAX_TEXT]
