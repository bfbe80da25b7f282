"""A page on a terminal."""

from __future__ import annotations

import io
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from distprof.documents.page import Page, Share, StepBar, Task, ToDo, group_of
from distprof.escape import plain, shorten, wrapped
from distprof.formats import RenderOptions
from distprof.rules.base import Finding
from distprof.sections.table import Bar, Cell, Drawing, TableView
from distprof.terms import Severity

MIN_WIDTH = 20
WIDE = 100
_INDENT = 2
_MIN_STRETCH = 12
_BAR_CELLS = 24
_MIN_BAR = 6
_GAP = 2
_MAX_BAR = 96
_LEAST_SHARE = 0.01  # of the step, for a place in a small legend if it is not drawn
_FIX_LINES = 3  # of the first fix, in any text
MAX_BRIEF = 20
"""Lines of a short text."""
_MAX_NAME = 400  # longer names are cut before layout: a name in a trace may hold megabytes
_MAX_CELL = 4_000  # a cell may list many names
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_SEVERITY_STYLES = {"error": "bold red", "warning": "bold yellow", "info": "cyan"}


def fitting_text(pages: Iterable[Page], options: RenderOptions) -> str:
    """The first page, longest first, that fits on a terminal, or else the last, as text."""
    written = ""
    for page in pages:
        blocks = page_blocks(page, options)
        out = io.StringIO()
        console = Console(
            file=out,
            width=max(options.width, MIN_WIDTH),
            force_terminal=options.color,
            no_color=not options.color,
            color_system="standard" if options.color else None,
            legacy_windows=False,
            markup=False,
            highlight=False,
            emoji=False,
            _environ={} if options.color else os.environ,
        )
        for block in blocks:
            console.print(block, crop=False)
        written = (
            "\n".join(line.rstrip() for line in out.getvalue().rstrip("\n").split("\n")) + "\n"
        )
        if rows_of(written, options.width) <= MAX_BRIEF:
            break
    return written


def rows_of(text: str, width: int) -> int:
    """Terminal rows that a text takes, counting wrapped lines."""
    return sum(
        max(1, -(-cell_len(line) // max(width, 1))) for line in _COLOR.sub("", text).splitlines()
    )


def page_blocks(page: Page, options: RenderOptions) -> Iterator[RenderableType]:
    """The blocks of a page, one below another."""
    width = options.width
    yield Text(wrapped(plain(page.verdict), width), style="bold")
    if page.detail:
        yield Text(wrapped(plain(page.detail), width))
    if page.step is not None:
        yield Text(f"{' ' * _INDENT}{page.step.drawn}".rstrip())
        yield from map(_indented, _step_drawn(page.step, width - _INDENT))
    has_tasks = page.to_do and page.to_do.tasks
    if page.to_do and has_tasks:
        yield from _to_do(page.to_do, options)
    yield from _basis(page, width)
    if page.to_do and not has_tasks:  # what to do is then in the sentences, if anything is
        yield Text()
        yield Text("Findings  none", style="bold")
    for point in page.points:
        yield Text()
        yield sentence(point, width)
    for listing in page.listings:
        yield Text()
        yield Text(listing.title, style="bold")
        for number, item in enumerate(listing.sentences, 1):
            mark = f"{number}. " if listing.is_numbered else "· "
            yield sentence(f"{mark}{item}", width)
    for one in page.remarked:
        yield Text()
        yield Text(wrapped(plain(one.title), width), style="bold")
        yield sentence(f"{one.finding.headline}. {one.finding.message}", width)
        yield sentence(f"fix: {one.finding.fix}", width)
    for view in page.tables:
        yield Text()
        yield from _table_blocks(view, width)
    if page.no_tables:
        yield Text()
        yield sentence(page.no_tables, width)
    if page.remarks and page.remarks_title:
        yield Text()
        yield Text(page.remarks_title, style="bold")
    for remark in page.remarks:
        yield sentence(f"· {remark}", width, style="dim")
    if page.commands:
        yield Text()
        yield Text("Next", style="bold")
    for command, purpose in page.commands:
        text = shorten(plain(command), _MAX_NAME)
        line = Text(" " * _INDENT + text, no_wrap=True, overflow="ignore")
        if line.cell_len + len(purpose) + 4 <= width:
            line.append(f"  # {purpose}", style="dim")
        yield Group(line)  # a bare text would be wrapped


def _basis(page: Page, width: int) -> Iterator[RenderableType]:
    """Where the result comes from: origin, facts, cautions, sentences."""
    if page.origin or page.sentences:
        yield Text()
    for fact in (page.origin, *page.facts) if page.origin else page.facts:
        yield sentence(fact, width, style="dim")
    for said in (*page.cautions, *page.sentences):
        yield sentence(said, width)


def _step_drawn(step: StepBar, width: int) -> Iterator[Text]:
    """One step of some ranks in time, or else the mean step, and the shares of its groups."""
    lines = tuple(_strips(step, width)) if step.strips else (_bar(step, width),)
    yield from lines
    labels = [(share, share.text) for share in step.shares]
    if len(step.length) + sum(len(label) + 4 for _, label in labels) > width:
        drawn = "".join(line.plain for line in lines)
        labels = [
            (one, one.short)
            for one in step.shares
            if one.ratio >= _LEAST_SHARE or one.group.glyph in drawn
        ]
    yield _legend(step, labels, width)


def _strips(step: StepBar, width: int) -> Iterator[Text]:
    names = [f"rank {strip.rank} " for strip in step.strips]
    room = max(map(len, names))
    for strip, name in zip(step.strips, names, strict=True):
        line = Text(name.ljust(room), no_wrap=True)
        for group in strip.cells(max(min(width, _MAX_BAR) - room, 1)):
            line.append(group.glyph if group else " ", style=group.style if group else "")
        yield line


def _bar(step: StepBar, width: int) -> Text:
    bar, done, drawn = Text(no_wrap=True), 0.0, 0
    for share in step.shares:
        done += share.ratio
        upto = Bar(ratio=done, key="").length(min(width, _MAX_BAR))
        bar.append(share.group.glyph * (upto - drawn), style=share.group.style)
        drawn = upto
    return bar


def _legend(step: StepBar, labels: Sequence[tuple[Share, str]], width: int) -> Text:
    """Glyph and label of each group; a label never breaks."""
    legend = Text(f"{step.length}: ")
    used = len(legend)
    for number, (share, label) in enumerate(labels):
        length = len(label) + 2
        if number:
            fits = used + 2 + length <= width
            legend.append("  " if fits else "\n")
            used = used + 2 if fits else 0
        legend.append(share.group.glyph, style=share.group.style)
        legend.append(f" {label}")
        used += length
    return legend


def _to_do(to_do: ToDo, options: RenderOptions) -> Iterator[RenderableType]:
    """The plan and other findings, numbered."""
    yield Text()
    limits, width = to_do.limits, options.width
    title = Text("Findings", style="bold")
    if to_do.promise:
        plan = wrapped(f"plan: {to_do.promise}{to_do.basis}", width - _INDENT)
        _append(title, plan.replace("\n", "\n  "), width, indent=_INDENT)
    yield title
    shown = to_do.tasks if options.show_all else to_do.shown
    for number, task in enumerate(shown, start=1):
        if limits is None:
            yield from _whole_task(number, task, width)
        else:
            lines = limits.lines if number > 1 else min(_FIX_LINES, limits.tasks + 1)
            yield from _short_task(number, task, width, lines)
    if to_do.num_unseen and len(shown) == len(to_do.shown):
        more = ": shown by --all" if limits is None else " with --full"
        if to_do.all_by or (options.saved_as and limits is None):
            more = f": {to_do.all_by or f'distprof report {shlex.quote(options.saved_as)} --all'}"
        yield sentence(f"and {to_do.num_unseen} more{more}", width, style="dim")


def _short_task(number: int, task: Task, width: int, lines: int | None) -> Iterator[RenderableType]:
    """A task in brief: what changes or what is wrong, effect and code, then the fix."""
    first = task.found[0] if task.found else None
    is_said = first is None or first.is_verdict
    what = task.change or (first.finding.name if first and is_said else "")
    title = Text(f"{number}. ")
    title.append(plain(what or (first.finding.headline if first else "")), style="bold")
    codes = " ".join(dict.fromkeys(one.finding.code for one in task.found))
    errors = [one for one in task.found if one.finding.severity is Severity.ERROR]
    if errors:
        _append(title, "error", width - _INDENT, style=_SEVERITY_STYLES["error"])
    _append(title, plain(f"{task.effect}  {codes}".strip()), width - _INDENT)
    yield _indented(title)
    if first is None or lines == 0:
        return
    if task.change and not is_said:
        yield _indented(Text(wrapped(plain(first.finding.headline), width - 5)), extra=3)
    yield _fix(first.finding, width, lines=lines)


def _whole_task(number: int, task: Task, width: int) -> Iterator[RenderableType]:
    """A task with the evidence of all of its findings."""
    if task.change:
        title = Text(f"{number}. ")
        title.append(plain(task.change), style="bold")
        yield _indented(_append(title, plain(task.effect), width - _INDENT))
    for one in task.found:
        severity = one.finding.severity.value
        title = Text("   " if task.change else f"{number}. ")
        title.append(plain(f"{one.finding.code} {one.finding.name}"), style="bold")
        meta = Text(severity, style=_SEVERITY_STYLES[severity])
        if one.cost:
            meta.append(f"  {one.cost}", style="not bold default")
        meta.append(f"  {one.finding.confidence.value}", style="not bold default dim")
        yield _indented(_append(title, meta, width - _INDENT))
        if not one.is_verdict:
            said = f"{one.finding.headline}. {one.finding.message}"
            yield _indented(Text(wrapped(plain(said), width - 5)), extra=3)
        yield _fix(one.finding, width)


def _fix(finding: Finding, width: int, *, lines: int | None = None) -> RenderableType:
    fix = Text(_cut(wrapped(f"fix: {plain(finding.fix)}", width - _INDENT - 3), lines))
    fix.stylize("green", 0, len("fix:"))
    return _indented(fix, extra=3)


def _append(
    title: Text, more: str | Text, width: int, *, indent: int = 3, style: str = "not bold"
) -> Text:
    """``title``, followed by more text on its line if it fits, else on the next."""
    if not more:
        return title
    added = Text(more, style=style) if isinstance(more, str) else more
    last = title.plain.rpartition("\n")[2]
    fits = cell_len(last) + 2 + added.cell_len <= width
    if fits:
        return title.append("  ").append_text(added)
    end = 0
    for line in wrapped(added.plain, width - indent).split("\n"):
        start = added.plain.index(line, end)
        end = start + len(line)
        title.append("\n" + " " * indent).append_text(added[start:end])
    return title


def _cut(text: str, lines: int | None) -> str:
    """The first lines, up to the end of a sentence if that is most of them, else to a word's."""
    kept = text.split("\n")
    if lines is None or len(kept) <= lines:
        return text
    whole = "\n".join(kept[:lines])
    end = whole.rfind(". ") + 1
    return f"{whole[:end] if 2 * end > len(whole) else whole.rpartition(' ')[0]} …"


def _table_blocks(view: TableView, width: int) -> Iterator[RenderableType]:
    """A table below its title, followed by its notes."""
    title = Text(plain(view.title), style="bold")
    if view.caption:
        fits = len(view.title) + 2 + len(view.caption) <= width
        title.append("  " if fits else "\n  ")
        title.append(plain(view.caption), style="not bold dim")
    yield title
    kept, gap, dropped = _fitting(view, width - _INDENT, wide=width >= WIDE)
    yield _indented(_drawn(view, kept, gap, width - _INDENT))
    notes = (*view.notes, f"no room for: {', '.join(dropped)}") if dropped else view.notes
    for note in notes:
        yield sentence(f"· {shorten(note, _MAX_NAME)}", width, style="dim")


def _fitting(view: TableView, width: int, *, wide: bool) -> tuple[list[int], int, list[str]]:
    """Columns to draw, the gap between them, and titles of columns that do not fit.

    Numbers are never cut: columns move closer together, then the last ones are left out.
    """
    kept = [i for i, column in enumerate(view.columns) if wide or not column.wide_only]
    least = {i: _least_width(view, i) for i in kept}
    dropped: list[str] = []
    for gap in (_GAP, 1):
        if sum(least[i] + gap for i in kept) - gap <= width:
            return kept, gap, dropped
    while len(kept) > 1 and sum(least[i] + 1 for i in kept) - 1 > width:
        dropped.insert(0, view.columns[kept.pop()].title)
    return kept, 1, [title for title in dropped if title]


def _drawn(view: TableView, kept: list[int], gap: int, width: int) -> Table:
    named = any(view.columns[i].title for i in kept)
    table = Table(
        box=None, show_header=named, pad_edge=False, padding=(0, gap, 0, 0), header_style="dim"
    )
    fixed = [i for i in kept if not (view.columns[i].stretch or _is_drawn(view, i))]
    room = width - sum(_natural_width(view, i) for i in fixed) - gap * (len(kept) - 1)
    for i in kept:
        column = view.columns[i]
        table.add_column(
            Text(column.title),
            justify="left" if column.left else "right",
            no_wrap=not column.wrap,
            overflow="fold" if column.wrap else "ellipsis",
            max_width=max(room, _MIN_STRETCH) if column.stretch else None,
        )
    cells = min(_BAR_CELLS, max(room, _MIN_BAR))
    for number, row in enumerate(view.rows):
        style = "bold" if number in view.strong else ""
        table.add_row(*(_drawn_cell(row[i], cells, room) for i in kept), style=style)
    return table


def _is_drawn(view: TableView, index: int) -> bool:
    return any(isinstance(row[index], Bar | Drawing) for row in view.rows)


def _least_width(view: TableView, index: int) -> int:
    """Least number of terminal columns that a table column needs."""
    natural, column = _natural_width(view, index), view.columns[index]
    if _is_drawn(view, index):
        return _MIN_BAR
    return min(natural, _MIN_STRETCH) if column.stretch or column.wrap else natural


def _natural_width(view: TableView, index: int) -> int:
    """Terminal columns that the widest cell of a table column takes."""
    cells = [row[index] for row in view.rows]
    texts = [view.columns[index].title, *(c for c in cells if isinstance(c, str))]
    bar = _BAR_CELLS if any(isinstance(cell, Bar) for cell in cells) else 0
    return max(bar, *(cell_len(plain(shorten(text, _MAX_CELL))) for text in texts))


def _drawn_cell(cell: Cell, bar_cells: int, room: int) -> Text:
    if isinstance(cell, Drawing):
        return Text(plain(cell.draw(max(room, _MIN_BAR))))
    if isinstance(cell, Bar):
        group = group_of(cell.key)
        return Text(group.glyph * cell.length(bar_cells), style=group.style)
    return Text(plain(shorten(cell, _MAX_CELL)))


def sentence(text: str, width: int, *, style: str = "") -> Padding:
    """A sentence, wrapped and with terminal control characters escaped."""
    return _indented(Text(wrapped(plain(text), width - _INDENT), style=style))


def _indented(block: RenderableType, *, extra: int = 0) -> Padding:
    return Padding(block, (0, 0, 0, _INDENT + extra), expand=False)
