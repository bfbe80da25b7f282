"""The page of a rule inside a finding: Markdown to HTML with markdown-it, a dependency of rich."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from distprof.documents.html.markup import EMPTY, Markup, untouched
from distprof.errors import UsageError

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
        if token.type == "link_open":
            opened.append(_is_web(token.attrs.get("href", "")))
        is_kept = opened[-1] if token.type in ("link_open", "link_close") and opened else True
        if token.type == "link_close" and opened:
            opened.pop()
        if is_kept and token.type != "image":
            if token.type == "link_open":
                token.attrs["rel"] = "noreferrer"
            kept.append(token)
    return kept


def _is_web(target: Any) -> bool:
    return str(target).startswith(("https://", "http://"))
