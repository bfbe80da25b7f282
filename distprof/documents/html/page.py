"""The page of a verb's result as one HTML file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distprof.documents.html.blocks import Part, bounded, bullets, drawn_table, sentence, slug
from distprof.documents.html.findings import anchors, finding_articles
from distprof.documents.html.markup import Markup, element, joined
from distprof.documents.html.shell import document
from distprof.documents.page import Page
from distprof.units import format_duration


def page_html(page: Page, figures: Sequence[Part] = ()) -> str:
    """The page as HTML, drawn from the same parts as its text and Markdown.

    Args:
        page: The page.
        figures: Parts that only HTML has. They come first.
    """
    header = [
        element("h1", bounded(page.verdict)),
        *([sentence(page.headline, class_="evidence")] if page.headline else []),
        *(sentence(fact) for fact in page.facts),
        bullets(page.sentences),
        bullets(page.points),
    ]
    return document(page.verdict, header, (*figures, *_parts(page)))


def _parts(page: Page) -> Iterator[Part]:
    for number, listing in enumerate(page.listings):
        content = bullets(listing.sentences, numbered=listing.is_numbered)
        anchor = f"{slug(listing.title)}-{number}"
        yield Part(anchor=anchor, title=listing.title, content=content)
    if page.findings:
        yield Part(anchor="findings", title="Findings", content=_findings(page))
    if page.tables:
        tables = joined(drawn_table(view, opened=True) for view in page.tables)
        yield Part(anchor="tables", title="Tables", content=tables)
    if page.remarks:
        title = page.remarks_title or "Remarks"
        yield Part(anchor="remarks", title=title, content=bullets(page.remarks))
    if page.commands:
        yield Part(anchor="next", title="Next", content=_commands(page))


def _findings(page: Page) -> Markup:
    return finding_articles(
        page.findings,
        anchors(page.findings),
        lambda one: (
            "–"
            if one.cost_ns_per_step is None
            else f"{format_duration(one.cost_ns_per_step)} per step"
        ),
    )


def _commands(page: Page) -> Markup:
    items = [
        element("li", element("code", command), f" — {purpose}")
        for command, purpose in page.commands
    ]
    return element("ul", *items)
