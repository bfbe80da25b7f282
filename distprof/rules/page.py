"""The page of a rule: its docstring, with real messages of the rule as an example."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec

HEADINGS = (
    "What it detects",
    "Why it costs time",
    "Evidence needed",
    "How the cost is computed",
    "How to fix",
    "When it is wrong",
    "Sources",
)
"""The headings that an author writes, in order."""

EXAMPLES_FILE = Path(__file__).with_name("examples.json")
"""Rule code to the messages for its failing fixture; generated, like the pages."""

_EXAMPLE, _BEFORE_EXAMPLE = "Example", "How to fix"

_WIDTH = 100

_NUMBER_AND_UNIT = re.compile(r"(?<=\d) (?=\S)")


class Page(msgspec.Struct, frozen=True):
    """A parsed page: the text under each heading, in source order."""

    sections: Mapping[str, str]

    @property
    def summary(self) -> str:
        """The first sentence of the first section, on one line; empty without sections."""
        first = next(iter(self.sections.values()), "")
        flat = " ".join(first.split())
        end = flat.find(". ")
        return flat if end < 0 else flat[: end + 1]

    def with_example(self, name: str, messages: Sequence[str]) -> Page:
        """The page with an example section of these messages; unchanged without messages."""
        if not messages:
            return self
        lines = "\n".join(_filled(f"{name}: {message}") for message in messages)
        sections: dict[str, str] = {}
        for heading, text in self.sections.items():
            sections[heading] = text
            if heading == _BEFORE_EXAMPLE:
                sections[_EXAMPLE] = f"```text\n{lines}\n```"
        return Page(sections)


def parse_page(text: str) -> Page:
    """Split a docstring into its ``##`` sections; what comes before them says what is detected."""
    sections: dict[str, list[str]] = {}
    current = sections.setdefault(HEADINGS[0], [])
    for line in inspect.cleandoc(text).splitlines():
        if line.startswith("## "):
            current = sections.setdefault(line[3:].strip(), [])
        else:
            current.append(line)
    joined = {name: "\n".join(lines).strip() for name, lines in sections.items()}
    return Page({name: words for name, words in joined.items() if words})


@cache
def examples() -> Mapping[str, Sequence[str]]:
    """Code of each built-in rule to its example messages."""
    return msgspec.json.decode(EXAMPLES_FILE.read_bytes(), type=dict[str, tuple[str, ...]])


def _filled(text: str) -> str:
    """The text wrapped to the width of a page, with numbers and units kept together."""
    tied = _NUMBER_AND_UNIT.sub("\N{NO-BREAK SPACE}", text)
    lines = textwrap.fill(tied, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return lines.replace("\N{NO-BREAK SPACE}", " ")
