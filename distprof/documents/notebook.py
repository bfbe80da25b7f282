"""Results in a notebook: the content of their pages, as HTML without a script."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from distprof.documents.advice import cost_text
from distprof.documents.document import document_of
from distprof.documents.html.blocks import Part, bounded, bullets, drawn_table, grid, sentence
from distprof.documents.html.figures import figures_of
from distprof.documents.html.markup import EMPTY, Markup, element, joined, untouched
from distprof.documents.html.rows import plan_figure, step_figure
from distprof.documents.html.shell import hatchings, parts_style
from distprof.documents.html.subjects import stragglers_figure
from distprof.documents.page import Page
from distprof.escape import plain
from distprof.formats import RenderOptions
from distprof.rules.base import Finding
from distprof.sections.capture.show import headline
from distprof.sections.parts import window_word
from distprof.sections.report import Report
from distprof.sections.table import Column
from distprof.sections.time.show import waterfall_table
from distprof.sections.verdict import judge
from distprof.units import format_duration

_THEMES = """\
.distprof { color-scheme: light; }
:is([data-jp-theme-light="false"], .vscode-dark, .vscode-high-contrast, [theme="dark"]) .distprof {
  color-scheme: dark;
}
"""
"""JupyterLab, VS Code and Colab have their own dark themes. The default is light."""
_BACKGROUND = ":scope { background: var(--bg); color: var(--fg); padding: .25rem .5rem; }\n"


def notebook_html(report: Report) -> str:
    """The verdict, the step as a bar, the plan, the parts of the step, stragglers and findings."""
    view = waterfall_table(report, show_all=False)
    word = window_word(report)
    return _shown(
        element("p", element("b", bounded(judge(report).line))),
        sentence(headline(report), class_="evidence"),
        step_figure(report),
        plan_figure(report.plan, word),
        drawn_table(view, opened=True) if view is not None else EMPTY,
        stragglers_figure(report.stragglers, word),
        _findings(report.findings, [cost_text(one, report) for one in report.findings]),
    )


def result_html(result: msgspec.Struct) -> str:
    """The verdict of a verb's result, its figures, findings, and folded tables."""
    page = _page(result)
    costs = [_cost(one) for one in page.findings]
    return _shown(
        element("p", element("b", bounded(page.verdict))),
        sentence(page.headline, class_="evidence") if page.headline else EMPTY,
        *(sentence(fact) for fact in page.facts),
        bullets((*page.sentences, *page.points)),
        *_figures(figures_of(result)),
        *_listings(page),
        _findings(page.findings, costs),
        *(drawn_table(view) for view in page.tables),
        bullets(page.remarks),
    )


def one_line(result: msgspec.Struct) -> str:
    """The kind of a result and its verdict."""
    return f"<{type(result).__name__}: {plain(_page(result).verdict)}>"


def as_text(result: msgspec.Struct) -> str:
    """The page of a result as text, 100 columns wide."""
    write = document_of(type(result)).reporter("text")
    return write(result, RenderOptions(width=100))


def _page(result: msgspec.Struct) -> Page:
    make = document_of(type(result)).page
    assert make is not None  # a result that is displayed has a page
    return make(result, RenderOptions())


def _shown(*content: str) -> str:
    """Content with the style of pages, scoped so that it affects nothing else in the notebook."""
    inside = parts_style().replace(":root", ":scope").replace("color-scheme: light dark;", "")
    style = untouched(f"{_THEMES}@scope (.distprof) {{\n{inside}{_BACKGROUND}}}\n")
    return element("div", element("style", style), hatchings(), *content, class_="distprof")


def _figures(parts: Sequence[Part]) -> list[Markup]:
    return [joined((element("h3", part.title), part.content)) for part in parts]


def _listings(page: Page) -> list[Markup]:
    return [
        joined(
            (
                element("h3", bounded(listing.title)),
                bullets(listing.sentences, numbered=listing.is_numbered),
            )
        )
        for listing in page.listings
    ]


def _findings(findings: Sequence[Finding], costs: Sequence[str]) -> Markup:
    if not findings:
        return EMPTY
    rows = [
        (f.code, f.name, cost, f.message, f.fix) for f, cost in zip(findings, costs, strict=True)
    ]
    titles = ("code", "finding", "cost", "what", "fix")
    return grid([Column(title, left=True) for title in titles], rows)


def _cost(finding: Finding) -> str:
    cost = finding.cost_ns_per_step
    return "–" if cost is None else f"{format_duration(cost)} per step"
