"""The report as a document: ``report.json``, and the formats in which it is shown."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from distprof.artefacts import REPORT_FILE, REPORT_SCHEMA
from distprof.documents.document import Document
from distprof.formats import RenderOptions
from distprof.sections.report import Report

if TYPE_CHECKING:
    from distprof.documents.ci.cases import Cases
    from distprof.documents.page import Page


def _page(report: Report, options: RenderOptions) -> Page:
    from distprof.documents.report import page_of

    return page_of(report, options)


def _terminal_pages(report: Report, options: RenderOptions) -> Iterator[Page]:
    from distprof.documents.report import terminal_pages

    return terminal_pages(report, options)


def _html(report: Report, options: RenderOptions) -> str:
    from distprof.documents.html.report import report_html

    return report_html(report, options)


def _cases(report: Report, options: RenderOptions) -> Cases:
    from distprof.documents.ci.cases import report_cases

    return report_cases(report, options)


REPORT = Document(
    kind=Report,
    schema=REPORT_SCHEMA,
    noun="a report",
    title="distprof report",
    fix="make it again with: distprof analyze SOURCE --save-report FILE",
    fix_foreign="if it is a trace, pass it to distprof analyze",
    page=_page,
    terminal_pages=_terminal_pages,
    cases=_cases,
    formats={"html": _html},
    indent=1,
    about=f"""\
# The saved report

<!-- generated: python -m docs.build --write -->

`report.json` has `"schema": "{REPORT_SCHEMA}"`. Its JSON Schema (draft 2020-12) ships with the
package as `distprof/documents/schemas/report.schema.json`. Every field is always written. `null`
means unknown and is never 0. Fields ending in `_ns` are integer nanoseconds, `bytes` are bytes
(shown with decimal prefixes), and `_ratio` is 0 to 1. If the meaning of a field changes, the number
of the schema changes.
""",
)


def load_report(path: str | os.PathLike[str]) -> Report:
    """Read a saved report.

    Args:
        path: A ``report.json``, or a run directory that holds one.

    Raises:
        InputError: If the file cannot be read.
        SchemaError: If it is not a report of the version that this program reads.
    """
    file = Path(path)
    return REPORT.load(file / REPORT_FILE if file.is_dir() else file)


def save_report(report: Report, path: str | os.PathLike[str]) -> Path:
    """Write the report as JSON, replacing an existing file, and return the path.

    Raises:
        InputError: If the file cannot be written.
    """
    return REPORT.save(report, path)
