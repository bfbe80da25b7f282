"""A page as Markdown, for a pull-request comment or a CI step summary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from distprof.documents.page import MAX_FINDINGS, Findings, Page, Priced
from distprof.escape import markdown_text, plain, shorten
from distprof.formats import RenderOptions
from distprof.installed import is_web_address
from distprof.rules.base import Finding
from distprof.sections.table import Bar, Cell, Drawing, TableView

MAX_BYTES = 60_000
"""GitHub refuses comments of more than 65,536 characters."""

_MAX_CELL = 120
_MAX_SENTENCE = 1_000
_BAR_CELLS = 20
_DRAWING_CELLS = 80
_SEVERITY_MARKS = {"error": "🔴", "warning": "🟠", "info": "🔵"}


def page_markdown(page: Page, options: RenderOptions) -> str:
    """The page as GitHub-flavoured Markdown of less than :data:`MAX_BYTES`.

    The end is cut if it does not fit, with a note that says so. With ``show_all`` nothing is cut.
    """
    return _joined(_blocks(page, options), show_all=options.show_all)


def _joined(parts: Iterable[str], *, show_all: bool) -> str:
    """Blocks one below another, up to the limit."""
    blocks: list[str] = []
    room = MAX_BYTES - 200
    for block in parts:
        size = len(block.encode()) + 2
        if size > room and not show_all:
            blocks.append("_The rest does not fit here: see the report as text or JSON._")
            break
        blocks.append(block)
        room -= size
    return "\n\n".join(blocks) + "\n"


def _blocks(page: Page, options: RenderOptions) -> Iterator[str]:
    yield f"### {_sentence(page.verdict)}"
    for text in (page.headline, *page.facts) if page.headline else page.facts:
        yield _sentence(text)
    for texts in ((*page.cautions, *page.sentences), page.points):
        if texts:
            yield _bullets(texts)
    for listing in page.listings:
        yield f"**{_sentence(listing.title)}**\n\n{_bullets(listing.sentences)}"
    if page.findings is not None and page.findings.is_ranked:
        yield from _ranked(page.findings, show_all=options.show_all)
    elif page.findings is not None:
        yield "\n".join(_remark(one) for one in page.findings.listed)
    for view in page.tables:
        if page.has_folded_tables:
            yield _folded(view)
        else:
            yield _open(view, view.caption if page.has_captions else "")
    if page.remarks:
        title = f"**{_sentence(page.remarks_title)}**\n\n" if page.remarks_title else ""
        yield title + _bullets(page.remarks)


def _bullets(texts: Iterable[str]) -> str:
    return "\n".join(f"- {_sentence(text)}" for text in texts)


def _remark(one: Priced) -> str:
    finding = one.finding
    title = _linked(_sentence(one.title), finding)
    return f"- **{title}**: {_sentence(finding.message)} *fix:* {_sentence(finding.fix)}"


def _ranked(found: Findings, *, show_all: bool) -> Iterator[str]:
    if not found.listed:
        yield "**Findings:** none"
        return
    shown = found.listed if show_all else found.listed[:MAX_FINDINGS]
    yield "\n".join(
        [
            "| | finding | cost | what | fix |",
            "|---|---|---:|---|---|",
            *(_finding_row(one) for one in shown),
        ]
    )
    if len(shown) < len(found.listed):
        yield f"and {len(found.listed) - len(shown)} more"


def _finding_row(one: Priced) -> str:
    finding = one.finding
    mark = _SEVERITY_MARKS[finding.severity.value]
    name = _linked(_cell(f"{finding.code} {finding.name}"), finding)
    message, fix = _sentence(finding.message), _sentence(finding.fix)
    return "| " + " | ".join((mark, name, one.cost or "–", message, fix)) + " |"


def _folded(view: TableView) -> str:
    caption = f" <sub>{_cell(view.caption)}</sub>" if view.caption else ""
    state = " open" if view.is_main else ""
    notes = f"\n\n{_bullets(view.notes)}" if view.notes else ""
    return (
        f"<details{state}><summary><b>{_cell(view.title)}</b>{caption}</summary>\n\n"
        f"{_table(view)}{notes}\n\n</details>"
    )


def _open(view: TableView, caption: str) -> str:
    shown = f" {_sentence(caption)}" if caption else ""
    notes = "".join(f"\n\n{_sentence(note)}" for note in view.notes)
    return f"**{_sentence(view.title)}**{shown}\n\n{_table(view)}{notes}"


def _table(view: TableView) -> str:
    """A table without its title and notes."""
    titles = " | ".join(_cell(column.title) for column in view.columns)
    rules = "|".join("---" if column.left else "---:" for column in view.columns)
    rows = [_row(row, strong=i in view.strong) for i, row in enumerate(view.rows)]
    return "\n".join([f"| {titles} |", f"|{rules}|", *rows])


def _row(row: tuple[Cell, ...], *, strong: bool) -> str:
    texts = [_drawn(cell) for cell in row]
    return "| " + " | ".join(f"**{t}**" if strong and t else t for t in texts) + " |"


def _drawn(cell: Cell) -> str:
    if isinstance(cell, Drawing):
        return f"`{plain(cell.draw(_DRAWING_CELLS))}`"
    return "█" * cell.length(_BAR_CELLS) if isinstance(cell, Bar) else _cell(cell)


def _linked(title: str, finding: Finding) -> str:
    """The title of a finding, linked to its rule's page if the finding has a web address.

    A saved report may contain any text as the address, so anything else is ignored.
    """
    return f"[{title}]({finding.docs_url})" if is_web_address(finding.docs_url) else title


def _cell(text: str) -> str:
    return markdown_text(shorten(plain(text[:_MAX_SENTENCE]), _MAX_CELL))


def _sentence(text: str) -> str:
    """A sentence with Markdown escaped, of bounded length."""
    return markdown_text(shorten(plain(text[:_MAX_SENTENCE]), _MAX_SENTENCE))
