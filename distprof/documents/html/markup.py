"""HTML built from elements. All text is escaped, except markup that was built here."""

from __future__ import annotations

from collections.abc import Iterable

from distprof.escape import html_text

_VOID = frozenset(("meta", "input", "br", "hr"))
_DRAWN = frozenset(("rect", "path", "line", "circle", "polygon", "polyline"))
"""SVG elements without content, written as self-closing tags."""


class Markup(str):
    """Text that is already HTML. Any operation on it gives a plain ``str``, which is escaped."""

    __slots__ = ()


EMPTY = Markup("")

Attribute = str | int | float | bool | None


def element(name: str, /, *children: str, **attributes: Attribute) -> Markup:
    """One element.

    Args:
        name: Tag.
        children: Content: :class:`Markup` unchanged, other text escaped.
        attributes: Values are escaped. None and False leave the attribute out; True writes it
            without a value. Underscores become hyphens; a final one is dropped (``class_``).
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    if name in _DRAWN and not children:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{joined(children)}</{name}>")


def joined(parts: Iterable[str]) -> Markup:
    """Concatenated parts: :class:`Markup` unchanged, other text escaped."""
    return Markup("".join(part if isinstance(part, Markup) else html_text(part) for part in parts))


def untouched(trusted: str) -> Markup:
    """HTML that comes with distprof, such as its style sheet. Never text from a trace."""
    return Markup(trusted)


def picture(*children: str, label: str, **attributes: Attribute) -> Markup:
    """An SVG that a screen reader announces by ``label``."""
    title = element("title", label)
    return element("svg", title, *children, role="img", aria_label=label, **attributes)


def captioned(caption: str, /, *content: str, **attributes: Attribute) -> Markup:
    """A figure below its caption."""
    return element("figure", element("figcaption", caption), *content, **attributes)


def figure_number(value: float) -> str:
    """A coordinate with at most two decimals, without trailing zeros."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    text = figure_number(value) if isinstance(value, float) else str(value)
    return f' {name}="{html_text(text)}"'
