"""A report as a notebook shows it: verdict, the parts of a step, findings."""

from __future__ import annotations

from distprof.documents.advice import cost_text
from distprof.documents.html.blocks import grid
from distprof.documents.html.markup import Markup, element
from distprof.sections.capture.show import headline
from distprof.sections.report import Report
from distprof.sections.table import Column
from distprof.sections.time.show import waterfall_table
from distprof.sections.verdict import judge

__all__ = ["notebook_html"]


def notebook_html(report: Report) -> str:
    """Small HTML without style or script of its own; every text is escaped."""
    verdict = judge(report)
    parts = [element("p", element("b", verdict.line)), element("p", headline(report))]
    view = waterfall_table(report, show_all=False)
    if view is not None:
        rows = [[cell for cell in row if isinstance(cell, str)][:3] for row in view.rows]
        parts.append(_table(["part", "time", "share"], rows))
    if report.findings:
        rows = [[f.code, f.name, cost_text(f, report), f.message, f.fix] for f in report.findings]
        parts.append(_table(["code", "finding", "cost", "what", "fix"], rows))
    return "\n".join(parts)


def _table(titles: list[str], rows: list[list[str]]) -> Markup:
    return grid([Column(title, left=True) for title in titles], rows)
