"""From what a user names to summaries: reports, run directories, traces, saved summaries.

A run is analysed only where no report of it lies there; what is compared are its figures.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from distprof.artefacts import REPORT_FILE, REPORT_SCHEMA, RUN_FILE
from distprof.artefacts.summary_file import SUMMARY_SCHEMA, SummaryFile
from distprof.errors import DistprofError, InputError
from distprof.ingest.measurements import fits_measurements, read_measurements
from distprof.report.model import Report

__all__ = ["load_summaries", "open_report"]

_MAX_BYTES = 1 << 26  # of a file of summaries
_HEAD_BYTES = 400


def load_summaries(sources: Sequence[str | os.PathLike[str]]) -> tuple[SummaryFile, ...]:
    """One summary per run that the sources hold, in their order.

    Args:
        sources: Each a saved report, a run directory, a folder of run directories, a trace or
            folder of traces, a file of summaries (one, or a list), or a table of ranks and
            times (:mod:`distprof.ingest.measurements`).

    Raises:
        InputError: If a source cannot be read.
    """
    found: list[SummaryFile] = []
    for source in sources:
        found += _summaries_of(os.fspath(source))
    return tuple(found)


def open_report(source: str | os.PathLike[str]) -> Report:
    """The report of a run: the saved one where there is one, else made now.

    Args:
        source: A saved report, a run directory, or whatever :func:`distprof.analyze` takes.

    Raises:
        InputError: If it cannot be read.
    """
    from distprof.api import analyze
    from distprof.report.saved import load_report

    path = Path(source)
    if path.is_file() and _says(path, REPORT_SCHEMA):
        return load_report(path)
    if _has_fresh_report(path):
        try:
            return load_report(path)
        except DistprofError:  # of another version: the run itself is there
            return analyze(source)
    return analyze(source)


def _summaries_of(source: str) -> list[SummaryFile]:
    from distprof.report.summary import summarize_report

    path = Path(source)
    if path.is_file() and _says(path, SUMMARY_SCHEMA):
        return _read_summaries(path)
    if path.is_file() and fits_measurements(source):
        return list(read_measurements(source))
    return [summarize_report(open_report(run)) for run in _runs_inside(path) or [source]]


def _runs_inside(path: Path) -> Sequence[str | Path]:
    """Run directories in a folder that is none itself, by name."""
    try:
        if not path.is_dir() or (path / RUN_FILE).exists():
            return []
        return [inner for inner in sorted(path.iterdir()) if (inner / RUN_FILE).is_file()]
    except OSError:
        return []


def _has_fresh_report(path: Path) -> bool:
    """Whether a run directory holds a report that was made after the run had ended."""
    report, run = path / REPORT_FILE, path / RUN_FILE
    try:
        return report.is_file() and report.stat().st_mtime_ns >= run.stat().st_mtime_ns
    except (OSError, ValueError):
        return False


def _says(path: Path, schema: str) -> bool:
    try:
        with path.open("rb") as stream:
            return f'"{schema}"'.encode() in stream.read(_HEAD_BYTES)
    except (OSError, ValueError):
        return False


def _read_summaries(path: Path) -> list[SummaryFile]:
    expected = f'one or several summaries with "schema": "{SUMMARY_SCHEMA}"'
    fix = "make it again with: distprof scale --save-summaries FILE"
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise InputError(str(path), expected=expected, found="a file too large for that")
        data = json.loads(path.read_bytes())
        found = data if isinstance(data, list) else [data]
        read = msgspec.convert(found, list[SummaryFile])
    except (OSError, ValueError, msgspec.ValidationError, RecursionError) as error:
        raise InputError(str(path), expected=expected, found=str(error), fix=fix) from error
    other = next((one.schema for one in read if one.schema != SUMMARY_SCHEMA), None)
    if other is not None:
        raise InputError(str(path), expected=expected, found=f'"schema": "{other}"', fix=fix)
    return read
