"""The HTML file around a page: head, policy, style, script, contents."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from distprof.documents.html.blocks import Part, section
from distprof.documents.html.markup import Markup, element, joined, untouched
from distprof.escape import plain, shorten
from distprof.version import __version__

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
        element("script", _asset("script.js")),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


@cache
def policy() -> str:
    """A policy that loads nothing and allows only this style and script, by their hashes."""
    style = _hash(_asset("parts.css") + _asset("style.css"))
    script = _hash(_asset("script.js"))
    return (
        f"default-src 'none'; style-src '{style}'; script-src '{script}'; "
        "base-uri 'none'; form-action 'none'"
    )


def parts_style() -> Markup:
    """The style of the parts of a page, without that of the page around them."""
    return _asset("parts.css")


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
