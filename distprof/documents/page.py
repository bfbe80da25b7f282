"""The page of any result other than a run's report, and its rendering as text and Markdown.

A verb turns its result into a :class:`Page`; the rendering is implemented here, once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from distprof.formats import RenderOptions
from distprof.rules.base import Finding
from distprof.sections.table import TableView
from distprof.units import format_duration


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """Sentences under a separate title."""

    title: str  # For example ``Next``.
    sentences: tuple[str, ...]  # In reading order.
    is_numbered: bool = False  # Whether they are steps to take in order.


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One result for people."""

    verdict: str  # The result in one sentence.
    headline: str = ""  # The origin of the result, half a sentence; empty for none.
    facts: tuple[str, ...] = ()  # Additions to the headline, one paragraph each.
    sentences: tuple[str, ...] = ()  # Further results, most important first.
    points: tuple[str, ...] = ()  # Like ``sentences``, but each in a separate block.
    listings: tuple[Listing, ...] = ()  # Sentences under titles.
    findings: tuple[Finding, ...] = ()  # Findings of rules, most important first.
    tables: tuple[TableView, ...] = ()  # In reading order.
    has_captions: bool = True  # Whether Markdown also shows the captions of tables.
    remarks: tuple[str, ...] = ()  # Sentences at the end.
    remarks_title: str = ""  # Title of the remarks, for example ``Assumed``; empty for none.
    commands: tuple[tuple[str, str], ...] = ()  # Commands to run next, each with its purpose.


def page_text(page: Page, options: RenderOptions) -> str:
    """The page as text for a terminal of ``options.width`` columns."""
    from distprof.documents.text import printed

    return printed(_text_blocks(page, options.width), options)


def page_markdown(page: Page, options: RenderOptions) -> str:
    """The page as GitHub-flavoured Markdown, of bounded length unless ``show_all`` is set."""
    from distprof.documents.markdown import joined

    return joined(_markdown_blocks(page), show_all=options.show_all)


def _text_blocks(page: Page, width: int) -> Iterator[Any]:
    from rich.text import Text

    from distprof.documents.text import command_line, sentence, table_blocks
    from distprof.escape import plain, wrapped

    yield Text(wrapped(plain(page.verdict), width), style="bold")
    if page.headline or page.sentences:
        yield Text()
    for text in (page.headline, *page.facts) if page.headline else page.facts:
        yield sentence(text, width, style="dim")
    for text in page.sentences:
        yield sentence(text, width)
    for text in page.points:
        yield Text()
        yield sentence(text, width)
    for listing in page.listings:
        yield Text()
        yield Text(listing.title, style="bold")
        for number, text in enumerate(listing.sentences, 1):
            mark = f"{number}. " if listing.is_numbered else "· "
            yield sentence(f"{mark}{text}", width)
    for finding in page.findings:
        yield Text()
        yield Text(wrapped(plain(_title(finding)), width), style="bold")
        yield sentence(finding.message, width)
        yield sentence(f"fix: {finding.fix}", width)
    for view in page.tables:
        yield Text()
        yield from table_blocks(view, width)
    if page.remarks and page.remarks_title:
        yield Text()
        yield Text(page.remarks_title, style="bold")
    for remark in page.remarks:
        yield sentence(f"· {remark}", width, style="dim")
    if page.commands:
        yield Text()
        yield Text("Next", style="bold")
    for command, purpose in page.commands:
        yield command_line(command, purpose, width)


def _markdown_blocks(page: Page) -> Iterator[str]:
    from distprof.documents.markdown import linked, sentence, table

    yield f"### {sentence(page.verdict)}"
    if page.headline:
        yield sentence(page.headline)
    yield from (sentence(text) for text in page.facts)
    for texts in (page.sentences, page.points):
        if texts:
            yield _bullets(texts)
    for listing in page.listings:
        yield f"**{sentence(listing.title)}**\n\n{_bullets(listing.sentences)}"
    if page.findings:
        yield "\n".join(
            f"- **{linked(sentence(_title(one)), one)}**: {sentence(one.message)}"
            f" *fix:* {sentence(one.fix)}"
            for one in page.findings
        )
    for view in page.tables:
        caption = f" {sentence(view.caption)}" if view.caption and page.has_captions else ""
        notes = "".join(f"\n\n{sentence(note)}" for note in view.notes)
        yield f"**{sentence(view.title)}**{caption}\n\n{table(view)}{notes}"
    if page.remarks:
        title = f"**{sentence(page.remarks_title)}**\n\n" if page.remarks_title else ""
        yield title + _bullets(page.remarks)


def _bullets(texts: tuple[str, ...]) -> str:
    from distprof.documents.markdown import sentence

    return "\n".join(f"- {sentence(text)}" for text in texts)


def _title(finding: Finding) -> str:
    cost = finding.cost_ns_per_step
    costs = f", {format_duration(cost)} per step" if cost is not None else ""
    return f"{finding.code} {finding.name}: {finding.severity.value}{costs}"
