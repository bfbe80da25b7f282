"""Line-wise files, read as a stream: every broken line is counted, none stops the reading."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import msgspec

from distprof.artefacts.records import Header
from distprof.ingest.job.files import Folder

__all__ = ["MAX_LINE_BYTES", "MAX_RECORDS", "LineFile", "read_lines"]

MAX_LINE_BYTES = 1 << 20
"""Longer lines are no record of ours: they are left out and counted."""

MAX_RECORDS = 2_000_000
"""More records than this of one file are left out, and said so: memory stays bounded."""

_BLOCK_BYTES = 1 << 20
_BROKEN = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, OverflowError)


@dataclass(slots=True, kw_only=True)
class LineFile:
    """What was met in one file, counted.

    Args:
        name: Of the file.
        about: What its header says of all lines.
        num_records: Lines that were taken.
        num_bad: Lines that were not: not JSON, other fields or types, or nonsense.
        is_cut: The last line has no end: its writer was stopped.
        is_capped: There were more lines than are read.
        problem: Why the file was not read at all; empty usually.
    """

    name: str
    about: dict[str, Any] = field(default_factory=dict)
    num_records: int = 0
    num_bad: int = 0
    is_cut: bool = False
    is_capped: bool = False
    problem: str = ""

    def notes(self) -> tuple[str, ...]:
        """What a reader of the report should know, one sentence each, without the rank."""
        if self.problem:
            return (f"{self.name} is not read: {self.problem}.",)
        notes = []
        if self.num_bad:
            lines = "line is" if self.num_bad == 1 else "lines are"
            notes.append(f"{self.num_bad:,} {lines} damaged in {self.name} and left out.")
        if self.is_cut:
            notes.append(f"The last line of {self.name} is cut: its writer was stopped.")
        if self.is_capped:
            notes.append(
                f"{self.name} has more than {MAX_RECORDS:,} records: the rest is left out."
            )
        return tuple(notes)


def read_lines(
    folder: Folder, name: str, schema: str, kind: type[Any], take: Callable[[Any], None]
) -> LineFile:
    """Read the records of one file.

    Args:
        folder: The rank's folder.
        name: Of the file; one that does not exist has no records.
        schema: What its header must say, for example ``distprof.steps/1``.
        kind: Type of a record.
        take: Called with each record, in order; refuses one that is nonsense by ValueError or
            OverflowError, which is counted as a bad line.
    """
    found = LineFile(name=name)
    if folder.size(name) is None:
        return found
    try:
        with folder.open(name) as stream:
            _read(stream, schema, msgspec.json.Decoder(kind), take, found)
    except OSError as error:
        found.problem = error.strerror or type(error).__name__
    return found


def _read(
    stream: BinaryIO,
    schema: str,
    decoder: msgspec.json.Decoder[Any],
    take: Callable[[Any], None],
    found: LineFile,
) -> None:
    lines = _lines(stream, found)
    first = next(lines, None)
    if first is None or not _accept_header(first, schema, found):
        return
    for line in lines:
        if found.num_records >= MAX_RECORDS:
            found.is_capped = True
            return
        try:
            take(decoder.decode(line))
        except _BROKEN:
            found.num_bad += not found.is_cut
        else:
            found.num_records += 1
            found.is_cut = False


def _accept_header(line: bytes, schema: str, found: LineFile) -> bool:
    """Whether the file is of the kind and version that is read; a lost header is no reason."""
    try:
        header = msgspec.json.decode(line, type=Header)
    except _BROKEN:
        found.num_bad += 1
        return True
    if header.schema == schema:
        found.about = header.about
        return True
    known, _, major = schema.partition("/")
    kind, _, said = header.schema.partition("/")
    if kind != known:
        found.problem = f"its schema is {header.schema[:60]!r}, not {schema!r}"
    else:
        found.problem = (
            f"it is of version {said[:20]}, this distprof reads {major}: a newer one is needed"
        )
    return False


def _lines(stream: BinaryIO, found: LineFile) -> Iterator[bytes]:
    """Lines without their ends; over-long ones are counted."""
    rest = b""
    too_long = False
    while block := stream.read(_BLOCK_BYTES):
        parts = (rest + block).split(b"\n")
        rest = parts.pop()
        for part in parts:
            if too_long or len(part) > MAX_LINE_BYTES:
                found.num_bad += 1
                too_long = False
            elif part.strip():
                yield part
        if len(rest) > MAX_LINE_BYTES:
            rest, too_long = b"", True
    if too_long:
        found.num_bad += 1
    elif rest.strip():
        found.is_cut = True  # unless it turns out to be whole
        yield rest
