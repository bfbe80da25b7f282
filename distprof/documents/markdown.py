"""The report as Markdown, for a pull-request comment or a CI step summary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from distprof.documentation import is_web_address
from distprof.documents.advice import MAX_FINDINGS_SHOWN, cost_text
from distprof.escape import markdown_text, plain, shorten
from distprof.formats import FINDINGS, RenderOptions
from distprof.rules.base import Finding
from distprof.sections.capture.show import headline
from distprof.sections.job.show import job_facts
from distprof.sections.report import Report
from distprof.sections.table import Bar, Cell, Drawing, TableView
from distprof.sections.tables import tables_of
from distprof.sections.time.show import waterfall_table
from distprof.sections.verdict import judge

MAX_BYTES = 60_000
"""GitHub refuses comments of more than 65,536 characters."""

_MAX_CELL = 120
_MAX_SENTENCE = 1_000
_BAR_CELLS = 20
_DRAWING_CELLS = 80
_SEVERITY_MARKS = {"error": "🔴", "warning": "🟠", "info": "🔵"}


def render(report: Report, options: RenderOptions) -> str:
    """The report as GitHub-flavoured Markdown of less than :data:`MAX_BYTES`.

    The end is cut if it does not fit, with a note that says so. With ``show_all`` nothing is cut.
    """
    return joined(_blocks(report, options), show_all=options.show_all)


def joined(parts: Iterable[str], *, show_all: bool) -> str:
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


def _blocks(report: Report, options: RenderOptions) -> Iterator[str]:
    verdict = judge(report)
    yield f"### {sentence(verdict.line)}"
    yield sentence(headline(report))
    sentences = (*job_facts(report), *verdict.why)
    if sentences:
        yield "\n".join(f"- {sentence(text)}" for text in sentences)
    if not options.sections or FINDINGS in options.sections:
        yield from _finding_blocks(report, options)
    shown_open = waterfall_table(report, show_all=options.show_all)
    views = tables_of(report, show_all=options.show_all, sections=options.sections)
    for view in views:
        yield _section(view, opened=shown_open is not None and view.title == shown_open.title)


def _finding_blocks(report: Report, options: RenderOptions) -> Iterator[str]:
    findings = report.findings
    if not findings:
        yield "**Findings:** none"
        return
    shown = findings if options.show_all else findings[:MAX_FINDINGS_SHOWN]
    yield "\n".join(
        [
            "| | finding | cost | what | fix |",
            "|---|---|---:|---|---|",
            *(_finding_row(finding, report) for finding in shown),
        ]
    )
    if len(shown) < len(findings):
        yield f"and {len(findings) - len(shown)} more"


def _finding_row(finding: Finding, report: Report) -> str:
    mark = _SEVERITY_MARKS[finding.severity.value]
    name = linked(_cell(f"{finding.code} {finding.name}"), finding)
    message, fix = sentence(finding.message), sentence(finding.fix)
    cells = (mark, name, cost_text(finding, report), message, fix)
    return "| " + " | ".join(cells) + " |"


def _section(view: TableView, *, opened: bool) -> str:
    caption = f" <sub>{_cell(view.caption)}</sub>" if view.caption else ""
    state = " open" if opened else ""
    notes = "\n".join(f"- {sentence(text)}" for text in view.notes)
    content = table(view) + (f"\n\n{notes}" if notes else "")
    return (
        f"<details{state}><summary><b>{_cell(view.title)}</b>{caption}</summary>\n\n"
        f"{content}\n\n</details>"
    )


def table(view: TableView) -> str:
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


def linked(title: str, finding: Finding) -> str:
    """The title of a finding, linked to its rule's page if the finding has a web address.

    A saved report may contain any text as the address, so anything else is ignored.
    """
    return f"[{title}]({finding.docs_url})" if is_web_address(finding.docs_url) else title


def _cell(text: str) -> str:
    return markdown_text(shorten(plain(text[:_MAX_SENTENCE]), _MAX_CELL))


def sentence(text: str) -> str:
    """A sentence with Markdown escaped, of bounded length."""
    return markdown_text(shorten(plain(text[:_MAX_SENTENCE]), _MAX_SENTENCE))
