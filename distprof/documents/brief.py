"""A result in at most :data:`MAX_TOKENS` tokens: for an AI assistant's context, a chat or a log.

Tokenizers differ and none is a dependency, so :func:`most_tokens` computes an upper bound: one
token for each digit and sign, three letters of a word, and byte of any other character.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain

import msgspec

from distprof.documents.page import Listing, Page, Priced, Task
from distprof.escape import on_one_line, plain, short_ranks, shorten
from distprof.sections.table import TableView

MAX_TOKENS = 1_500
_MAX_VERDICT = 250
"""Tokens of the verdict, which is never left out."""
_MAX_ITEM = 260
"""Tokens of one item. Most findings take half of that, fix included."""
_MAX_SENTENCE = 800
"""Characters of one sentence."""
_FEW_ROWS = 8
_PIECE = re.compile(r"[A-Za-z]+|[\x21-\x7e]|\n|[^\x00-\x7f]")
_LETTERS_PER_TOKEN = 3


def most_tokens(text: str) -> int:
    """An upper bound on the tokens of ``text``, for the tokenizers in use today."""
    return sum(
        -(-len(piece) // _LETTERS_PER_TOKEN)
        if piece.isascii()
        else len(piece.encode("utf-8", "surrogatepass"))
        for piece in _PIECE.findall(text)
    )


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Sentences under a title."""

    title: str  # For example ``Evidence``.
    items: tuple[str, ...]  # Most important first, already plain.
    share: float  # Share of the tokens below the verdict that is reserved for the items.
    is_numbered: bool = False  # Whether the items are steps to take in order.


_WITH_TASKS = (0.2, 0.5, 0.3)
"""Shares of the tokens below the verdict, of steps (each listing of them), findings, evidence."""
_WITHOUT = (0.3, 0.3, 0.3)
_FEW = 0.1
"""Share of any other part."""


def page_brief(page: Page) -> str:
    """The page in brief: headline, steps, findings, evidence, unknowns and next commands.

    Rows of tables come last, unless tables are details.
    """
    of_steps, of_findings, of_evidence = _WITH_TASKS if page.to_do is not None else _WITHOUT
    tasks = (() if page.to_do is None else map(_task, page.to_do.tasks), map(_found, page.remarked))
    promise = (
        f"; plan: {page.to_do.promise}{page.to_do.basis}"
        if page.to_do and page.to_do.promise
        else ""
    )
    numbered = [each for each in page.listings if each.is_numbered]
    others = [each for each in page.listings if not each.is_numbered]
    parts = (
        *(_listing(each, of_steps) for each in numbered),
        Part(
            title=f"Findings{promise}",
            items=_sentences(chain(*tasks)),
            share=of_findings,
            is_numbered=page.to_do is not None,
        ),
        Part(title="Evidence", items=_sentences(_evidence(page)), share=of_evidence),
        *(_listing(each, _FEW) for each in others),
        Part(title="Unknown", items=_sentences(page.unknown), share=_FEW),
        Part(title=page.remarks_title or "Notes", items=_sentences(page.remarks), share=_FEW),
        Part(
            title="Next",
            items=tuple(f"{plain(command)}  # {purpose}" for command, purpose in page.commands),
            share=_FEW,
        ),
        *(() if page.has_folded_tables else map(_rows, page.tables)),
    )
    said = f"{page.verdict}\n{page.detail}" if page.detail else page.verdict
    lines = (" ".join(line[: 4 * _MAX_SENTENCE].split()) for line in said.split("\n"))
    head = _cut("\n".join(map(plain, lines)), _MAX_VERDICT)
    room = MAX_TOKENS - most_tokens(f"{head}\n")
    kept = [_Kept(part) for part in parts if part.items]
    # Each part gets up to its share, then the rest goes to parts in order
    for is_second in (False, True):
        for one in kept:
            left = room - sum(other.tokens for other in kept if other is not one)
            one.take(room if is_second else one.part.share * room, left)
    shown = (_written(one.part, one.number) for one in kept if one.number)
    return "\n\n".join([head, *shown]) + "\n"


def _task(task: Task) -> str:
    """A repair with its findings, or one finding."""
    found = " ".join(_found(one, "" if task.change else task.effect) for one in task.found)
    return f"{task.change}: {task.effect}. {found}" if task.change else found


def _found(one: Priced, effect: str = "") -> str:
    """One finding; what the verdict says is left out."""
    finding = one.finding
    facts = [finding.severity.value, finding.confidence.value, effect]
    if finding.ranks:
        noun = "rank" if len(finding.ranks) == 1 else "ranks"
        facts.append(f"{noun} {short_ranks(finding.ranks, 24)}")
    title = f"{finding.code} {finding.name} ({', '.join(fact for fact in facts if fact)})"
    said = "" if one.is_verdict else f" {finding.headline}. {finding.message}"
    return f"{title}:{said} Fix: {finding.fix}"


def _evidence(page: Page) -> Iterator[str]:
    yield from (page.origin, *page.facts)
    if page.step is not None and page.step.shares:
        yield f"{page.step.length}: {', '.join(share.text for share in page.step.shares)}"
    yield from (*page.cautions, *page.sentences, *page.points)


def _listing(listing: Listing, share: float) -> Part:
    return Part(
        title=listing.title,
        items=_sentences(listing.sentences),
        share=share,
        is_numbered=listing.is_numbered,
    )


def _rows(view: TableView) -> Part:
    """The first rows of a table; they get only the room that all other parts leave."""
    titles = [column.title for column in view.columns]
    rows = (
        ", ".join(
            f"{title} {cell}".strip()
            for title, cell in zip(titles, row, strict=True)
            if isinstance(cell, str) and cell
        )
        for row in view.rows[:_FEW_ROWS]
    )
    return Part(title=plain(view.title), items=_sentences(rows), share=0)


# Fitting into the limit ---------------------------------------------------------------------------


def _sentences(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(_sentence(text) for text in texts if text)


def _sentence(text: str) -> str:
    """A sentence on one line, of bounded length."""
    return _cut(on_one_line(text, _MAX_SENTENCE), _MAX_ITEM)


def _cut(text: str, most: int) -> str:
    """The start of ``text``, with no more than ``most`` tokens."""
    while most_tokens(text) > most:
        text = shorten(text, max(1, len(text) * most // (most_tokens(text) + 3)))
    return text


class _Kept(msgspec.Struct):
    """The number of items of a part that are kept, and the tokens that they take."""

    part: Part
    number: int = 0
    tokens: int = 0

    def take(self, share: float, left: int) -> None:
        """Keep more items while the part takes at most ``share`` and ``left`` tokens."""
        while self.number < len(self.part.items):
            # two line breaks before a part, one after it
            tokens = 3 + most_tokens(_written(self.part, self.number + 1))
            if tokens > min(share, left):
                return
            self.number, self.tokens = self.number + 1, tokens


def _written(part: Part, number: int) -> str:
    marks = (f"{i}." if part.is_numbered else "-" for i in range(1, number + 1))
    lines = [f"{mark} {item}" for mark, item in zip(marks, part.items, strict=False)]
    left = len(part.items) - number
    more = [f"- and {left:,} more"] if left else []
    return "\n".join([part.title, *lines, *more])
