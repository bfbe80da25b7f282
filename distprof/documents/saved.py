"""The report as a document: ``report.json``, and the formats in which it is shown."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from distprof.artefacts import REPORT_FILE
from distprof.documents.document import Document
from distprof.escape import plain
from distprof.formats import RenderOptions
from distprof.sections import report as data

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from distprof.documents.ci import Cases
    from distprof.documents.page import Page


class Report(data.Report, frozen=True, kw_only=True):
    """One analysis: measurements, findings and what could not be checked."""

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the report as JSON, replacing what is there; InputError if that fails."""
        return REPORT.save(self, path)

    def metrics(self) -> dict[str, float]:
        """The report as a flat dictionary of numbers, for training loggers.

        Names are stable and end in their unit: docs/reference/metrics.md lists them. Unknown
        metrics are left out and never 0.
        """
        from distprof.sections.metrics import metrics_of

        return metrics_of(self)

    def __str__(self) -> str:
        """The report as text, 100 columns wide."""
        return REPORT.reporter("text")(self, RenderOptions(width=100))

    def __repr__(self) -> str:
        """One line: a report may hold thousands of rows."""
        from distprof.sections.shows import judge

        return f"<Report on {self.run.source!r}: {plain(judge(self).headline)}>"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Verdict, reasons and findings, as a console shows them."""
        from distprof.documents.notebook import console_blocks

        yield from console_blocks(self, options.max_width)

    def _repr_html_(self) -> str:
        """Verdict and findings, as a notebook shows them."""
        from distprof.documents.notebook import report_html

        return report_html(self)


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
    from distprof.documents.ci import report_cases

    return report_cases(report, options)


REPORT = Document(
    kind=Report,
    noun="a report",
    fix="make it again with: distprof analyze SOURCE --save-report FILE",
    fix_foreign="if it is a trace, pass it to distprof analyze",
    page=_page,
    terminal_pages=_terminal_pages,
    cases=_cases,
    formats={"html": _html},
    indent=1,
)


def load_report(path: str | os.PathLike[str]) -> Report:
    """Read a saved report: a ``report.json``, or that of a run directory.

    Raises:
        InputError: If the file cannot be read.
        SchemaError: If it is not a report of the version that this program reads.
    """
    file = Path(path)
    return REPORT.load(file / REPORT_FILE if file.is_dir() else file)
