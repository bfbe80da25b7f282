"""Two runs side by side, as text, Markdown and JSON."""

from __future__ import annotations

from distprof.analyzers.comparison.analysis import FoundProblem, Side, compare
from distprof.analyzers.comparison.result import Comparison
from distprof.report.comparison_view import (
    comparison_headline,
    comparison_sentences,
    comparison_tables,
    comparison_verdict,
)
from distprof.report.model import Report
from distprof.report.page import Page, page_reporters
from distprof.report.registry import RenderOptions
from distprof.report.summary import summarize_report
from distprof.version import __version__

__all__ = ["COMPARISON_REPORTERS", "compare_reports"]


def compare_reports(
    first: Report, second: Report, *, names: tuple[str, str] | None = None
) -> Comparison:
    """What changed from the first run to the second.

    Args:
        first: What is compared with.
        second: What is compared.
        names: How the user calls them; by default where they come from.
    """
    mine, theirs = names or (first.run.source, second.run.source)
    return compare(_side(first, mine), _side(second, theirs), version=__version__)


def _side(report: Report, name: str) -> Side:
    from msgspec.structs import replace

    return Side(
        summary=replace(summarize_report(report), source=name),
        kernels=report.kernels,
        num_windows=report.waterfall.num_ranks * report.waterfall.num_steps,
        collectives=report.collectives,
        problems=tuple(
            FoundProblem(found.code, found.name, found.cost_ns_per_step)
            for found in report.findings
        ),
    )


def _page(comparison: Comparison, options: RenderOptions) -> Page:
    return Page(
        verdict=comparison_verdict(comparison),
        headline=comparison_headline(comparison),
        sentences=tuple(comparison_sentences(comparison)),
        tables=tuple(comparison_tables(comparison, show_all=options.show_all)),
    )


COMPARISON_REPORTERS = page_reporters(_page)
"""Name of a format to what writes a comparison in it."""
