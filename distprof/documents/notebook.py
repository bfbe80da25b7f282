"""Results in a notebook: the content of their pages, as HTML without a script."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from distprof.documents.document import document_of
from distprof.documents.html.blocks import (
    EMPTY,
    bounded,
    bullets,
    drawn_table,
    element,
    joined,
    untouched,
)
from distprof.documents.html.findings import remark_articles
from distprof.documents.html.page import answer, evidence, figures_of, hatchings, parts_style
from distprof.documents.html.subjects import stragglers_figure
from distprof.documents.page import Page
from distprof.documents.report import head_of
from distprof.escape import plain
from distprof.formats import RenderOptions
from distprof.sections.parts import window_word
from distprof.sections.report import Report
from distprof.sections.time.show import waterfall_table

if TYPE_CHECKING:
    from rich.console import RenderableType

_THEMES = """\
.distprof { color-scheme: light; }
:is([data-jp-theme-light="false"], .vscode-dark, .vscode-high-contrast, [theme="dark"]) .distprof {
  color-scheme: dark;
}
"""
"""JupyterLab, VS Code and Colab have their own dark themes. The default is light."""
_BACKGROUND = ":scope { background: var(--bg); color: var(--fg); padding: .25rem .5rem; }\n"


def report_html(report: Report) -> str:
    """The verdict, what to do, the step as a bar, the parts of the step and stragglers."""
    view = waterfall_table(report, show_all=False)
    page = replace(head_of(report, RenderOptions()), cautions=(), sentences=())
    return _shown(
        page,
        drawn_table(view, opened=True) if view is not None else EMPTY,
        stragglers_figure(report.stragglers, window_word(report)),
    )


def result_html(result: Any) -> str:
    """The verdict of a verb's result, its figures, findings, and folded tables."""
    figures = (joined((element("h3", part.title), part.content)) for part in figures_of(result))
    return _shown(_page(result), *figures)


def console_blocks(report: Report, width: int) -> Iterator[RenderableType]:
    """Verdict, reasons and findings, for a console of rich."""
    from distprof.documents.text import page_blocks

    options = RenderOptions(width=width)
    return page_blocks(replace(head_of(report, options), commands=()), options)


def one_line(result: Any) -> str:
    """The kind of a result and its verdict."""
    return f"<{type(result).__name__}: {plain(_page(result).verdict)}>"


def as_text(result: Any) -> str:
    """The page of a result as text, 100 columns wide."""
    write = document_of(type(result)).reporter("text")
    return write(result, RenderOptions(width=100))


def _page(result: Any) -> Page:
    return document_of(type(result)).page_of(result, RenderOptions())


def _shown(page: Page, *figures: str) -> str:
    """A page with the style of HTML files, scoped so that it affects nothing else around it."""
    inside = parts_style().replace(":root", ":scope").replace("color-scheme: light dark;", "")
    style = untouched(f"{_THEMES}@scope (.distprof) {{\n{inside}{_BACKGROUND}}}\n")
    return element(
        "div",
        element("style", style),
        hatchings(),
        element("p", element("b", bounded(page.verdict))),
        *evidence(page),
        *answer(page, is_page=False),
        *figures,
        *(
            part
            for each in page.listings
            for part in (
                element("h3", bounded(each.title)),
                bullets(each.sentences, numbered=each.is_numbered),
            )
        ),
        remark_articles(page.remarked, is_page=False),
        *(drawn_table(view) for view in page.tables),
        bullets(page.remarks),
        class_="distprof",
    )
