"""A plan as text, Markdown and JSON."""

from __future__ import annotations

from distprof.planning.result import Plan
from distprof.report.page import Page, page_reporters
from distprof.report.plan_view import headline, plan_tables, reasons, verdict
from distprof.report.registry import RenderOptions

__all__ = ["PLAN_REPORTERS"]


def _page(plan: Plan, options: RenderOptions) -> Page:
    return Page(
        verdict=verdict(plan),
        headline=headline(plan),
        sentences=tuple(reasons(plan)),
        tables=tuple(plan_tables(plan, show_all=options.show_all)),
        remarks=plan.assumptions,
        remarks_title="Assumed",
    )


PLAN_REPORTERS = page_reporters(_page)
"""Name of a format to what writes a plan in it."""
