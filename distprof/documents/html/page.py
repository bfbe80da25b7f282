"""A page as one HTML file."""

from __future__ import annotations

import base64
import hashlib
import importlib
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from importlib.util import find_spec

import msgspec

from distprof.documents.html.blocks import (
    EMPTY,
    Markup,
    Part,
    bounded,
    bullets,
    drawn_table,
    element,
    joined,
    section,
    sentence,
    slug,
    step_figure,
    untouched,
)
from distprof.documents.html.findings import finding_articles, remark_articles
from distprof.documents.page import Page
from distprof.escape import plain, shorten
from distprof.version import __version__


def figures_of(result: msgspec.Struct) -> tuple[Part, ...]:
    """The parts of a page that show a result as figures, in reading order."""
    kind = type(result)
    name = f"{sys.modules[kind.__module__].__package__}.figures"
    if not find_spec(name):
        return ()
    draw = importlib.import_module(name).FIGURES.get(kind)
    return () if draw is None else tuple(part for part in draw(result) if part.content)


_MAX_TITLE = 120

_PATTERNS = {
    "exposed_wait": "M0 4h8",
    "exposed_comm_unsplit": "M-2 2l4 -4M0 8l8 -8M6 10l4 -4",
    "exposed_copy": "M-2 6l4 4M0 0l8 8M6 -2l4 4",
    "idle": "M4 0v8",
    "bubble": "M1 2h3M5 6h3",
    "input": "M4 0v8M0 4h8",
}
"""Lines of each hatching in a square of 8, so that groups of a step differ without colour."""


def document(verdict: str, header: Sequence[str], parts: Sequence[Part]) -> str:
    """A whole page."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy()),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="generator", content=f"distprof {__version__}"),
        element("title", shorten(plain(verdict), _MAX_TITLE)),
        element("style", joined((_asset("parts.css"), _asset("style.css")))),
    )
    main = element("main", element("header", *header), *map(section, parts), id="top")
    body = element(
        "body",
        element("a", "Skip to the report", href="#top", class_="skip"),
        hatchings(),
        element("div", _contents(parts), main, class_="layout"),
        element("script", _script()),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


@cache
def policy() -> str:
    """A policy that loads nothing and allows only this style and script, by their hashes."""
    style = _hash(_asset("parts.css") + _asset("style.css"))
    script = _hash(_script())
    return (
        f"default-src 'none'; style-src '{style}'; script-src '{script}'; "
        "base-uri 'none'; form-action 'none'"
    )


def parts_style() -> Markup:
    """The style of the parts of a page, without that of the page around them."""
    return _asset("parts.css")


@cache
def _script() -> Markup:
    return joined(_asset(name) for name in ("script.js", "tables.js", "picture.js"))


@cache
def _asset(name: str) -> Markup:
    return untouched((files(__package__) / name).read_text(encoding="utf-8"))


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _contents(parts: Sequence[Part]) -> Markup:
    links = [element("li", element("a", part.title, href=f"#{part.anchor}")) for part in parts]
    tools = element(
        "p",
        element("button", "Light or dark", type="button", id="theme"),
        element("button", "Open all", type="button", id="open-all"),
        class_="tools",
        hidden=True,
    )
    brand = element("p", element("a", "distprof", href="#top"), class_="brand")
    return element("nav", brand, element("ul", *links), tools, aria_label="Contents")


def hatchings() -> Markup:
    """SVG patterns that the style sheet refers to."""
    patterns = [
        element(
            "pattern",
            element("rect", width=8, height=8, class_=f"ground-{name}"),
            element("path", d=lines, class_="hatch"),
            id=f"hatch-{name}",
            width=8,
            height=8,
            patternUnits="userSpaceOnUse",
        )
        for name, lines in _PATTERNS.items()
    ]
    drawn = element("defs", joined(patterns))
    return element("svg", drawn, width=0, height=0, class_="defs", aria_hidden="true")


def page_html(page: Page, figures: Sequence[Part] = (), picture: Markup = EMPTY) -> str:
    """The page as HTML: headline, evidence, ``picture``, what to do, ``figures``, then the rest."""
    header = [element("h1", bounded(page.verdict)), *evidence(page), picture, *answer(page)]
    return document(page.verdict, header, (*figures, *_parts(page)))


def evidence(page: Page) -> Iterator[Markup]:
    """The evidence for the headline."""
    yield sentence(page.detail, class_="detail") if page.detail else EMPTY


def answer(page: Page, *, is_page: bool = True) -> Iterator[Markup]:
    """What to do, then what the result rests on: origin, facts, the step as a bar, sentences."""
    if page.to_do and page.to_do.tasks:
        yield from finding_articles(page.to_do, is_page=is_page)
    yield sentence(page.origin, class_="evidence") if page.origin else EMPTY
    yield from (sentence(text) for text in (*page.facts, *page.cautions))
    yield step_figure(page.step) if page.step else EMPTY
    yield bullets(page.sentences)
    yield bullets(page.points)
    if page.to_do and not page.to_do.tasks:
        yield sentence("No findings.")


def _parts(page: Page) -> Iterator[Part]:
    for number, listing in enumerate(page.listings):
        content = bullets(listing.sentences, numbered=listing.is_numbered)
        anchor = f"{slug(listing.title)}-{number}"
        yield Part(anchor=anchor, title=listing.title, content=content)
    if page.remarked:
        content = remark_articles(page.remarked)
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
        items = [
            element("li", element("code", command), f" — {purpose}")
            for command, purpose in page.commands
        ]
        yield Part(anchor="next", title="Next", content=element("ul", *items))
