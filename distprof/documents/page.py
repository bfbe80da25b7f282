"""What a verb shows besides a trace's report, before somebody draws it: as text, Markdown, JSON.

A verb makes a :class:`Page` of its result; everything below it is drawn here, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from distprof.formats import RenderOptions
from distprof.rules.base import Finding
from distprof.sections.table import TableView
from distprof.units import format_duration

__all__ = ["Page", "page_reporters"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One result for people.

    Args:
        verdict: The result in one sentence.
        headline: Where it comes from, half a sentence; empty for none.
        sentences: What else to know, most important first.
        findings: What rules say, most important first.
        tables: In the order of reading.
        remarks: Sentences under ``remarks_title``, at the end.
        remarks_title: For example ``Assumed``.
        commands: Commands to go on with, and what each is for.
    """

    verdict: str
    headline: str = ""
    sentences: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    tables: tuple[TableView, ...] = ()
    remarks: tuple[str, ...] = ()
    remarks_title: str = ""
    commands: tuple[tuple[str, str], ...] = ()


def page_reporters(
    make: Callable[[T, RenderOptions], Page],
) -> dict[str, Callable[[T, RenderOptions], str]]:
    """Name of a format to what writes a result in it.

    Args:
        make: The page of a result; ``show_all`` of the options says whether to fold anything.
    """
    return {
        "text": lambda result, options: _text(make(result, options), options),
        "json": lambda result, _: _json(result),
        "md": lambda result, options: _markdown(make(result, options), options),
    }


def _text(page: Page, options: RenderOptions) -> str:
    from distprof.documents.text import printed

    return printed(_text_blocks(page, options.width), options)


def _text_blocks(page: Page, width: int) -> Iterator[Any]:
    from rich.text import Text

    from distprof.documents.text import sentence, table_blocks
    from distprof.escape import plain, wrapped

    yield Text(wrapped(plain(page.verdict), width), style="bold")
    if page.headline or page.sentences:
        yield Text()
    if page.headline:
        yield sentence(page.headline, width, style="dim")
    for text in page.sentences:
        yield sentence(text, width)
    for finding in page.findings:
        yield Text()
        yield Text(wrapped(plain(_title(finding)), width), style="bold")
        yield sentence(finding.message, width)
        yield sentence(f"fix: {finding.fix}", width)
    for view in page.tables:
        yield Text()
        yield from table_blocks(view, width)
    if page.remarks:
        yield Text()
        yield Text(page.remarks_title, style="bold")
    for remark in page.remarks:
        yield sentence(f"· {remark}", width, style="dim")
    if page.commands:
        yield Text()
        yield Text("Next", style="bold")
    for command, purpose in page.commands:
        yield sentence(f"{command}  # {purpose}", width)


def _markdown(page: Page, options: RenderOptions) -> str:
    from distprof.documents.markdown import joined

    return joined(_markdown_blocks(page), show_all=options.show_all)


def _markdown_blocks(page: Page) -> Iterator[str]:
    from distprof.documents.markdown import sentence, table

    yield f"### {sentence(page.verdict)}"
    if page.headline:
        yield sentence(page.headline)
    if page.sentences:
        yield "\n".join(f"- {sentence(text)}" for text in page.sentences)
    if page.findings:
        yield "\n".join(
            f"- **{sentence(_title(one))}**: {sentence(one.message)} *fix:* {sentence(one.fix)}"
            for one in page.findings
        )
    for view in page.tables:
        caption = f" {sentence(view.caption)}" if view.caption else ""
        notes = "".join(f"\n\n{sentence(note)}" for note in view.notes)
        yield f"**{sentence(view.title)}**{caption}\n\n{table(view)}{notes}"
    if page.remarks:
        listed = "\n".join(f"- {sentence(text)}" for text in page.remarks)
        yield f"**{sentence(page.remarks_title)}**\n\n{listed}"


def _title(finding: Finding) -> str:
    cost = finding.cost_ns_per_step
    costs = f", {format_duration(cost)} per step" if cost is not None else ""
    return f"{finding.code} {finding.name}: {finding.severity.value}{costs}"


def _json(result: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(result), indent=2).decode() + "\n"
