"""Recognise a source: a document of distprof, a folder of runs, or a recording of another tool.

A log or table that distprof reads is recognised by its module in :mod:`distprof.ingest.kinds`.
Recordings of other tools that people try are named in the error, with what to do instead. Only the
first bytes of a file are read.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from enum import Enum, auto
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from distprof.artefacts import REPORT_FILE, REPORT_SCHEMA, RUN_FILE
from distprof.artefacts.summary_file import SUMMARY_SCHEMA
from distprof.bounds import open_plain, table_beside
from distprof.errors import InputError, OtherVerbError, StatementError
from distprof.escape import plain
from distprof.ingest.files import beginning, walked
from distprof.units import few_names

_START_BYTES = 400


class Kind(Enum):
    """The kind of a source."""

    REPORT = auto()
    """A saved report."""
    SUMMARIES = auto()
    """A file of summaries, one or a list."""
    RECORDING = auto()
    """Anything that :func:`distprof.open_run` may read: a run directory, traces, a log, a URL."""


def kind_of(source: str) -> Kind:
    """The kind of a path, glob or URL, by its first bytes; never raises."""
    try:
        with open_plain(source) as stream:
            head = stream.read(_START_BYTES)
    except (OSError, ValueError):
        return Kind.RECORDING
    for schema, kind in ((REPORT_SCHEMA, Kind.REPORT), (SUMMARY_SCHEMA, Kind.SUMMARIES)):
        if f'"{schema}"'.encode() in head:
            return kind
    return Kind.RECORDING


def runs_inside(source: str) -> Sequence[Path]:
    """Run directories, by name, in a folder that is not a run directory itself."""
    path = Path(source)
    try:
        if not path.is_dir() or (path / RUN_FILE).exists():
            return []
        return [inner for inner in sorted(path.iterdir()) if (inner / RUN_FILE).is_file()]
    except OSError:
        return []


def fresh_report_in(source: str) -> Path | None:
    """The report in a run directory, if it was written after the run ended."""
    report, run = Path(source) / REPORT_FILE, Path(source) / RUN_FILE
    try:
        is_fresh = report.is_file() and report.stat().st_mtime_ns >= run.stat().st_mtime_ns
    except (OSError, ValueError):
        return None
    return report if is_fresh else None


_HEAD_BYTES, _TAIL_BYTES, _MOST_BYTES = 1 << 14, 1 << 12, 1 << 18
_MAX_ENTRIES = 1_000

# Bytes near the beginning of a torch.profiler trace that no other format has.
_OWN = b'"traceEvents"'
_EXPECTED = "a torch.profiler trace (*.json or *.json.gz)"
_RECORD = "record the job with torch.profiler, or with distprof capture -- COMMAND"


class Foreign(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A format that distprof does not read: one row of ``foreign.toml``, which explains fields."""

    name: str
    endings: tuple[str, ...] = ()
    begins: tuple[str, ...] = ()
    holds: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    shows: str = ""
    each: str = ""
    fix: str = "{record}"

    def is_of(self, name: str, head: bytes) -> bool:
        """Whether a file is of this format; its name is in lower case without ``.gz``."""
        if not self.shown(head):
            return False
        if self.endings and name.endswith(self.endings):
            return True
        if not (self.begins or self.holds or self.shows):
            return False
        fits = not self.begins or head.startswith(tuple(map(_bytes, self.begins)))
        held = all(_bytes(part) in head for part in self.holds)
        return fits and held and not any(_bytes(part) in head for part in self.lacks)

    def shown(self, head: bytes) -> str:
        """The name with what the file shows; empty if it shows nothing of the kind."""
        if not self.shows:
            return self.name
        found = re.finditer(self.shows, head.decode("utf-8", "replace"))
        said = self.each or self.name
        told = (plain(said.format_map(one.groupdict(""))).strip() for one in found)
        named = [*{one.lower(): one for one in told}.values()]
        if not self.each or not named:
            return "; ".join(named[:_MOST_NAMED])
        return self.name.format(each=few_names(named, _MOST_LISTED))


def _bytes(text: str) -> bytes:
    """Bytes as the table spells them: a character is a byte, but beyond those it is UTF-8."""
    return text.encode("latin-1" if max(text) <= "\xff" else "utf-8")


@cache
def _known(table: str) -> tuple[Foreign, ...]:
    rows = table_beside(__package__, "foreign.toml")[table]
    return msgspec.convert(rows, tuple[Foreign, ...])


def foreign_format(name: str, head: bytes = b"", table: str = "foreign") -> Foreign | None:
    """The format of a file that distprof does not read; None if the file is none of these."""
    if _OWN in head:
        return None
    small = name.lower().removesuffix(".gz")
    return next((known for known in _known(table) if known.is_of(small, head)), None)


def refuse_foreign(path: Path) -> None:
    """Refuse a file of another tool, or a folder that holds such files."""
    for file in _files(path):
        _refuse_known(path, file)
    if path.is_file():
        _refuse_text(path)


def _refuse_known(path: Path, file: Path, table: str = "foreign") -> None:
    foreign = foreign_format(file.name, head := _head(file), table)
    if foreign is not None:
        is_read = foreign.fix.startswith(("distprof fabric ", "distprof hang "))
        is_shown = foreign.shows and not is_read
        raise (OtherVerbError if is_read else StatementError if is_shown else InputError)(
            str(file),
            expected=_EXPECTED,
            found=foreign.shown(head),
            fix=foreign.fix.format(path=shlex.quote(str(path)), record=_RECORD),
        )


_SOURCES = (".md", ".rst", ".py", ".sh", ".toml", ".yaml", ".yml", ".cfg")  # of a checkout
_JSON = re.compile(r"\s*(?:$|\{|\[\s*(?:[\[{\"\]]|$))")
_PRINTED = re.compile(r"[^\W\d_]{2}")


def _refuse_text(path: Path) -> None:
    """Refuse text that no reader of logs knows, and say what they know."""
    head = _head(path)
    is_whole = max(len(head), path.stat().st_size) < _HEAD_BYTES
    head = head.replace(b"\r", b"\n")  # bars of progress
    text = head[: head.rfind(b"\n") + 1 or None].decode("utf-8", "replace")
    lines = [line for line in text.splitlines() if line.strip()] or [""]
    first, last = lines[0], lines[-1]
    end = f" and ends with “{plain(last.strip())[:60]}”" if is_whole else ""
    said = f"begins with “{plain(first.strip())[:60]}”{end}"
    is_json = path.name.lower().removesuffix(".gz").endswith(".json")
    is_text = b"\0" not in head and text.count("\ufffd") * 20 <= len(text)
    if is_json or not is_text or _JSON.match(first) or not _PRINTED.search(text):
        return
    from distprof.ingest.fabric import holds_speeds

    if holds_speeds(text):
        raise OtherVerbError(
            str(path),
            expected=_EXPECTED,
            found="a table of bandwidths by size",
            fix=f"distprof fabric {shlex.quote(str(path))}",
        )
    _refuse_known(path, path, "told")
    unknown = table_beside(__package__, "foreign.toml")["unknown"]
    raise InputError(str(path), **{of: text.replace("SAID", said) for of, text in unknown.items()})


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files: list[Path] = []
    for folder, _, names in walked(path):
        files += [Path(folder, name) for name in names if not name.lower().endswith(_SOURCES)]
        if len(files) > _MAX_ENTRIES:
            break
    return files[:_MAX_ENTRIES]


def _head(file: Path) -> bytes:
    """The beginning of a file, and the end of a long one, where summaries are."""
    text = beginning(str(file), _MOST_BYTES) if file.is_file() else b""
    is_long = len(text) > _HEAD_BYTES
    return text[:_HEAD_BYTES] + b"\n" + text[-_TAIL_BYTES:] if is_long else text


# Chrome traces ------------------------------------------------------------------------------------

_TORCH_KEYS = {"schemaVersion", "deviceProperties", "distributedInfo", "baseTimeNanoseconds"}
_TORCH_KEYS |= {"traceName", "trace_id", "record_shapes", "with_stack", "cupti_version"}
_MOST_NAMED = 4
_MOST_LISTED = 12


def refuse_chrome_trace(path: str, keys: Mapping[str, Any], categories: Collection[str]) -> None:
    """Refuse a Chrome trace of another tool, by its top-level keys but ``traceEvents``."""
    if _TORCH_KEYS & keys.keys():
        return
    named = sorted(category[:40] for category in categories if category)[:_MOST_NAMED]
    kinds = f", with events of {', '.join(named)}" if named else ""
    found = f"a Chrome trace from {_tool(keys, categories)}{kinds}"
    raise InputError(path, expected=_EXPECTED, found=found, fix=_RECORD)


def _tool(keys: Mapping[str, Any], categories: Collection[str]) -> str:
    """The tool that wrote a Chrome trace, recognised by what only that tool writes."""
    metadata = keys.get("metadata")
    named = {*keys, *(metadata if isinstance(metadata, Mapping) else ())}
    tools = {
        "VizTracer": "viztracer_metadata" in keys or "FEE" in categories,
        "JAX, XLA or TensorFlow": "highres-ticks" in named,
        "TensorFlow": "Op" in categories,
        "Chrome or Perfetto": named & {"systemTraceEvents", "clock-domain", "trace-config"},
    }
    return next((tool for tool, is_shown in tools.items() if is_shown), "another tool")
