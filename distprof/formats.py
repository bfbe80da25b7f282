"""Reporters by name. A reporter is a function ``(Report, RenderOptions) -> str``."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from distprof.errors import UsageError
from distprof.terms import FORMATS

if TYPE_CHECKING:
    from distprof.sections.report import Report

FINDINGS = "findings"
"""Name of all findings as a section."""

_SUFFIXES = {
    ".json": "json",
    ".md": "md",
    ".markdown": "md",
    ".html": "html",
    ".htm": "html",
    ".txt": "text",
    ".xml": "junit",
    ".sarif": "sarif",
}


class RenderOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to show a report."""

    width: int = 100  # Columns of the terminal.
    color: bool = False  # Whether to use colour and font weight.
    # Whether text has every section, instead of only the verdict, the plan and fixes.
    full: bool = False
    # Whether to show every finding, rank, class and kernel instead of the first few; implies
    # ``full``.
    show_all: bool = False
    sections: tuple[str, ...] = ()  # Names of the sections to show; empty for all.
    # Path of the report's JSON, for the next command; empty if it was not saved.
    saved_as: str = ""
    # Lowest severity of a finding that fails a job, for formats that report this; empty for
    # warnings.
    fail_on: str = ""


Reporter: TypeAlias = "Callable[[Report, RenderOptions], str]"


def check_reporter(name: str | None) -> None:
    """Reject an unknown format before a job starts: a UsageError that lists the available ones."""
    if name is not None and name not in FORMATS:
        raise UsageError(f"no format {name!r}: choose from {', '.join(FORMATS)}")


def find_reporter(name: str) -> Reporter:
    """The reporter called ``name``; UsageError if there is none."""
    check_reporter(name)
    # by name: what runs in a training process must not import the documents
    found: Reporter = import_module("distprof.documents.saved").REPORT.reporter(name)
    return found


def format_of_file(name: str) -> str | None:
    """The format for the extension of a file name; None if no format has it."""
    dot = name.rfind(".")
    return _SUFFIXES.get(name[dot:].lower()) if dot >= 0 else None


def endings() -> tuple[str, ...]:
    """File extensions that select a format."""
    return tuple(_SUFFIXES)
