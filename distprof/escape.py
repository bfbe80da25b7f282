"""Escaping of names from traces, which are not trusted: no raw control character or markup."""

from __future__ import annotations

import html
import os
import re
import textwrap
from collections.abc import Collection

from distprof.units import fold_ranks

__all__ = [
    "glued",
    "html_text",
    "inert",
    "markdown_text",
    "plain",
    "plain_lines",
    "short_ranks",
    "shorten",
    "wrapped",
]

_MARKDOWN_SPECIAL = frozenset("\\`*_[]#|~")
_UNIT = re.compile(r"(?<=\d) (?=(?:%|ns|µs|ms|s|B|kB|MB|GB|TB|GB/s|ppm|×)(?!\w))")
_WORKFLOW_COMMAND = re.compile(r"^(?P<before>\s*):(?=:)|#(?P<hash>#)(?=\[)", re.MULTILINE)
_BROKEN = {
    **dict.fromkeys(("text", "brief", "md"), (": ", " #")),
    **dict.fromkeys(("html", "junit"), ("&#58;", "&#35;")),
    **dict.fromkeys(("json", "gitlab", "sarif"), (":", "\\u0023")),  # no line starts so
}
"""Format to what stands for a colon at the start of a line, and for the second of two hashes."""

_SPACES = str.maketrans({"\u00a0": " ", "\u202f": " "})


def plain(text: str) -> str:
    r"""``text`` on one line, with control and invisible characters shown, as in ``\x1b[31m``."""
    if text.isprintable():
        return text
    shown = text.translate(_SPACES)
    return "".join(c if c.isprintable() else _spelled_out(c) for c in shown)


def plain_lines(text: str) -> str:
    """The same for text of several lines; line breaks are kept."""
    return "\n".join(plain(line) for line in text.split("\n"))


def markdown_text(text: str) -> str:
    """``text`` literally, inside a Markdown table cell or paragraph.

    HTML is escaped, and so is every character with a meaning in Markdown inside a line. An at sign
    mentions no user, and an address does not become a link.
    """
    escaped = html.escape(plain(text), quote=False)
    spelled = "".join(f"\\{c}" if c in _MARKDOWN_SPECIAL else c for c in escaped)
    return spelled.replace("@", "@\u200b").replace("://", ":\u200b//").replace("www.", "www\u200b.")


def inert(text: str, format_name: str = "text") -> str:
    """``text`` for a stream that GitHub Actions reads, so that it holds no workflow command.

    The runner takes a line that begins with ``::name::``, after spaces, for one, and ``##[name]``
    anywhere. JSON, XML and HTML mean the same afterwards; formats of commands and of others stay.

    Args:
        text: What is written, one line or many.
        format_name: Its format.

    Source:
        actions/runner, ``src/Runner.Common/ActionCommand.cs``.
    """
    broken = _BROKEN.get(format_name)
    if broken is None or os.environ.get("GITHUB_ACTIONS") != "true":
        return text
    colon, sharp = broken
    return _WORKFLOW_COMMAND.sub(
        lambda found: f"#{sharp}" if found["hash"] else f"{found['before']}{colon}", text
    )


def html_text(text: str) -> str:
    """``text`` inside an HTML element or attribute."""
    return html.escape(plain(text))


def shorten(text: str, width: int) -> str:
    """At most ``width`` characters of ``text``; an ellipsis marks the cut."""
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


def wrapped(text: str, width: int) -> str:
    """``text``, already plain, broken into lines; a number stays with its unit."""
    lines = textwrap.wrap(glued(text), max(width, 1), break_on_hyphens=False)
    return "\n".join(lines).replace("\u00a0", " ")


def glued(text: str) -> str:
    """``text``, already plain, with numbers that stay on the line of their unit."""
    return _UNIT.sub("\u00a0", text)


def short_ranks(ranks: Collection[int], width: int = 40) -> str:
    """Ranks as ranges of at most about ``width`` characters, with the count if it is cut."""
    text = fold_ranks(ranks)
    if len(text) <= width:
        return text
    return f"{text[: text.rfind(',', 0, width)]},… ({len(ranks):,} ranks)"


def _spelled_out(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
