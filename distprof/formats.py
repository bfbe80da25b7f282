"""Reporters by name: those of distprof, and those of other packages.

A reporter is a function ``(Report, RenderOptions) -> str``. Other packages add reporters through
the entry-point group ``distprof.reporters``; their names become choices of ``--format``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from distprof.errors import UsageError
from distprof.installed import plugins
from distprof.terms import CI_FORMATS, PAGE_FORMATS

if TYPE_CHECKING:
    from distprof.sections.report import Report

FINDINGS = "findings"
"""Name of all findings as a section."""

ENTRY_POINT_GROUP = "distprof.reporters"
_BUILT_IN = (*PAGE_FORMATS, *CI_FORMATS)
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


def reporter_names() -> tuple[str, ...]:
    """Names that ``--format`` accepts, built-in formats first."""
    others = sorted({plugin.name for plugin in plugins(ENTRY_POINT_GROUP)})
    return (*_BUILT_IN, *(name for name in others if name not in _BUILT_IN))


def is_reporter(name: str) -> bool:
    """Whether ``--format`` accepts a name. Plug-ins are searched only if it is not built in."""
    return name in _BUILT_IN or name in reporter_names()


def check_reporter(name: str | None) -> None:
    """Reject an unknown format before a job starts: a UsageError that lists the available ones."""
    if name is not None and not is_reporter(name):
        raise UsageError(f"no format {name!r}: choose from {', '.join(reporter_names())}")


def find_reporter(name: str) -> Reporter:
    """The reporter called ``name``; built-in reporters take precedence.

    Raises:
        UsageError: If the name is unknown, or the reporter cannot be imported.
    """
    found: Any
    if name in _BUILT_IN:  # by name: what runs in a training process must not import the documents
        found = import_module("distprof.documents.saved").REPORT.reporter(name)
        return found  # type: ignore[no-any-return]
    for plugin in plugins(ENTRY_POINT_GROUP):
        if plugin.name == name:
            try:
                found = plugin.load()
            except (ImportError, AttributeError) as error:
                raise UsageError(f"the format {name!r} cannot be loaded: {error}") from error
            return found  # type: ignore[no-any-return]
    raise UsageError(f"no format {name!r}: choose from {', '.join(reporter_names())}")


def format_of_file(name: str) -> str | None:
    """The format for the extension of a file name; None if no format has it."""
    dot = name.rfind(".")
    return _SUFFIXES.get(name[dot:].lower()) if dot >= 0 else None


def endings() -> tuple[str, ...]:
    """File extensions that select a format."""
    return tuple(_SUFFIXES)
