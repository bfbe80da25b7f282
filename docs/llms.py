"""``llms.txt``: every page of the documentation with its first sentence, for language models.

The file is at the root of the site and its links lead to the pages as Markdown, which the site
holds next to each page (llmstxt.org).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from distprof.rules import all_rules
from docs.contents import RULES, contents, place_of

__all__ = ["first_sentence", "llms_text"]

_NO_PROSE = re.compile(r"#|<|```|\||- |\d+\. ")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_END = re.compile(r"(?<=[.?!])\s")

Read = Callable[[str], str]


def llms_text(read: Read) -> str:
    """The file.

    Args:
        read: Gives the text of a page by its path relative to ``docs/``.
    """
    index = read("index.md")
    return "\n".join(
        [f"# {_title(index)}\n", f"> {_paragraph(index)}", *_sections(index, read), ""]
    )


def _sections(index: str, read: Read) -> Iterator[str]:
    for section in contents(index):
        yield f"\n## {section.title}\n"
        for page in section.pages:
            text = read(page)
            yield _line(_title(text), place_of(page), first_sentence(text))
        if RULES in section.pages:
            yield "\n## Rules\n"
            yield from (
                _line(f"{rule.code} {rule.name}", rule.docs, rule.summary) for rule in all_rules()
            )


def _line(title: str, page: str, about: str) -> str:
    return f"- [{title}]({page}): {about}" if about else f"- [{title}]({page})"


def _title(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ")


def _paragraph(text: str) -> str:
    """The first paragraph that is neither a heading nor code, without links; may be empty."""
    unfenced = re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    blocks = (block.strip() for block in unfenced.split("\n\n"))
    prose = next((block for block in blocks if block and not _NO_PROSE.match(block)), "")
    return _LINK.sub(r"\1", " ".join(prose.split()))


def first_sentence(text: str) -> str:
    """The first sentence of a page; one that leads to a list or to code ends with a full stop."""
    sentence = _END.split(_paragraph(text), maxsplit=1)[0]
    return f"{sentence[:-1]}." if sentence.endswith(":") else sentence
