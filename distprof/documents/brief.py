"""A result in at most :data:`MAX_TOKENS` tokens: for an AI assistant's context, a chat or a log.

Tokenizers differ and none is a dependency, so :func:`most_tokens` computes an upper bound for
today's tokenizers: one token for each digit and sign, one for every three letters of a word, one
for each byte of any other character. English text takes about half of that. Items that do not fit
are cut from the end of each part, with a note that says how many.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from distprof.documents.advice import gain_text, next_commands
from distprof.documents.page import Listing, Page
from distprof.documents.step_bar import group_shares
from distprof.escape import plain, short_ranks, shorten
from distprof.formats import RenderOptions
from distprof.rules.base import Finding, NotChecked
from distprof.sections.capture.show import headline
from distprof.sections.job.show import job_facts
from distprof.sections.parts import mean_span_ns, window_word
from distprof.sections.report import Report
from distprof.sections.table import TableView
from distprof.sections.verdict import judge
from distprof.sections.whatif.show import plan_sentence
from distprof.units import format_duration, format_ratio

MAX_TOKENS = 1_500

_MAX_VERDICT = 250
"""Tokens of the verdict, which is never left out."""

_MAX_ITEM = 260
"""Tokens of one item. Most findings take half of that, fix included."""

_MAX_SENTENCE = 800
"""Characters of one sentence."""

_FEW_CODES = 8
_FEW_ROWS = 8

_PIECE = re.compile(r"[A-Za-z]+|[\x21-\x7e]|\n|[^\x00-\x7f]")
_LETTERS_PER_TOKEN = 3


def most_tokens(text: str) -> int:
    """An upper bound on the tokens of ``text``, for the tokenizers in use today."""
    return sum(_most_of(piece) for piece in _PIECE.findall(text))


def _most_of(piece: str) -> int:
    if piece.isascii():
        return -(-len(piece) // _LETTERS_PER_TOKEN)
    return len(piece.encode("utf-8", "surrogatepass"))


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Sentences under a title."""

    title: str  # For example ``Plan``.
    items: tuple[str, ...]  # Most important first, already plain.
    share: float  # Share of the tokens below the verdict that is reserved for the items.
    is_numbered: bool = False  # Whether the items are steps to take in order.


def render(report: Report, options: RenderOptions) -> str:
    """The report in brief: verdict, plan, findings, evidence, unknowns and next commands."""
    verdict = judge(report)
    parts = (
        Part(title="Plan", items=tuple(_plan(report)), share=0.2, is_numbered=True),
        Part(title="Findings", items=tuple(_findings(report, verdict.line)), share=0.4),
        Part(title="Evidence", items=tuple(_evidence(report, verdict.why)), share=0.2),
        Part(title="Unknown", items=tuple(_unknown(report)), share=0.1),
        Part(title="Next", items=_commands(next_commands(report, options)), share=0.1),
    )
    return _fitted(verdict.line, parts)


def page_brief(page: Page, options: RenderOptions) -> str:  # noqa: ARG001 - as all reporters
    """Any other result in brief: verdict, steps, findings, evidence; rows of tables at the end."""
    evidence = (page.headline, *page.facts, *page.sentences, *page.points)
    listings = tuple(_listing(one) for one in page.listings)
    findings = tuple(_finding(one, "", page.verdict) for one in page.findings)
    parts = (
        *(part for part in listings if part.is_numbered),
        Part(title="Findings", items=findings, share=0.3),
        Part(
            title="Evidence", items=tuple(_sentence(text) for text in evidence if text), share=0.3
        ),
        *(part for part in listings if not part.is_numbered),
        Part(title=page.remarks_title or "Notes", items=_sentences(page.remarks), share=0.1),
        Part(title="Next", items=_commands(page.commands), share=0.1),
        *(_rows(view) for view in page.tables),
    )
    return _fitted(page.verdict, parts)


# Parts of a report --------------------------------------------------------------------------------


def _plan(report: Report) -> Iterator[str]:
    per, whole = window_word(report), report.plan.step_ns
    for repair in report.plan.repairs:
        share = f" ({format_ratio(repair.gain_ns / whole)})" if whole else ""
        saves = f"{format_duration(repair.gain_ns)} per {per}{share}"
        left = format_duration(repair.step_ns)
        yield _sentence(f"If {repair.title}: saves {saves}, then {left} per {per} (simulated)")


def _findings(report: Report, verdict: str) -> Iterator[str]:
    for finding in report.findings:
        yield _finding(finding, gain_text(finding, report), verdict)


def _finding(finding: Finding, gain: str, verdict: str) -> str:
    """One finding; its message is left out if it repeats the verdict."""
    facts = [finding.severity.value, finding.confidence.value, gain]
    if finding.ranks:
        noun = "rank" if len(finding.ranks) == 1 else "ranks"
        facts.append(f"{noun} {short_ranks(finding.ranks, 24)}")
    title = f"{finding.code} {finding.name} ({', '.join(fact for fact in facts if fact)})"
    message = "" if finding.message.rstrip(".") == verdict.rstrip(".") else f" {finding.message}"
    return _sentence(f"{title}:{message} Fix: {finding.fix}")


def _evidence(report: Report, why: Sequence[str]) -> Iterator[str]:
    yield _sentence(headline(report))
    span = mean_span_ns(report)
    shares = ", ".join(
        f"{label} {format_ratio(ratio)}" for label, *_, ratio in group_shares(report)
    )
    if shares and span:
        yield f"{format_duration(span)} per {window_word(report)}: {shares}"
    plan = plan_sentence(report)
    yield from _sentences((*job_facts(report), *(text for text in why if text != plan)))


def _unknown(report: Report) -> Iterator[str]:
    """Gaps in the recording, reasons for missing values, then rules that could not be checked."""
    yield from dict.fromkeys(_sentence(gap.message) for gap in report.capture.gaps)
    yield from dict.fromkeys(_sentence(text) for text in report.breakdown.unavailable)
    by_reason: dict[str, list[NotChecked]] = {}
    for one in report.not_checked:
        by_reason.setdefault(one.why, []).append(one)
    for why, rules in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        yield _sentence(f"{_codes(rules)} not checked: {why}")


def _codes(rules: Sequence[NotChecked]) -> str:
    codes = ", ".join(one.code for one in rules[:_FEW_CODES])
    left = len(rules) - _FEW_CODES
    return f"{codes} and {left} more" if left > 0 else codes


# Parts of a page ----------------------------------------------------------------------------------


def _listing(listing: Listing) -> Part:
    return Part(
        title=listing.title,
        items=_sentences(listing.sentences),
        share=0.3 if listing.is_numbered else 0.1,
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
    return Part(title=plain(view.title), items=_sentences(tuple(rows)), share=0)


def _commands(commands: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(f"{plain(command)}  # {purpose}" for command, purpose in commands)


# Fitting into the limit ---------------------------------------------------------------------------


def _sentences(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(_sentence(text) for text in texts if text)


def _sentence(text: str) -> str:
    """A sentence on one line, of bounded length."""
    return _cut(
        shorten(plain(" ".join(text[: 4 * _MAX_SENTENCE].split())), _MAX_SENTENCE), _MAX_ITEM
    )


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


def _fitted(verdict: str, parts: Sequence[Part]) -> str:
    """Verdict and parts: each part gets up to its share, then the rest goes to parts in order."""
    head = _cut(plain(" ".join(verdict[: 4 * _MAX_SENTENCE].split())), _MAX_VERDICT)
    room = MAX_TOKENS - most_tokens(f"{head}\n")
    kept = [_Kept(part) for part in parts if part.items]
    for is_second in (False, True):
        for one in kept:
            left = room - sum(other.tokens for other in kept if other is not one)
            one.take(room if is_second else one.part.share * room, left)
    shown = (_written(one.part, one.number) for one in kept if one.number)
    return "\n\n".join([head, *shown]) + "\n"


def _written(part: Part, number: int) -> str:
    marks = (f"{i}." if part.is_numbered else "-" for i in range(1, number + 1))
    lines = [f"{mark} {item}" for mark, item in zip(marks, part.items, strict=False)]
    left = len(part.items) - number
    more = [f"- and {left:,} more"] if left else []
    return "\n".join([part.title, *lines, *more])
