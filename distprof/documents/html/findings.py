"""Findings, with the page of the rule folded inside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

from distprof.documents.html.blocks import (
    EMPTY,
    Markup,
    element,
    folded,
    joined,
    sentence,
    slug,
    untouched,
)
from distprof.documents.page import Priced
from distprof.errors import UsageError
from distprof.escape import short_ranks
from distprof.installed import is_web_address
from distprof.rules.base import Finding

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

_LOWER = {"h1": "h4", "h2": "h4", "h3": "h5", "h4": "h5"}
"""Headings of a page become subheadings of the finding."""


def rule_page(code: str) -> Markup:
    """The page of a rule without its title; empty for a rule that is not installed here."""
    from distprof.rules.registry import find_rule

    try:
        page = find_rule(code).page
    except UsageError:  # the report is from another version, or the rule from a plug-in
        return EMPTY
    return markdown_html(page.partition("\n\n")[2])


def markdown_html(text: str) -> Markup:
    """Markdown as HTML. Raw HTML is escaped, and only links to web pages are kept."""
    parser = _parser()
    tokens = parser.parse(text)
    for token in tokens:
        token.tag = _LOWER.get(token.tag, token.tag)
        token.attrs.pop("style", None)  # column alignment: the policy forbids inline styles
        token.children = _without_local_links(token.children or [])
    return untouched(parser.renderer.render(tokens, parser.options, {}))


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False}).enable("table")


def _without_local_links(tokens: list[Token]) -> list[Token]:
    """Remove pictures, and links between pages, which lead nowhere here."""
    kept: list[Token] = []
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
            kept.append(token)
    return kept


_NUM_TO_DO = 3
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


def finding_articles(found: Sequence[Priced]) -> Markup:
    """All findings, most important first. The first finding of each rule contains its page."""
    if not found:
        return sentence("None.")
    anchor_of = anchors([one.finding for one in found])
    first = {one.finding.code: one for one in reversed(found)}
    return joined(
        _article(one, anchor_of(one.finding), has_page=first[one.finding.code] is one)
        for one in found
    )


def _article(priced: Priced, anchor: str, *, has_page: bool) -> Markup:
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
    parts = [
        element("p", f"{_MARKS[severity]} {severity}", class_="severity"),
        element("h3", f"{one.code} {one.name}"),
        sentence(one.message),
        sentence(one.fix, class_="fix"),
        sentence(" · ".join(fact for fact in facts if fact), class_="dim"),
    ]
    if is_web_address(one.docs_url):  # a saved report may contain any text here
        link = element("a", "The rule in the documentation", href=one.docs_url, rel="noreferrer")
        parts.append(element("p", link))
    page = rule_page(one.code) if has_page else Markup("")
    if page:
        title = "What it means, how it is computed, when it is wrong"
        parts.append(folded(title, page, class_="page"))
    return element("article", *parts, id=anchor, class_=f"finding {severity}")


def to_do(found: Sequence[Priced], verdict: str) -> Iterator[Markup]:
    """The first findings with their fixes, without messages that repeat the verdict."""
    anchor_of = anchors([one.finding for one in found])
    yield element("h2", "What to do")
    items = [_task(one, anchor_of(one.finding), verdict) for one in found[:_NUM_TO_DO]]
    yield element("ol", *items, class_="todo") if items else sentence("No findings.")
    left_out = len(found) - len(items)
    if left_out:
        yield sentence(f"{left_out} more below.")


def _task(one: Priced, anchor: str, verdict: str) -> Markup:
    finding = one.finding
    name = element("a", f"{finding.code} {finding.name}", href=f"#{anchor}")
    title = element("p", element("b", name), f"  {one.gain}" if one.gain else "")
    message = () if finding.message == verdict else (sentence(finding.message),)
    return element("li", title, *message, sentence(finding.fix, class_="fix"))
