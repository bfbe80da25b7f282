"""The text of a rule's page, parsed from the rule's docstring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["HEADINGS", "Page", "parse_page"]

HEADINGS = (
    "What it detects",
    "Why it costs time",
    "Evidence needed",
    "How the cost is computed",
    "How to fix",
    "Example",
    "When it is wrong",
    "Sources",
)
"""The headings of every page, in order."""


@dataclass(frozen=True, slots=True)
class Page:
    """A parsed page: its title and the text under each heading, in the order written."""

    title: str
    sections: Mapping[str, str]

    @property
    def summary(self) -> str:
        """First sentence of the first section, on one line; empty without sections."""
        first = next(iter(self.sections.values()), "")
        flat = " ".join(first.split())
        end = flat.find(". ")
        return flat if end < 0 else flat[: end + 1]


def parse_page(text: str) -> Page:
    """Split Markdown into its ``#`` title and ``##`` sections. Nothing is required here."""
    title = ""
    sections: dict[str, list[str]] = {}
    current: list[str] = []
    for line in text.strip().splitlines():
        if line.startswith("## "):
            current = sections.setdefault(line[3:].strip(), [])
        elif line.startswith("# ") and not title:
            title = line[2:].strip()
        else:
            current.append(line)
    return Page(title, {name: "\n".join(lines).strip() for name, lines in sections.items()})
