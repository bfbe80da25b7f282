"""Checks for behaviour that the command line may never show, for any input."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Final
from xml.etree import ElementTree as ET

import msgspec

__all__ = ["ALLOWED", "Answer", "problem_of"]

ALLOWED: Final = frozenset((0, 1, 2, 3))
"""Allowed exit codes of commands that start nothing."""

MAX_BYTES: Final = 400 * 2**20
"""Memory limit of an input, in addition to the libraries, which are imported before."""

LEAST_S: Final = 4.0
BYTES_PER_S: Final = 500_000
"""CPU time grows with the input, and no faster: this long, and a second for so many bytes."""

_MOVES = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
# Logs of jobs have errors of their own, which a headline quotes, or which begin a line.
_HEADLINE = re.compile(r"(?:process|\d) failed(?: first)?: [^<]*?(?=\n\n|<|\Z)")
_POLITE = re.compile(
    r"unexpected error in distprof|please report this with|"
    r"(?:skipped: |the first: |failed: |(?<=[a-z] )\()"
    r"(?:Type|Attribute|Key|Index|Assertion|Overflow|Recursion|UnicodeEncode|UnicodeDecode|ZeroDivision|Unbound\w*|Name|Value|Arrow\w*|Memory)Error"
)
_FRAME = re.compile(r'File "[^"]*/(distprof/[^"]+)", line \d+, in (\w+)')
_MARKUP = re.compile(r"<(?:script|img|svg|iframe)\b", re.IGNORECASE)
_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of one command.

    Args:
        words: Its arguments.
        code: The exit code.
        out: Standard output.
        err: Standard error.
        seconds: CPU time.
        peak_bytes: Largest resident set while it ran, minus that before; 0 if it is unknown.
        num_bytes: Size of its files, unpacked.
    """

    words: tuple[str, ...]
    code: int
    out: str
    err: str
    seconds: float = 0.0
    peak_bytes: int = 0
    num_bytes: int = 0


def problem_of(answer: Answer, limit_s: float) -> str:
    """The class of failure, with its place in the code if known; empty without a failure."""
    both = answer.out + answer.err
    polite = _POLITE.search(_HEADLINE.sub("", both))
    if polite or _FRAME.search(answer.err):
        return f"internal error: {_place(answer.err) or (polite and polite[0])}"
    if answer.code not in ALLOWED:
        return f"exit code {answer.code}"
    if found := _MOVES.search(both):
        where = "output" if _MOVES.search(answer.out) else "stderr"
        return f"control character in {where} of {answer.words[0]}: {found.group()!a}"
    if answer.code == 3 and not both.strip():
        return "refused without a sentence"
    if answer.seconds > min(limit_s, LEAST_S + answer.num_bytes / BYTES_PER_S):
        return f"too slow: {answer.words[0]}"
    if answer.peak_bytes > MAX_BYTES:
        return f"too much memory: {answer.words[0]}"
    return _malformed(answer) if answer.code in (0, 1) and not _is_written(answer) else ""


def _is_written(answer: Answer) -> bool:
    """Whether the result went into a file, and nothing to standard output."""
    return not answer.out and bool({"--update-baseline", "--acknowledge"} & {*answer.words})


def _place(err: str) -> str:
    """Type and innermost place in distprof of the last error in a traceback."""
    frames = _FRAME.findall(err)
    if not frames:
        return ""
    kind = [
        line for line in err.splitlines() if re.match(r"[\w.]+(?:Error|Exception|Exit)\b", line)
    ]
    return f"{(kind or ['?'])[-1].partition(':')[0]} in {' '.join(frames[-1])}"


def _malformed(answer: Answer) -> str:
    """Why the output is not a valid document of its format."""
    words = answer.words
    name = words[words.index("--format") + 1] if "--format" in words else "text"
    checks = {"json": _of_json, "benchmark": _of_json, "junit": _of_xml, "md": _of_markdown}
    checks["html"] = _of_page
    check = _of_html if words[0] == "html" else checks.get(name)
    found = check(answer.out) if check else ""
    return f"{found} ({words[0]})" if found else ""


def _of_json(text: str) -> str:
    def refuse(word: str) -> None:
        raise ValueError(word)

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError as error:
        return f"invalid JSON: {re.sub(r'[0-9]+', 'N', str(error))[:60]}"
    return ""


def _of_xml(text: str) -> str:
    try:
        ET.fromstring(text)
    except ET.ParseError as error:
        return f"invalid XML: {re.sub(r'[0-9]+', 'N', str(error))[:60]}"
    return ""


def _of_markdown(text: str) -> str:
    found = _MARKUP.search(_CODE.sub("", text))
    return f"markup in Markdown: {found.group()}" if found else ""


class _Page(HTMLParser):
    """A valid page has one script and one style, loads nothing, and links to itself and rules.

    The picture's data are a script that no browser runs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found = ""
        self.count = {"script": 0, "style": 0}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _LOADING:
            self.found = tag
        if tag in self.count and ("type", "application/json") not in attrs:
            self.count[tag] += 1
        for name, value in attrs:
            is_link = name == "href" and not (value or "").startswith(("#", "https://"))
            if is_link or name.startswith("on") or name in ("src", "srcdoc", "srcset", "action"):
                self.found = f"{tag} {name}"

    def handle_comment(self, data: str) -> None:  # noqa: ARG002 - as its base class calls it
        self.found = "a comment"


_LOADING = ("img", "iframe", "object", "embed", "link", "base", "form", "foreignobject", "image")


def _of_page(text: str) -> str:
    page = _Page()
    page.feed(text)
    page.close()
    many = [tag for tag, count in page.count.items() if count != 1]
    found = page.found or (f"{page.count[many[0]]} of {many[0]}" if many else "")
    return f"markup in a page: {found}" if found else ""


def _of_html(text: str) -> str:
    """Notebook output: parts of a page, with at most one style and no script."""
    part = _Page()
    part.feed(text)
    part.close()
    found = part.found or ("script" if part.count["script"] or part.count["style"] > 1 else "")
    return f"markup in HTML: {found}" if found else ""
