"""The report on a terminal: verdict, evidence, findings, tables and the next commands."""

from __future__ import annotations

import io
import os
import re
import shlex
from collections.abc import Iterable, Iterator

import msgspec
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from distprof.documents.advice import MAX_FINDINGS_SHOWN, cost_text, gain_text, next_commands
from distprof.documents.step_bar import GROUPS, group_shares
from distprof.escape import plain, shorten, wrapped
from distprof.formats import FINDINGS, RenderOptions
from distprof.rules.base import Finding
from distprof.sections.capture.show import headline
from distprof.sections.job.show import job_facts
from distprof.sections.parts import mean_span_ns, parts_of, window_word
from distprof.sections.report import Report
from distprof.sections.shows import declared
from distprof.sections.table import Bar, Cell, Column, Drawing, TableView
from distprof.sections.tables import tables_of
from distprof.sections.verdict import judge
from distprof.terms import Severity
from distprof.units import format_duration, format_ratio

MIN_WIDTH = 20
WIDE = 100
_INDENT = 2
_MIN_STRETCH = 12
_BAR_CELLS = 24
_MIN_BAR = 6
_GAP = 2
_MAX_BAR = 96
MAX_BRIEF = 30
"""Lines of the short report."""

LEAST = 0.01
"""Gain, as a share of the step, below which the short report leaves out a finding."""

_MAX_NAME = 400  # longer names are cut before layout: a name in a trace may hold megabytes

_COLOR = re.compile(r"\x1b\[[0-9;]*m")

_SEVERITY_STYLES = {"error": "bold red", "warning": "bold yellow", "info": "cyan"}


def printed(blocks: Iterable[RenderableType], options: RenderOptions) -> str:
    """Blocks one below another, as text for a terminal."""
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
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip("\n").split("\n")) + "\n"


def head(report: Report, options: RenderOptions) -> RenderableType:
    """Verdict, evidence and findings as one rich renderable, also for notebooks."""
    return Group(*_head_blocks(report, options))


def render(report: Report, options: RenderOptions) -> str:
    """The report as text for a terminal of ``options.width`` columns.

    By default at most :data:`MAX_BRIEF` lines on 80 columns: the verdict, its evidence, the plan
    and what to do. Findings get shorter until the report fits.
    """
    if options.full or options.show_all or options.sections:
        return printed(_blocks(report, options), options)
    for detail in _DETAILS:
        text = printed(_brief_blocks(report, options, detail), options)
        if rows_of(text, options.width) <= MAX_BRIEF:
            break
    return text


def rows_of(text: str, width: int) -> int:
    """Terminal rows that a text takes, counting wrapped lines."""
    return sum(max(1, -(-cell_len(line) // max(width, 1))) for line in _uncoloured(text))


def _uncoloured(text: str) -> list[str]:
    return _COLOR.sub("", text).splitlines()


class _Detail(msgspec.Struct, frozen=True):
    """The level of detail of findings in the short report."""

    findings: int  # Number of findings.
    lines: int  # Lines of each message and fix, except those of the first finding.


_DETAILS = (_Detail(3, 3), _Detail(3, 2), _Detail(2, 2), _Detail(2, 1), _Detail(1, 1))


def _brief_blocks(
    report: Report, options: RenderOptions, detail: _Detail
) -> Iterator[RenderableType]:
    verdict = judge(report)
    yield Text(wrapped(plain(verdict.line), options.width), style="bold")
    yield Text()
    yield from _evidence_blocks(report, options)
    left_out = {make(report) for make in declared(report, "why") if not make.is_brief}
    for why in verdict.why:
        if why not in left_out:
            yield sentence(why, options.width)
    yield Text()
    yield from _brief_findings(report, options, verdict.line, detail)
    yield from _next_blocks(report, options)


def _evidence_blocks(report: Report, options: RenderOptions) -> Iterator[RenderableType]:
    yield sentence(headline(report), options.width, style="dim")
    for fact in job_facts(report):
        yield sentence(fact, options.width)
    if parts_of(report):
        yield _indented(_step_bar(report, min(options.width - _INDENT, _MAX_BAR)))
        yield _indented(_step_legend(report, options.width - _INDENT))


def _brief_findings(
    report: Report, options: RenderOptions, verdict: str, detail: _Detail
) -> Iterator[RenderableType]:
    """The first findings, without a message that repeats the verdict."""
    findings = report.findings
    if not findings:
        yield Text("Findings  none", style="bold")
        return
    yield Text("Findings", style="bold")
    room = options.width - _INDENT - 3
    shown = [finding for finding in findings if _is_worth_a_line(finding, report)]
    for number, finding in enumerate(shown[: detail.findings], start=1):
        yield _indented(_brief_title(number, finding, report))
        lines = None if number == 1 else detail.lines
        if finding.message != verdict:
            yield _indented(Text(_cut(wrapped(plain(finding.message), room), lines)), extra=3)
        yield _indented(_fix_text(finding, room, lines), extra=3)
    more = len(findings) - min(len(shown), detail.findings)
    if more > 0:
        yield sentence(f"and {more} more with --full", options.width, style="dim")


def _is_worth_a_line(finding: Finding, report: Report) -> bool:
    """Whether a finding is the first, or its gain is unknown or at least :data:`LEAST`."""
    gain = finding.recoverable_ns if finding.remaining_ns is None else finding.remaining_ns
    whole = report.plan.step_ns
    return finding is report.findings[0] or not whole or gain is None or gain >= LEAST * whole


def _brief_title(number: int, finding: Finding, report: Report) -> Text:
    """Number, rule and gain of the fix; the severity only if it is an error."""
    title = Text(f"{number:>2} ")
    title.append(plain(f"{finding.code} {finding.name}"), style="bold")
    if finding.severity is Severity.ERROR:
        title.append("  error", style=_SEVERITY_STYLES["error"])
    gain = gain_text(finding, report)
    return title.append(f"  {gain}" if gain else "")


def _cut(text: str, lines: int | None) -> str:
    """The first lines, with an ellipsis if there are more."""
    kept = text.split("\n")
    if lines is None or len(kept) <= lines:
        return text
    last, _, _ = kept[lines - 1].rpartition(" ")
    return "\n".join([*kept[: lines - 1], f"{last} …"])


def _blocks(report: Report, options: RenderOptions) -> Iterator[RenderableType]:
    if not options.sections:
        yield from _head_blocks(report, options)
    else:
        yield Text(wrapped(plain(judge(report).line), options.width), style="bold")
    if FINDINGS in options.sections:
        yield Text()
        yield from _finding_blocks(report, options)
    views = tables_of(report, show_all=options.show_all, sections=options.sections)
    for view in views:
        yield Text()
        yield from table_blocks(view, options.width)
    if options.sections and not views and options.sections != (FINDINGS,):
        yield Text()
        yield sentence(_nothing_found(report, options.sections), options.width)
    yield from _next_blocks(report, options)


def _nothing_found(report: Report, sections: tuple[str, ...]) -> str:
    """Why the sections are empty, with the reasons that their results give."""
    results = (getattr(report, name, None) for name in sections)
    reasons = [reason for result in results for reason in getattr(result, "unavailable", ())]
    return f"Nothing to show: {'; '.join(reasons) or 'this recording has no data for it.'}"


def _next_blocks(report: Report, options: RenderOptions) -> Iterator[RenderableType]:
    commands = next_commands(report, options)
    if not commands:
        return
    yield Text()
    yield Text("Next", style="bold")
    for command, purpose in commands:
        yield command_line(command, purpose, options.width)


def command_line(command: str, purpose: str, width: int) -> RenderableType:
    """A command on one line of any length, so that it can be copied; its purpose if it fits."""
    text = shorten(plain(command), _MAX_NAME)
    line = Text(" " * _INDENT + text, no_wrap=True, overflow="ignore")
    if line.cell_len + len(purpose) + 4 <= width:
        line.append(f"  # {purpose}", style="dim")
    return Group(line)  # a bare text would be wrapped


def _head_blocks(report: Report, options: RenderOptions) -> Iterator[RenderableType]:
    verdict = judge(report)
    yield Text(wrapped(plain(verdict.line), options.width), style="bold")
    yield Text()
    yield from _evidence_blocks(report, options)
    for why in verdict.why:
        yield sentence(why, options.width)
    yield Text()
    yield from _finding_blocks(report, options)


def _step_bar(report: Report, width: int) -> Text:
    """A mean step as one line of characters, each group in proportion to its time."""
    bar = Text(no_wrap=True)
    done, drawn = 0.0, 0
    for _, glyph, style, ratio in group_shares(report):
        done += ratio
        upto = Bar(ratio=done, key="").length(width)
        bar.append(glyph * (upto - drawn), style=style)
        drawn = upto
    return bar


def _step_legend(report: Report, width: int) -> Text:
    """The length of the step and the meaning of the bar's characters; labels are never broken."""
    span_ns = mean_span_ns(report)
    length = f"{format_duration(span_ns)} per {window_word(report)}: " if span_ns else ""
    legend = Text(length)
    used = len(length)
    for number, (label, glyph, style, ratio) in enumerate(group_shares(report)):
        text = f"{glyph} {label} {format_ratio(ratio)}"
        if number:
            fits = used + 2 + len(text) <= width
            legend.append("  " if fits else "\n")
            used = used + 2 if fits else 0
        legend.append(glyph, style=style)
        legend.append(text[1:])
        used += len(text)
    return legend


def _finding_blocks(report: Report, options: RenderOptions) -> Iterator[RenderableType]:
    findings = report.findings
    if not findings:
        yield Text("Findings  none", style="bold")
        return
    shown = findings if options.show_all else findings[:MAX_FINDINGS_SHOWN]
    yield Text("Findings", style="bold")
    for number, finding in enumerate(shown, start=1):
        yield from _finding(number, finding, report, options.width)
    if len(shown) < len(findings):
        left_out = len(findings) - len(shown)
        saved = shlex.quote(options.saved_as)
        where = f"distprof report {saved} --all" if options.saved_as else "shown by --all"
        more = f"and {left_out} more: {where}"
        yield sentence(more, options.width, style="dim")


def _finding(number: int, finding: Finding, report: Report, width: int) -> Iterator[RenderableType]:
    room = width - _INDENT - 3
    yield _indented(_finding_title(number, finding, report, width))
    yield _indented(Text(wrapped(plain(finding.message), room)), extra=3)
    yield _indented(_fix_text(finding, room, None), extra=3)


def _fix_text(finding: Finding, room: int, lines: int | None) -> Text:
    fix = Text(_cut(wrapped(f"fix: {plain(finding.fix)}", room), lines))
    fix.stylize("green", 0, len("fix:"))
    return fix


def _finding_title(number: int, finding: Finding, report: Report, width: int) -> Text:
    """Number, rule, severity, cost and confidence, on two lines if they do not fit on one."""
    title = Text(f"{number:>2} ")
    title.append(plain(f"{finding.code} {finding.name}"), style="bold")
    meta = Text(finding.severity.value, style=_SEVERITY_STYLES[finding.severity.value])
    if finding.cost_ns_per_step is not None or finding.recoverable_ns is not None:
        meta.append(f"  {cost_text(finding, report)}", style="not bold default")
    meta.append(f"  {finding.confidence.value}", style="not bold default dim")
    fits = _INDENT + title.cell_len + 2 + meta.cell_len <= width
    title.append("  " if fits else "\n   ")
    title.append_text(meta)
    return title


def table_blocks(view: TableView, width: int) -> Iterator[RenderableType]:
    """A table below its title, followed by its notes."""
    yield _table_title(view, width)
    kept, gap, dropped = _fitting(view, width - _INDENT, wide=width >= WIDE)
    yield _indented(_drawn(view, kept, gap, width - _INDENT))
    notes = (*view.notes, f"no room for: {', '.join(dropped)}") if dropped else view.notes
    for note in notes:
        yield sentence(f"· {shorten(note, _MAX_NAME)}", width, style="dim")


def _table_title(view: TableView, width: int) -> Text:
    title = Text(plain(view.title), style="bold")
    if view.caption:
        fits = len(view.title) + 2 + len(view.caption) <= width
        title.append("  " if fits else "\n  ")
        title.append(plain(view.caption), style="not bold dim")
    return title


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
    fixed = [
        i for i in kept if not (view.columns[i].stretch or _has_bars(view, i) or _is_drawn(view, i))
    ]
    room = width - sum(_natural_width(view, i) for i in fixed) - gap * (len(kept) - 1)
    for i in kept:
        _add_column(table, view.columns[i], max(room, _MIN_STRETCH))
    cells = min(_BAR_CELLS, max(room, _MIN_BAR))
    for number, row in enumerate(view.rows):
        style = "bold" if number in view.strong else ""
        table.add_row(*(_drawn_cell(row[i], cells, room) for i in kept), style=style)
    return table


def _has_bars(view: TableView, index: int) -> bool:
    return any(isinstance(row[index], Bar) for row in view.rows)


def _is_drawn(view: TableView, index: int) -> bool:
    return any(isinstance(row[index], Drawing) for row in view.rows)


def _least_width(view: TableView, index: int) -> int:
    """Least number of terminal columns that a table column needs."""
    natural, column = _natural_width(view, index), view.columns[index]
    if _has_bars(view, index) or _is_drawn(view, index):
        return _MIN_BAR
    return min(natural, _MIN_STRETCH) if column.stretch or column.wrap else natural


def _natural_width(view: TableView, index: int) -> int:
    """Terminal columns that the widest cell of a table column takes."""
    cells = [row[index] for row in view.rows]
    texts = [view.columns[index].title, *(c for c in cells if isinstance(c, str))]
    bar = _BAR_CELLS if _has_bars(view, index) else 0
    return max(bar, *(cell_len(plain(text[:_MAX_NAME])) for text in texts))


def _add_column(table: Table, column: Column, room: int) -> None:
    table.add_column(
        Text(column.title),
        justify="left" if column.left else "right",
        no_wrap=not column.wrap,
        overflow="fold" if column.wrap else "ellipsis",
        max_width=room if column.stretch else None,
    )


def _drawn_cell(cell: Cell, bar_cells: int, room: int) -> Text:
    if isinstance(cell, Drawing):
        return Text(plain(cell.draw(max(room, _MIN_BAR))))
    if isinstance(cell, Bar):
        glyph, style = _glyph(cell.key)
        return Text(glyph * cell.length(bar_cells), style=style)
    return Text(plain(cell[:_MAX_NAME]))


def _glyph(key: str) -> tuple[str, str]:
    for _, glyph, style, keys in GROUPS:
        if key in keys:
            return glyph, style
    return GROUPS[-1][1], GROUPS[-1][2]


def sentence(text: str, width: int, *, style: str = "") -> Padding:
    """A sentence, wrapped and with terminal control characters escaped."""
    return _indented(Text(wrapped(plain(text), width - _INDENT), style=style))


def _indented(block: RenderableType, *, extra: int = 0) -> Padding:
    return Padding(block, (0, 0, 0, _INDENT + extra), expand=False)
