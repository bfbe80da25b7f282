"""A page as Markdown, for a pull-request comment or a CI step summary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from distprof.documents.page import MAX_TASKS, Page, Priced, Task, ToDo
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
    """GitHub-flavoured Markdown, cut at :data:`MAX_BYTES` with a note unless all is shown."""
    blocks: list[str] = []
    room = MAX_BYTES - 200
    for block in _blocks(page, options):
        size = len(block.encode()) + 2
        if size > room and not options.show_all:
            blocks.append("_The rest does not fit here: see the report as text or JSON._")
            break
        blocks.append(block)
        room -= size
    return "\n\n".join(blocks) + "\n"


def _blocks(page: Page, options: RenderOptions) -> Iterator[str]:
    yield f"### {_sentence(page.verdict)}"
    if page.detail:
        yield _sentence(page.detail)
    if page.to_do and page.to_do.tasks:
        yield from _to_do(page.to_do, show_all=options.show_all)
    for text in (page.origin, *page.facts) if page.origin else page.facts:
        yield _sentence(text)
    for texts in ((*page.cautions, *page.sentences), page.points):
        if texts:
            yield _bullets(texts)
    if page.to_do and not page.to_do.tasks:
        yield "**Findings:** none"
    for listing in page.listings:
        yield f"**{_sentence(listing.title)}**\n\n{_bullets(listing.sentences)}"
    if page.remarked:
        yield "\n".join(_remark(one) for one in page.remarked)
    for view in page.tables:
        if page.has_folded_tables:
            yield _folded(view)
        else:
            caption = view.caption if page.has_captions else ""
            shown = f" {_sentence(caption)}" if caption else ""
            notes = "".join(f"\n\n{_sentence(note)}" for note in view.notes)
            yield f"**{_sentence(view.title)}**{shown}\n\n{_table(view)}{notes}"
    if page.remarks:
        title = f"**{_sentence(page.remarks_title)}**\n\n" if page.remarks_title else ""
        yield title + _bullets(page.remarks)


def _bullets(texts: Iterable[str]) -> str:
    return "\n".join(f"- {_sentence(text)}" for text in texts)


def _remark(one: Priced) -> str:
    finding = one.finding
    title = _linked(_sentence(one.title), finding)
    said = _sentence(f"{finding.headline}. {finding.message}")
    return f"- **{title}**: {said} *fix:* {_sentence(finding.fix)}"


def _to_do(to_do: ToDo, *, show_all: bool) -> Iterator[str]:
    """The plan and other findings, numbered."""
    if to_do.promise:
        yield f"**Plan:** {_sentence(to_do.promise + to_do.basis)}"
    shown = to_do.tasks if show_all else to_do.tasks[:MAX_TASKS]
    yield "\n".join(f"{number}. {_task(task)}" for number, task in enumerate(shown, 1))
    if len(shown) < len(to_do.tasks):
        yield f"and {len(to_do.tasks) - len(shown)} more"


def _task(task: Task) -> str:
    """A repair with its findings, or one finding."""
    if not task.change:
        return "".join(_found(one, task.effect) for one in task.found)
    head = f"**{_sentence(task.change)}**: {_sentence(task.effect)}"
    return "<br>".join([head, *(_found(one, "") for one in task.found)])


def _found(one: Priced, gain: str) -> str:
    finding = one.finding
    effect = f"costs {one.cost}" if one.cost else gain
    mark = _SEVERITY_MARKS[finding.severity.value]
    name = _linked(_cell(f"{finding.code} {finding.name}"), finding)
    parts = [f"{mark} {name}{f' ({_sentence(effect)})' if effect else ''}"]
    if not one.is_verdict:
        parts.append(f"**{_sentence(finding.headline)}.** {_sentence(finding.message)}")
    return "<br>".join([*parts, f"*Fix:* {_sentence(finding.fix)}"])


def _folded(view: TableView) -> str:
    caption = f" <sub>{_cell(view.caption)}</sub>" if view.caption else ""
    state = " open" if view.is_main else ""
    notes = f"\n\n{_bullets(view.notes)}" if view.notes else ""
    return (
        f"<details{state}><summary><b>{_cell(view.title)}</b>{caption}</summary>\n\n"
        f"{_table(view)}{notes}\n\n</details>"
    )


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
    """The title, linked to the rule's page: a saved report may contain any text as its address."""
    return f"[{title}]({finding.docs_url})" if is_web_address(finding.docs_url) else title


def _cell(text: str) -> str:
    return markdown_text(shorten(plain(text[:_MAX_SENTENCE]), _MAX_CELL))


def _sentence(text: str) -> str:
    """A sentence with Markdown escaped, of bounded length."""
    return markdown_text(shorten(plain(text[:_MAX_SENTENCE]), _MAX_SENTENCE))
