"""A page as one HTML file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distprof.documents.html.blocks import Part, bounded, bullets, drawn_table, sentence, slug
from distprof.documents.html.findings import finding_articles
from distprof.documents.html.markup import EMPTY, Markup, element, joined
from distprof.documents.html.rows import plan_figure, step_figure
from distprof.documents.html.shell import document
from distprof.documents.page import Page


def page_html(page: Page, figures: Sequence[Part] = (), to_do: Sequence[Markup] = ()) -> str:
    """The page as HTML, drawn from the same parts as its text and Markdown.

    Args:
        page: The page.
        figures: Parts that only HTML has. They come first.
        to_do: What to do first, at the end of the header.
    """
    header = [element("h1", bounded(page.verdict)), *basis(page), *to_do]
    return document(page.verdict, header, (*figures, *_parts(page)))


def basis(page: Page) -> Iterator[Markup]:
    """What the verdict rests on: headline, facts, step, plan, sentences."""
    yield sentence(page.headline, class_="evidence") if page.headline else EMPTY
    yield from (sentence(text) for text in (*page.facts, *page.cautions))
    yield step_figure(page.step) if page.step else EMPTY
    yield plan_figure(page.plan) if page.plan else EMPTY
    yield bullets(page.sentences)
    yield bullets(page.points)


def _parts(page: Page) -> Iterator[Part]:
    for number, listing in enumerate(page.listings):
        content = bullets(listing.sentences, numbered=listing.is_numbered)
        anchor = f"{slug(listing.title)}-{number}"
        yield Part(anchor=anchor, title=listing.title, content=content)
    if page.findings is not None:
        content = finding_articles(page.findings.listed)
        yield Part(anchor="findings", title="Findings", content=content)
    if page.tables:
        is_folded = page.has_folded_tables
        tables = joined(drawn_table(view, opened=not is_folded) for view in page.tables)
        title = "More tables" if is_folded else "Tables"
        yield Part(anchor="tables", title=title, content=tables)
    if page.remarks:
        title = page.remarks_title or "Remarks"
        yield Part(anchor="remarks", title=title, content=bullets(page.remarks))
    if page.about:
        about = joined(sentence(text) for text in page.about)
        yield Part(anchor="about", title="About this file", content=about)
    if page.commands:
        yield Part(anchor="next", title="Next", content=_commands(page))


def _commands(page: Page) -> Markup:
    items = [
        element("li", element("code", command), f" — {purpose}")
        for command, purpose in page.commands
    ]
    return element("ul", *items)
