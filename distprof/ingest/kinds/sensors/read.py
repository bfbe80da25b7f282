"""Files of sensors and errors of devices: which of the formats a line is of, and who reads it.

One file may hold several (a script that calls nvidia-smi in several ways, a kernel log with other
lines between): each line goes to the reader whose mark it bears, else to the table that is open.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from distprof.errors import InputError
from distprof.ingest.kinds.sensors.collect import Collector
from distprof.ingest.kinds.sensors.dmon import Dmon, dmon_header
from distprof.ingest.kinds.sensors.errors import FABRIC, KERNEL, take_fabric_line, take_kernel_line
from distprof.ingest.kinds.sensors.monitor import MARK, NvlinkStatus, take_monitor_line
from distprof.ingest.kinds.sensors.prometheus import PREFIX, Scrapes
from distprof.ingest.kinds.sensors.query_csv import QueryCsv, has_sensors, header_of, is_headless
from distprof.ingest.log_files import DAMAGE, beginning, opened
from distprof.run.device_log import DeviceLog

__all__ = ["fits_device_log", "read_device_log"]

MAX_FILES = 10_000
MAX_LINE_BYTES = 1 << 18
MAX_BYTES = 1 << 36
"""Unpacked; a small file of gzip can hold more than a day's work."""

_SNIFFED_BYTES = 1 << 20
_SNIFFED_LINES = 20_000
_BLOCK_BYTES = 1 << 20
_OTHER_KINDS = (".json", ".json.gz", ".pkl", ".parquet", ".tar", ".zip", ".py", ".toml", ".md")
_TRACES = (".json", ".json.gz")
_WORDS = (b"NCCL INFO", b"NCCL WARN", b"traceEvents", b'"distprof.')  # of other kinds of files
_EXPECTED = (
    "sensors or errors of devices: nvidia-smi --query-gpu as csv, nvidia-smi dmon, dcgmi dmon, "
    "metrics of DCGM's exporter, SuperBench's monitor, nvidia-smi nvlink --status, a log of the "
    "kernel or of the fabric manager"
)


def fits_device_log(source: str) -> bool:
    """Whether a source is such a file, or a folder with such files and no trace."""
    try:
        if _is_folder(source):
            return bool(_logs_of_folder(source))
        return _is_log(source)
    except (OSError, ValueError, ImportError):
        return False


def read_device_log(source: str) -> DeviceLog:
    """Read a file, or all such files of a folder.

    Args:
        source: Path or fsspec URL of a file, gzipped or not, or a folder on this machine.

    Raises:
        InputError: If it cannot be opened, or holds nothing of the kind.
    """
    is_folder = _is_folder(source)
    paths = _logs_of_folder(source) if is_folder else [source]
    root = str(Path(source).expanduser()) if is_folder else str(PurePosixPath(source).parent)
    log = DeviceLog.merged([_read(path, _shown(path, root)) for path in paths])
    if not (log.series or log.events or log.links or _is_known(paths)):
        raise InputError(
            source,
            expected=_EXPECTED,
            found="; ".join(log.notes) or f"{log.num_lines:,} lines without any of it",
            fix="name what one of these tools wrote, as it wrote it",
        )
    return log


def _is_folder(source: str) -> bool:
    return "://" not in source and Path(source).expanduser().is_dir()


def _is_known(paths: list[str]) -> bool:
    """Whether a log is of the kind, though nothing went wrong in it."""
    return any(_verdict(beginning(path, _SNIFFED_BYTES)) == "errors" for path in paths)


def _shown(path: str, root: str) -> str:
    """The path inside of what the user named."""
    shown = PurePosixPath(path)
    return str(shown.relative_to(root)) if shown.is_relative_to(root) else shown.name


def _read(path: str, shown: str) -> DeviceLog:
    collector = Collector(shown, _written_ns(path))
    dispatcher = _Dispatcher(collector)
    try:
        with opened(path) as stream:
            for line in _lines(stream, collector):
                dispatcher.take(line)
    except _HeadlessError:
        raise InputError(
            path,
            expected="a header that names the columns, as the first line",
            found="rows of nvidia-smi --query-gpu without a header",
            fix="leave noheader out of --format, or write the names of the query before the rows",
        ) from None
    except DAMAGE as error:
        text = " ".join(str(error).split())
        if collector.num_lines == 0:
            raise InputError(
                path, expected=_EXPECTED, found=text, fix="name a file that can be read"
            ) from error
        collector.notes.append(f"{collector.file} is read up to its damage: {text}.")
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
    """

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._table: QueryCsv | Dmon | None = None
        self._scrapes = Scrapes(collector)
        self._links = NvlinkStatus(collector)
        self._num_rows = 0

    def take(self, line: str) -> None:
        """Read one line."""
        first = line[:1]
        if first.isdigit() and isinstance(self._table, QueryCsv) and KERNEL not in line:
            self._num_rows += 1  # by far the most lines
            self._table.take(line)
        elif first == "#":
            self._comment(line)
        elif line.startswith(PREFIX):
            self._scrapes.take(line)
        elif first == "{" and MARK in line:
            take_monitor_line(line, self._collector)
        elif KERNEL in line:
            take_kernel_line(line, self._collector)
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
            collector.notes.append(f"{collector.file} is read up to its damage: {text}.")
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
    collector.notes.append(f"{collector.file} is read up to {MAX_BYTES >> 30} GiB.")


def _is_log(path: str) -> bool:
    if path.lower().endswith(_OTHER_KINDS):
        return False
    return bool(_verdict(beginning(path, _SNIFFED_BYTES)))


def _verdict(start: bytes) -> str:
    """``samples``, ``errors`` or nothing, by the marks in a file's beginning."""
    if b"\0" in start[:4096] or any(word in start for word in _WORDS):
        return ""
    text = start.decode("utf-8", "replace")
    if KERNEL in text:
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


def _logs_of_folder(source: str) -> list[str]:
    """Such files in a folder and its folders; none where it holds a trace."""
    files: list[str] = []
    for parent, folders, names in os.walk(Path(source).expanduser()):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name.lower().endswith(_TRACES) or len(files) >= MAX_FILES:
                return []
            files.append(str(Path(parent, name)))
    return [path for path in sorted(files) if _is_log(path)]
