"""Findings, with the page of the rule folded inside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

from distprof.documents.html.blocks import (
    EMPTY,
    Markup,
    bounded,
    element,
    folded,
    joined,
    sentence,
    slug,
    untouched,
)
from distprof.documents.page import Priced, ToDo
from distprof.errors import UsageError
from distprof.escape import short_ranks
from distprof.installed import is_web_address
from distprof.rules import find_rule
from distprof.rules.base import Finding

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

_LOWER = {"h1": "h4", "h2": "h4", "h3": "h5", "h4": "h5"}
"""Headings of a page become subheadings of the finding."""


def rule_page(code: str) -> Markup:
    """The page of a rule without its title; empty for a rule that is not installed here."""
    try:
        page = find_rule(code).page
    except UsageError:  # the report is from another version
        return EMPTY
    return markdown_html(page.partition("\n\n")[2])


def markdown_html(text: str) -> Markup:
    """Markdown as HTML. Raw HTML is escaped, and only links to web pages are kept."""
    parser = _parser()
    tokens = parser.parse(text)
    for token in tokens:
        token.tag = _LOWER.get(token.tag, token.tag)
        token.attrs.pop("style", None)  # column alignment: the policy forbids inline styles
        token.children = list(_without_local_links(token.children or []))
    return untouched(parser.renderer.render(tokens, parser.options, {}))


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False}).enable("table")


def _without_local_links(tokens: list[Token]) -> Iterator[Token]:
    """Remove pictures, and links between pages, which lead nowhere here."""
    opened: list[bool] = []
    for token in tokens:
        is_kept = token.type != "image"
        if token.type == "link_open":
            is_kept = str(token.attrs.get("href", "")).startswith(("https://", "http://"))
            opened.append(is_kept)
            token.attrs["rel"] = "noreferrer"
        elif token.type == "link_close" and opened:
            is_kept = opened.pop()
        if is_kept:
            yield token


_MARKS = {"error": "✖", "warning": "▲", "info": "●"}


def anchors(findings: Sequence[Finding]) -> Callable[[Finding], str]:
    """The id of each finding: its code, with a number if the code occurs more than once."""
    seen: Counter[str] = Counter()
    names: dict[int, str] = {}
    for one in findings:
        seen[one.code] += 1
        number = f"-{seen[one.code]}" if seen[one.code] > 1 else ""
        names[id(one)] = f"{slug(one.code)}{number}"
    return lambda one: names[id(one)]


def finding_articles(to_do: ToDo, *, is_page: bool = True) -> Iterator[Markup]:
    """What to do, in order: each repair of the plan with its findings, and each other finding.

    Evidence and the page of the rule open in place. Within another page, there are no ids and no
    pages of rules.
    """
    article_of = _writer(to_do.found, is_page=is_page)
    yield element("h2", "What to do", id="to-do" if is_page else None)
    yield (
        sentence(f"Plan: {to_do.promise}{to_do.basis}.", class_="evidence")
        if to_do.promise
        else EMPTY
    )
    items = []
    for task in to_do.tasks:
        head = element("p", element("b", task.change), f"  {task.effect}") if task.change else EMPTY
        effect = "" if task.change else task.effect
        items.append(element("li", head, *(article_of(one, effect) for one in task.found)))
    yield element("ol", *items, class_="todo")


def remark_articles(found: Sequence[Priced], *, is_page: bool = True) -> Markup:
    """Findings that are remarks on a result."""
    article_of = _writer(found, is_page=is_page)
    return joined(article_of(one, "") for one in found)


def _writer(found: Sequence[Priced], *, is_page: bool) -> Callable[[Priced, str], Markup]:
    """Writes one of these findings and its effect; the first of each rule with the rule's page."""
    anchor_of = anchors([one.finding for one in found])
    first = {one.finding.code: one for one in reversed(found)} if is_page else {}
    return lambda one, effect: _article(
        one,
        effect,
        anchor_of(one.finding) if is_page else None,
        has_page=first.get(one.finding.code) is one,
    )


def _article(priced: Priced, effect: str, anchor: str | None, *, has_page: bool) -> Markup:
    one = priced.finding
    severity = one.severity.value
    steps = ", ".join(map(str, one.steps[:12])) + (", …" if len(one.steps) > 12 else "")
    facts = [
        f"Cost: {priced.cost}" if priced.cost else "",
        one.confidence.value,
        f"ranks {short_ranks(one.ranks)}" if one.ranks else "",
        f"steps {steps}" if steps else "",
        f"evidence: {', '.join(one.evidence)}" if one.evidence else "",
    ]
    name = element("span", f"{_MARKS[severity]} {severity}", class_="severity")
    head = EMPTY if priced.is_verdict else element("h3", bounded(one.headline))
    message = EMPTY if priced.is_verdict or not one.message else sentence(one.message)
    parts = [
        element("p", name, f" {one.code} {one.name}{f'  {effect}' if effect else ''}"),
        head,
        message,
        sentence(one.fix, class_="fix"),
    ]
    more = [sentence(" · ".join(fact for fact in facts if fact), class_="dim")]
    if is_web_address(one.docs_url):  # a saved report may contain any text here
        link = element("a", "The rule in the documentation", href=one.docs_url, rel="noreferrer")
        more.append(element("p", link))
    if has_page:
        more.append(rule_page(one.code))
    parts.append(
        folded("What it means, how it is computed, when it is wrong", *more, class_="page")
    )
    return element("article", *parts, id=anchor, class_=f"finding {severity}")
