"""The order of the documentation: the lists of ``docs/index.md``, for the site and ``llms.txt``."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from distprof.rules import all_rules

__all__ = [
    "DOCS",
    "PROJECT",
    "RULES",
    "Section",
    "contents",
    "outside_code",
    "place_of",
    "rule_families",
]

DOCS = Path(__file__).parent
RULES = "reference/rules/README.md"
"""The list of all rules. The index links to it, and it links to the rules."""

OUTSIDE = "../"
"""Prefix of the paths of pages outside ``docs/``."""
PROJECT = "project"
"""Folder of the site for those pages."""

_FAMILIES = {
    "CAP": "Recording",
    "CFG": "Configuration",
    "COM": "Communication",
    "CMP": "Computation",
    "HST": "CPU",
    "INP": "Input",
    "MEM": "Memory",
    "MOE": "Experts",
    "NET": "Network",
    "PIP": "Pipeline",
    "SCA": "Scaling",
    "STR": "Stragglers",
    "TEL": "Sensors",
}
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_ENTRY = re.compile(r"^- \[[^\]]+\]\(([^)]+)\)", re.MULTILINE)
_CODE = re.compile(r"^(`{3,}).*?^\1$|(?<!`)(`+)(?!`).*?(?<!`)\2(?!`)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading of the index and the pages listed under it.

    Args:
        title: The heading.
        pages: Paths relative to ``docs/``; ``../`` for pages at the top of the repository.
    """

    title: str
    pages: tuple[str, ...]


def contents(index: str) -> tuple[Section, ...]:
    """The sections of an index page.

    Args:
        index: Its text: headings of the second level, each with a list of links.
    """
    parts = _HEADING.split(index)[1:]
    return tuple(
        Section(title=title, pages=tuple(_ENTRY.findall(text)))
        for title, text in zip(parts[::2], parts[1::2], strict=True)
    )


def place_of(page: str) -> str:
    """Path on the site of a page of the index."""
    return page.replace(OUTSIDE, f"{PROJECT}/", 1) if page.startswith(OUTSIDE) else page


def rule_families() -> dict[str, list[str]]:
    """The pages of rules, relative to ``docs/``, by the name of their family."""
    families: dict[str, list[str]] = {}
    for rule in all_rules():
        letters = rule.code.rstrip("0123456789")
        families.setdefault(_FAMILIES.get(letters, letters), []).append(rule.docs)
    return families


def outside_code(
    pattern: re.Pattern[str], change: Callable[[re.Match[str]], str], text: str
) -> str:
    """Replace matches in Markdown, except in fenced blocks and between backticks."""
    done, end = [], 0
    for code in _CODE.finditer(text):
        done += [pattern.sub(change, text[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*done, pattern.sub(change, text[end:])])
