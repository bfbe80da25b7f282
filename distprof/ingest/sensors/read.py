"""Files of sensors and errors of devices: which of the formats a line is of, and who reads it.

One file may hold several (a script that calls nvidia-smi in several ways, a kernel log with other
lines between): each line goes to the reader whose mark it bears, else to the table that is open.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from distprof.errors import InputError
from distprof.ingest.files import DAMAGE, opened
from distprof.ingest.sensors.collect import Collector
from distprof.ingest.sensors.kernel import (
    JOURNAL,
    SNIFFED_LINES,
    holds_marks,
    is_kernel_log,
    take_journal,
    take_kernel,
)
from distprof.ingest.sensors.messages import (
    FABRIC,
    MARK,
    PREFIX,
    NvlinkStatus,
    Scrapes,
    take_fabric_line,
    take_monitor_line,
)
from distprof.ingest.sensors.tables import (
    Dmon,
    QueryCsv,
    dmon_header,
    has_sensors,
    header_of,
    is_headless,
)
from distprof.run.logs import DeviceLog

__all__ = ["EXPECTED", "content_of", "read_file"]

MAX_LINE_BYTES = 1 << 18
MAX_BYTES = 1 << 36
"""Unpacked; a small file of gzip can hold more than a day's work."""

_SNIFFED_LINES = 20_000
_SNIFFED_CHARACTERS = 500
_BLOCK_BYTES = 1 << 20
EXPECTED = (
    "GPU sensors or errors: nvidia-smi --query-gpu as csv, nvidia-smi dmon, dcgmi dmon, metrics "
    "of dcgm-exporter, the SuperBench monitor, nvidia-smi nvlink --status, a kernel log "
    "(dmesg -T, journalctl -k) or a fabric manager log"
)


def read_file(path: str, shown: str) -> DeviceLog:
    """Read one file, up to damage if there is any.

    Args:
        path: Path or fsspec URL of a file, gzipped or not.
        shown: What to call it.

    Raises:
        InputError: If it cannot be opened, or its columns have no names.
    """
    collector = Collector(shown, _written_ns(path))
    dispatcher = _Dispatcher(collector)
    try:
        with opened(path) as stream:
            for line in _lines(stream, collector):
                dispatcher.take(line)
        collector.is_kernel_log |= is_kernel_log(dispatcher.beginning)
    except _HeadlessError:
        raise InputError(
            path,
            expected="a header that names the columns, as the first line",
            found="rows of nvidia-smi --query-gpu without a header",
            fix="leave noheader out of --format, or write the query names before the rows",
        ) from None
    except DAMAGE as error:
        text = " ".join(str(error).split())
        if collector.num_lines == 0:
            raise InputError(
                path, expected=EXPECTED, found=text, fix="name a readable file"
            ) from error
        collector.notes.append(f"{collector.file} was read only up to the damage: {text}.")
    dispatcher.close()
    return collector.result()


def _written_ns(path: str) -> int | None:
    """When a plain file was last written: with its last sample, unless it was packed or copied."""
    if "://" in path or path.lower().endswith(".gz"):
        return None
    try:
        return Path(path).expanduser().stat().st_mtime_ns
    except OSError:
        return None


class _HeadlessError(Exception):
    """Rows came before any header."""


class _Dispatcher:
    """Gives each line to its reader.

    Args:
        collector: Where readers put what they find.

    Attributes:
        beginning: First lines, by which a kernel log is known.
    """

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._table: QueryCsv | Dmon | None = None
        self._scrapes = Scrapes(collector)
        self._links = NvlinkStatus(collector)
        self._num_rows = 0
        self.beginning = ""

    def take(self, line: str) -> None:
        """Read one line."""
        if self._collector.num_lines <= SNIFFED_LINES:
            self.beginning += f"{line[:_SNIFFED_CHARACTERS]}\n"
        first = line[:1]
        if first.isdigit() and isinstance(self._table, QueryCsv) and not holds_marks(line):
            self._num_rows += 1  # by far the most lines
            self._table.take(line)
        elif first == "#":
            self._comment(line)
        elif line.startswith(PREFIX):
            self._scrapes.take(line)
        elif first == "{" and JOURNAL in line:
            take_journal(line, self._collector)
        elif first == "{" and MARK in line:
            take_monitor_line(line, self._collector)
        elif holds_marks(line):
            take_kernel(line, self._collector)
        elif first == "[" and FABRIC.match(line):
            take_fabric_line(line, self._collector)
        elif not self._links.take(line):
            self._row(line)

    def close(self) -> None:
        """End what is open."""
        self._scrapes.close()
        self._links.close()

    def _comment(self, line: str) -> None:
        """A header of dmon, its line of units, the end of a section, or something else."""
        names = dmon_header(line)
        if names is not None:
            if not (isinstance(self._table, Dmon) and self._table.fits(names)):
                self._table = Dmon(names, self._collector)
        elif line.startswith(("##", "# gpu", "#gpu")):  # a section ends; the header of a table
            self._links.close()
            self._table = None
        else:
            self._scrapes.comment(line)

    def _row(self, line: str) -> None:
        if not line.strip():
            return
        if "," in line:
            names = header_of(line)
            if names is not None:
                self._table = QueryCsv(names, self._collector)
                return
            if self._table is None and self._num_rows == 0 and is_headless(line):
                raise _HeadlessError
        if self._table is not None:
            self._num_rows += 1
            self._table.take(line)


def _lines(stream: BinaryIO, collector: Collector) -> Iterator[str]:
    """Lines as text, in bounded memory; what is too long is cut."""
    rest, size = b"", 0
    while size <= MAX_BYTES:
        try:
            block = stream.read(_BLOCK_BYTES)
        except (OSError, EOFError, zlib.error) as error:
            text = " ".join(str(error).split())
            collector.notes.append(f"{collector.file} was read only up to the damage: {text}.")
            block = b""
        size += len(block)
        lines = (rest + block).replace(b"\r\n", b"\n").replace(b"\0", b"").split(b"\n")
        rest = lines.pop() if block else b""
        if len(rest) > MAX_LINE_BYTES:
            lines.append(rest)
            rest = b""
        for line in lines:
            collector.num_lines += 1
            yield line[:MAX_LINE_BYTES].decode("utf-8", "replace").rstrip("\r")
        if not block:
            return
    collector.notes.append(f"{collector.file} was read only up to {MAX_BYTES >> 30} GiB.")


def content_of(start: bytes) -> str:
    """``samples``, ``errors`` or nothing, by the marks in a file's beginning."""
    text = start.decode("utf-8", "replace")
    if "NVRM: " in text or is_kernel_log(text):
        return "errors"
    is_first = True
    for line in text.split("\n", _SNIFFED_LINES)[:_SNIFFED_LINES]:
        kind = _kind(line.rstrip("\r"), is_first=is_first)
        if kind:
            return kind
        is_first = is_first and not line.strip()
    return ""


def _kind(line: str, *, is_first: bool) -> str:
    if FABRIC.match(line):
        return "errors"
    if line.startswith(PREFIX) or line.startswith(f"# HELP {PREFIX}"):
        return "samples"
    if line.startswith("{") and MARK in line and ':0"' in line:
        return "samples"
    if line.startswith("#") and dmon_header(line):
        return "samples"
    if line.lstrip().startswith("Link ") and line.rstrip().endswith(("GB/s", "active>")):
        return "samples"
    names = header_of(line) if "," in line else None
    if names is not None:
        return "samples" if has_sensors(names) else ""
    return "samples" if is_first and "," in line and is_headless(line) else ""
