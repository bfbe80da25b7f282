"""Read files with GPU sensors or errors: recognise the format of each line and pick its reader.

A file may mix formats, for example the output of a script that calls nvidia-smi in several ways, or
a kernel log with other lines in between. Each line goes to the reader that recognises it, otherwise
to the current table.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from msgspec.structs import replace

from distprof.bounds import expanded, within
from distprof.errors import InputError
from distprof.ingest.files import DAMAGE, opened
from distprof.ingest.sensors.collect import (
    JOURNAL,
    LABEL,
    MARKER,
    NAME,
    RULE,
    Collector,
    host_named,
    is_amd_json,
)
from distprof.ingest.sensors.messages import (
    FABRIC,
    MARK,
    PREFIX,
    SNIFFED_LINES,
    NvlinkStatus,
    Scrapes,
    holds_marks,
    is_kernel_log,
    take_fabric_line,
    take_journal,
    take_kernel,
    take_monitor_line,
)
from distprof.ingest.sensors.smi import (
    TITLE,
    SmiTables,
    SmiText,
    SmiXml,
    begins_query,
    begins_xml,
    date_of,
)
from distprof.ingest.sensors.tables import (
    AmdCsv,
    Dmon,
    QueryCsv,
    amd_header,
    dmon_header,
    has_sensors,
    header_of,
    is_headless,
    take_amd_json,
    take_printed_row,
)
from distprof.run.logs import DeviceLog

MAX_LINE_BYTES = 1 << 18
JSON_ENDINGS = (".json", ".json.gz")
MAX_JSON_BYTES = 1 << 26
_SNIFFED_JSON = 1 << 14
# Limit on uncompressed bytes: a small gzip file could otherwise take more than a day to read.
MAX_BYTES = 1 << 36
_SNIFFED_LINES = 20_000
_SNIFFED_CHARACTERS = 500
_MOST_BEFORE = 10_000
_MAX_HOSTS = 4_096
_BLOCK_BYTES = 1 << 20
EXPECTED = (
    "GPU sensors or errors: nvidia-smi, its -q and -q -x, its --query-gpu as csv, its dmon, "
    "amd-smi or rocm-smi as csv or json, dcgmi dmon, metrics of dcgm-exporter, the SuperBench "
    "monitor, nvidia-smi nvlink --status, a kernel log (dmesg -T, journalctl -k) or a fabric "
    "manager log"
)


def read_file(path: str, shown: str) -> DeviceLog:
    """Read one file, up to damage if there is any."""
    collector = Collector(shown, _written_ns(path))
    dispatcher = _Dispatcher(collector)
    try:
        if path.lower().endswith(JSON_ENDINGS) and _read_amd_json(path, collector):
            return collector.result()
        with opened(path, keeps_labels=True) as stream:
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


def _read_amd_json(path: str, collector: Collector) -> bool:
    """Read JSON of AMD's tools; False if the file is something else."""
    with opened(path, keeps_labels=True) as stream:
        start = stream.read(_SNIFFED_JSON).decode("utf-8", "replace")
        if not is_amd_json(start):
            return False
        data = start.encode() + stream.read(MAX_JSON_BYTES + 1)
        text = within(data, min(MAX_JSON_BYTES, MAX_BYTES), path).decode("utf-8", "replace")
    collector.num_lines = text.count("\n") + 1
    take_amd_json(text, collector)
    return True


def _written_ns(path: str) -> int | None:
    """When an uncompressed local file was last written, usually with its last sample."""
    if "://" in path or path.lower().endswith(".gz"):
        return None
    try:
        return Path(expanded(path)).stat().st_mtime_ns
    except OSError:
        return None


class _HeadlessError(Exception):
    """Rows came before any header."""


class _Dispatcher:
    """Passes each line to its reader; each host has separate readers."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._hosts: dict[str, _Host] = {"": _Host(collector, "")}
        self._open = self._hosts[""]
        self._last = ["", ""]
        self._heading = ""
        self.beginning = ""  # first lines, which identify a kernel log

    def take(self, line: str) -> None:
        if self._collector.num_lines <= SNIFFED_LINES:
            self.beginning += f"{line[:_SNIFFED_CHARACTERS]}\n"
        if self._open.take_row(line):  # by far the most lines
            return
        if line[:1] == "{" and JOURNAL in line:
            take_journal(line, self._collector)
        elif holds_marks(line):
            take_kernel(line, self._collector)
        else:
            self._dispatch(line)

    def _dispatch(self, line: str) -> None:
        label = LABEL.match(line)
        if label is not None:
            # a host name is one after which a table has begun
            name, rest = label[1], line[label.end() :]
            if name in self._hosts or (_begins_table(rest) and len(self._hosts) <= _MAX_HOSTS):
                self._host(name).take(rest)
                return
        if not self._is_heading(line):
            self._open.take(line)

    def _is_heading(self, line: str) -> bool:
        """Whether a line is a heading of dshbak, ansible or a script above a host's output."""
        before, name = self._last
        self._last = [name, line]
        marked = MARKER.fullmatch(line)
        if RULE.fullmatch(line) and RULE.fullmatch(before) and NAME.fullmatch(name):
            self._open = self._host(name)
        elif marked is not None:
            self._open = self._host(marked[1])
        else:
            if begins_query(line) or begins_xml(line):
                host = host_named(self._heading)
                self._open = self._host(host) if host else self._open
            self._heading = line if line.strip("=#*- \t") else self._heading
            return False
        return True

    def _host(self, name: str) -> _Host:
        shown = f"task {name}" if name.isdecimal() else name
        return self._hosts.setdefault(name, _Host(self._collector, shown))

    def close(self) -> None:
        for host in self._hosts.values():
            host.close()


class _Host:
    """Readers of the lines of one host."""

    def __init__(self, collector: Collector, name: str) -> None:
        collector = replace(collector, host=name) if name else collector
        self._collector = collector
        self._table: QueryCsv | Dmon | AmdCsv | None = None
        self._scrapes = Scrapes(collector)
        self._links = NvlinkStatus(collector)
        self._tables = SmiTables(collector)
        self._text, self._xml = SmiText(collector), SmiXml(collector)
        self._num_rows = 0

    def take_row(self, line: str) -> bool:
        """Read a row of the current table; False if other readers must check the line."""
        if not (line[:1].isdigit() and isinstance(self._table, QueryCsv)) or holds_marks(line):
            return False
        self._num_rows += 1
        self._table.take(line)
        return True

    def take(self, line: str) -> None:
        first = line[:1]
        if self._xml.take(line) or self._text.take(line) or self.take_row(line):
            return
        if first == "#":
            names = dmon_header(line)
            if names is not None:
                if not (isinstance(self._table, Dmon) and self._table.fits(names)):
                    self._table = Dmon(names, self._collector)
            elif line.startswith(("##", "# gpu", "#gpu")):  # a section ends; the header of a table
                self._links.close()
                self._table = None
            else:
                self._scrapes.comment(line)
        elif line.startswith(PREFIX):
            self._scrapes.take(line)
        elif first == "{" and MARK in line:
            take_monitor_line(line, self._collector)
        elif first == "[" and FABRIC.match(line):
            take_fabric_line(line, self._collector)
        elif not (self._links.take(line) or self._tables.take(line)):
            self._row(line)

    def close(self) -> None:
        self._scrapes.close()
        self._links.close()
        self._text.close()
        self._xml.close()

    def _row(self, line: str) -> None:
        if not line.strip() or take_printed_row(line, self._collector):
            return
        if "," in line:
            names, of_amd = header_of(line), amd_header(line)
            if of_amd is not None:
                self._table = AmdCsv(of_amd, self._collector)
                return
            if names is not None:
                self._table = QueryCsv(names, self._collector)
                return
            if self._table is None and self._num_rows == 0 and is_headless(line):
                raise _HeadlessError
        if self._table is not None:
            self._num_rows += 1
            self._table.take(line)


def _begins_table(line: str) -> bool:
    """Whether a line is the first of a table, a scrape or the tables of nvidia-smi."""
    begins = line.startswith((TITLE, PREFIX, f"# HELP {PREFIX}"))
    if begins or begins_query(line) or begins_xml(line):
        return True
    if line.startswith("#"):
        return dmon_header(line) is not None
    return "," in line and (header_of(line) is not None or amd_header(line) is not None)


def _lines(stream: BinaryIO, collector: Collector) -> Iterator[str]:
    """Lines as text, in bounded memory; long lines are cut."""
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
    """``samples``, ``errors`` or nothing, from the beginning of a file."""
    text = start.decode("utf-8", "replace")
    kernel = "NVRM: Xid" in text or "RmInitAdapter failed" not in text
    if kernel and ("NVRM: " in text or is_kernel_log(text)):
        return "errors"
    if _begins_with_tables(text):
        return "samples"
    is_first = True
    for line in text.split("\n", _SNIFFED_LINES)[:_SNIFFED_LINES]:
        kind = _kind(line.rstrip("\r"), is_first=is_first)
        if kind:
            return kind
        is_first = is_first and not line.strip()
    return ""


def _begins_with_tables(text: str) -> bool:
    """Whether only hosts, dates and rules precede a table: after other text, it may be in a log."""
    for line in text.split("\n", _MOST_BEFORE)[:_MOST_BEFORE]:
        label = LABEL.match(line)
        rest = (line if label is None else line[label.end() :]).strip()
        begins = rest.startswith((TITLE, "<!DOCTYPE nvidia_smi_log", "<nvidia_smi_log"))
        if begins or begins_query(rest):
            return True
        is_drawn = rest[:1] in ("", "+", "|") or not rest.strip("=#*- ")
        is_word = RULE.fullmatch(rest) or NAME.fullmatch(rest) or rest.startswith("<?xml")
        if not (is_drawn or is_word or date_of(rest) or MARKER.fullmatch(rest) or host_named(rest)):
            return False
    return False


_TABLES = re.compile(
    rb"\| NVIDIA-SMI |\| {0,3}\d{1,3}'C, {0,3}\d{1,3} %"
    rb"|\dMiB \|  {0,6}\d{1,3}%  {0,9}(?:Default|E\. Process)"
)
_REASONS = re.compile(rb"\n *Clocks (?:Throttle|Event) Reasons\s")
_IN_A_POST = re.compile(rb"(?:nvidia-smi -q[^\n]{0,80}|```\w{0,9})\s{1,40}=+NVSMI LOG=+\s")


def holds_tables(start: bytes) -> bool:
    """Whether a text holds a table of nvidia-smi, rocm-smi or gpustat, or a part of one."""
    is_cut_out = b"NVSMI LOG" not in start and _REASONS.search(start)
    is_part = is_cut_out or _IN_A_POST.search(start) or _TABLES.search(start)
    return bool(is_part or (b"SCLK" in start and b"GPU%" in start))


def _kind(line: str, *, is_first: bool) -> str:
    label = LABEL.match(line)
    if label is not None and _begins_table(line[label.end() :]):
        line = line[label.end() :]
        if begins_query(line) or begins_xml(line):
            return "samples"
    if FABRIC.match(line):
        return "errors"
    if (
        line.startswith((PREFIX, f"# HELP {PREFIX}"))
        or (line.startswith("{") and MARK in line and ':0"' in line)
        or (line.startswith("#") and dmon_header(line))
        or (line.lstrip().startswith("Link ") and line.rstrip().endswith(("GB/s", "active>")))
        or ("," in line and amd_header(line) is not None)
    ):
        return "samples"
    names = header_of(line) if "," in line else None
    if names is not None:
        return "samples" if has_sensors(names) else ""
    return "samples" if is_first and "," in line and is_headless(line) else ""
