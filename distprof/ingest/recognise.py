"""Recognise a source: a document of distprof, a folder of runs, or another recording.

This module recognises what distprof itself writes. A log or table of another tool is recognised by
its module in :mod:`distprof.ingest.kinds` (:func:`distprof.ingest.source.open_source`). Only the
first bytes of a file are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from pathlib import Path

from distprof.artefacts import REPORT_FILE, REPORT_SCHEMA, RUN_FILE
from distprof.artefacts.summary_file import SUMMARY_SCHEMA
from distprof.bounds import open_plain

_HEAD_BYTES = 400


class Kind(Enum):
    """The kind of a source."""

    REPORT = auto()
    """A saved report."""
    SUMMARIES = auto()
    """A file of summaries, one or a list."""
    RECORDING = auto()
    """Anything that :func:`distprof.open_run` may read: a run directory, traces, a log, a URL."""


def kind_of(source: str) -> Kind:
    """The kind of a path, glob or URL, by its first bytes; never raises: the reader reports errors.

    Only a local file can be a document of distprof.
    """
    head = _head_of(Path(source))
    for schema, kind in ((REPORT_SCHEMA, Kind.REPORT), (SUMMARY_SCHEMA, Kind.SUMMARIES)):
        if f'"{schema}"'.encode() in head:
            return kind
    return Kind.RECORDING


def _head_of(path: Path) -> bytes:
    try:
        with open_plain(path) as stream:
            return stream.read(_HEAD_BYTES)
    except (OSError, ValueError):
        return b""


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
