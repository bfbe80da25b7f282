"""The dump of torch's Flight Recorder: one rank's latest collectives and messages.

A dump is a pickle (written by the NCCL watchdog) or JSON (requested on demand). Versions 1 and 2 of
the format are supported, with or without stack frames. Nothing in a dump is executed: see
:mod:`distprof.ingest.flight.safe_pickle`.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.bounds import Bound
from distprof.errors import InputError
from distprof.ingest.files import Folder
from distprof.ingest.flight.entries import (
    BROKEN,
    LARGEST,
    MAX_ENTRIES,
    MAX_TEXT,
    EntriesError,
    convert,
    entries_table,
)
from distprof.ingest.flight.safe_pickle import PickleRefused, read_pickle
from distprof.ingest.metadata import parse_ranks
from distprof.run.records import FLIGHT, FlightDump, FlightGroup, GroupStatus
from distprof.schema import ABSENT, Coded, Int64Array, Table

MAX_BYTES = 1 << 28  # the default ring of 2,000 entries takes 1 MB, or 10 MB with frames

BOUND = Bound(
    reads="a dump of the Flight Recorder",
    num_bytes=MAX_BYTES,
    rows=MAX_ENTRIES,
    depth=1_000,
    beyond="refused",
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

    Raises:
        InputError: If the file is not a dump, or would run code.
    """
    plain = _unzipped(data, source)
    content = _decoded(plain, source)
    if not ("entries" in content or "pg_status" in content or "pg_config" in content):
        raise _not_a_dump(source, "neither entries nor pg_status nor pg_config")
    notes: list[str] = []
    try:
        entries = entries_table(content.get("entries"), source, notes)
    except EntriesError as error:
        raise _not_a_dump(source, str(error)) from error
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
        raise _not_a_dump(source, f"damaged gzip ({error})") from error
    if len(plain) > MAX_BYTES:
        raise _not_a_dump(source, f"more than {MAX_BYTES:,} bytes when decompressed")
    return plain


def _decoded(data: bytes, source: str) -> dict[str, Any]:
    """The top level of a dump, with raw entries."""
    if not data:
        raise _not_a_dump(source, "an empty file")
    try:
        if data[:1] == b"\x80":
            content = read_pickle(data)
        else:
            content = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except PickleRefused as error:
        raise _not_a_dump(source, f"a pickle that distprof does not read: {error}") from error
    except BROKEN as error:
        raise _not_a_dump(source, f"damaged JSON ({' '.join(str(error).split())[:200]})") from error
    if not isinstance(content, dict):
        raise _not_a_dump(source, f"a pickled {type(content).__name__}")
    return content


def _not_a_dump(source: str, found: str) -> InputError:
    return InputError(
        source,
        expected="a dump of PyTorch's Flight Recorder, as pickle or JSON",
        found=found,
        fix="leave the file out, or dump again: TORCH_FR_DUMP_TEMP_FILE sets the destination",
    )


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
    try:
        data = Folder(folder or ".").read(name, MAX_BYTES)
    except OSError as error:
        return _collectives(Table.empty(FLIGHT), "", (f"Cannot read {name}: {error.strerror}.",))
    try:
        dump = parse_flight(data, rank=0, source=name)
    except InputError:
        digest = hashlib.sha1(data, usedforsecurity=False).hexdigest()
        return _collectives(
            Table.empty(FLIGHT), digest, (f"{name} is damaged: distprof ignores it.",)
        )
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
