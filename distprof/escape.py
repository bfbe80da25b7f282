"""Escaping of untrusted names from traces: no raw control character or markup gets through."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Callable, Collection
from typing import Any

from distprof.units import capitalized, fold_ranks

_MARKUP = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_MARKDOWN = str.maketrans(_MARKUP | {special: f"\\{special}" for special in "\\`*_[]#|~"})
_UNIT = re.compile(r"(?<=\d) (?=(?:%|ns|µs|ms|s|B|kB|MB|GB|TB|GB/s|ppm|×)(?!\w))")
_WORKFLOW_COMMAND = re.compile(r"^(?P<before>\s*):(?=:)|#(?P<hash>#)(?=\[)", re.MULTILINE)
_BROKEN = {
    **dict.fromkeys(("text", "brief", "md"), (": ", " #")),
    **dict.fromkeys(("html", "junit"), ("&#58;", "&#35;")),
    **dict.fromkeys(("json", "gitlab", "sarif"), (":", "\\u0023")),  # no line starts with a colon
}
"""Format to the replacements for a colon at the start of a line and the second of two hashes."""

_SPACES = str.maketrans({"\u00a0": " ", "\u202f": " "})


def plain(text: str) -> str:
    r"""``text`` on one line, with control and invisible characters shown, as in ``\x1b[31m``."""
    if text.isprintable():
        return text
    shown = text.translate(_SPACES)
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in shown
    )


def plain_lines(text: str) -> str:
    """Like :func:`plain` for text of several lines; line breaks are kept."""
    return "\n".join(plain(line) for line in text.split("\n"))


def each_text(value: Any, change: Callable[[str], str]) -> Any:
    """Builtins with every text in them changed, keys included; tuples become lists."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {each_text(key, change): each_text(item, change) for key, item in value.items()}
    return [each_text(one, change) for one in value] if isinstance(value, list | tuple) else value


def markdown_text(text: str) -> str:
    """``text`` literally inside Markdown: no HTML, no inline Markdown, no mention, no link."""
    literal = plain(text).translate(_MARKDOWN)
    return literal.replace("@", "@\u200b").replace("://", ":\u200b//").replace("www.", "www\u200b.")


def inert(text: str, format_name: str = "text") -> str:
    """``text`` without workflow commands, for a stream that GitHub Actions reads.

    The runner executes lines that begin with ``::name::`` after optional spaces, and ``##[name]``
    anywhere. The meaning of JSON, XML and HTML does not change. Formats that consist of commands
    are left unchanged.

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
    import html  # its table of entities takes 0.5 MB, and few commands write HTML

    return html.escape(plain(text))


def shorten(text: str, width: int) -> str:
    """At most ``width`` characters of ``text``, with an ellipsis where it is cut."""
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


def on_one_line(text: str, width: int) -> str:
    """``text`` on one line, escaped, with at most ``width`` characters."""
    return shorten(plain(" ".join(text[: 4 * width].split())), width)


MAX_HEADLINE = 80
"""Characters of a headline."""


def fitting(*wordings: str) -> str:
    """The first of some wordings, longest first, that fits into a headline.

    Names in it may come from a recording. The last wording is cut between words if it must be.
    """
    texts = [plain(" ".join(wording.split())) for wording in wordings]
    found = next((text for text in texts if len(text) <= MAX_HEADLINE), None)
    if found is not None:
        return found
    whole, _, _ = texts[-1][: MAX_HEADLINE - 1].rpartition(" ")
    return f"{whole} …" if whole else shorten(texts[-1], MAX_HEADLINE)


_CLAUSES = (
    re.compile(r"[;:] "),
    re.compile(r", (?!which|whose)"),
    re.compile(r",? (?=which |whose |because |although |when |until |in the iteration |than |\()"),
    re.compile(r" (?=for )"),
)
"""Ends of clauses, the strongest first."""

_LEAST_CLAUSE = 24  # Characters below which a clause says too little
_BARE = re.compile(r"(?:: \w{1,60}(?:Error|Exception)|^Ranks \S+ failed| failed in NCCL)$")
_MESSAGE = re.compile(r"(?:Error|Exception): ")  # of an exception: its commas end no clause


def headed(text: str) -> tuple[str, str]:
    """A statement as a headline, cut between clauses if it is too long, and the rest of it."""
    whole = plain(" ".join(text.split())).rstrip(".")
    first, _, more = whole.partition(". ")
    if len(first) <= MAX_HEADLINE:
        return first, f"{more}." if more else ""
    for clause in _CLAUSES:
        ends = [match for match in clause.finditer(whole) if _is_end(whole, match.start())]
        if ends:
            rest = re.sub("^(?:and|because|although) ", "", whole[ends[-1].end() :])
            return whole[: ends[-1].start()], f"{capitalized(rest)}."
    return fitting(whole), f"{whole}."


def _is_end(text: str, at: int) -> bool:
    head = text[:at]
    is_whole = head.count("(") == head.count(")") and not _BARE.search(head)
    is_whole = is_whole and not (text[at] == "," and _MESSAGE.search(head))
    return is_whole and _LEAST_CLAUSE <= at <= MAX_HEADLINE


def wrapped(text: str, width: int) -> str:
    """``text``, already plain, broken into lines; numbers stay with their units."""
    lines = textwrap.wrap(glued(text), max(width, 1), break_on_hyphens=False)
    return "\n".join(lines).replace("\u00a0", " ")


def glued(text: str) -> str:
    """``text``, already plain, with non-breaking spaces between numbers and units."""
    return _UNIT.sub("\u00a0", text)


def few_ranks(ranks: Collection[int], width: int = 20) -> str:
    """For example ``rank 3`` or ``ranks 0-3``, in few characters."""
    return f"rank{'' if len(ranks) == 1 else 's'} {short_ranks(ranks, width)}"


def short_ranks(ranks: Collection[int], width: int = 40) -> str:
    """Ranks as ranges of at most about ``width`` characters, with the count if it is cut."""
    text = fold_ranks(ranks)
    if len(text) <= width:
        return text
    return f"{text[: text.rfind(',', 0, width)]},… ({len(ranks):,} ranks)"
