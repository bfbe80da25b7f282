"""Where the time went: the waterfall of a mean step, and each rank's breakdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from distprof.sections.parts import Part, is_whole_capture, parts_of, window_word
from distprof.sections.table import Bar, Cell, TableColumn, TableView, folded_ranks
from distprof.units import format_duration, format_parts, format_ratio

if TYPE_CHECKING:
    from distprof.sections.report import Report

__all__ = ["breakdown_table", "waterfall_table"]

SMALL_RATIO = 0.0005
_BREAKDOWN_PARTS = ("computation_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns")


def waterfall_table(report: Report, *, show_all: bool) -> TableView | None:
    """A mean step as a sum of its parts; parts of no length are left out unless all is shown."""
    parts = parts_of(report)
    if not parts:
        return None
    shown = list(parts) if show_all else _worth_showing(parts)
    texts, total = format_parts([part.ns for part in shown])
    rows: list[tuple[Cell, ...]] = [
        (part.label, text, format_ratio(part.ratio), Bar(ratio=part.ratio, key=part.key))
        for part, text in zip(shown, texts, strict=True)
    ]
    rows.append(("sum", total, format_ratio(1.0), ""))
    return TableView(
        title="Where the capture goes" if is_whole_capture(report) else "Where a step goes",
        caption=_mean_of(report),
        columns=(
            TableColumn(title="part", left=True),
            TableColumn(title="time"),
            TableColumn(title="share"),
            TableColumn(title="", left=True),
        ),
        rows=tuple(rows),
        strong=frozenset({len(rows) - 1}),
    )


def _worth_showing(parts: tuple[Part, ...]) -> list[Part]:
    """Parts that are there; several that are too small to matter become one, to keep the sum."""
    there = [part for part in parts if part.ns > 0 or part.key == "computation"]
    small = [p for p in there if p.ratio < SMALL_RATIO and p.key != "computation"]
    if len(small) < 2:
        return there
    rest = Part(
        key="other",
        label="other",
        ns=sum(part.ns for part in small),
        ratio=sum(part.ratio for part in small),
    )
    return [*(part for part in there if part not in small), rest]


def breakdown_table(report: Report, *, show_all: bool) -> TableView | None:
    """Each rank's mean step: computation, exposed communication and copies, idle."""
    ranks = report.breakdown.ranks
    if not ranks or (len(ranks) == 1 and not show_all):
        return None  # one rank's breakdown is the waterfall above
    windows = max(report.waterfall.num_steps, 1)
    values = [
        (r.span_ns / windows, *(getattr(r, field) / windows for field in _BREAKDOWN_PARTS))
        for r in ranks
    ]
    return TableView(
        title="Breakdown by rank",
        caption=f"per {window_word(report)}; the parts add up to the span",
        columns=(
            TableColumn(title="rank", left=True),
            TableColumn(title="span"),
            *(
                column
                for title in ("computation", "exposed comm", "copies", "idle")
                for column in (TableColumn(title=title), TableColumn(title="%", wide_only=True))
            ),
        ),
        rows=folded_ranks([r.rank for r in ranks], values, _breakdown_cells, show_all=show_all),
    )


def _breakdown_cells(values: Sequence[float | None]) -> tuple[Cell, ...]:
    span, *parts = values
    cells: list[Cell] = [format_duration(span)]
    for part in parts:
        cells.append(format_duration(part))
        cells.append(format_ratio(part / span) if part is not None and span else "–")
    return tuple(cells)


def _mean_of(report: Report) -> str:
    ranks, steps = report.waterfall.num_ranks, report.waterfall.num_steps
    of_ranks = f"{ranks} ranks" if ranks > 1 else ""
    of_steps = f"{steps} steps" if steps > 1 and not is_whole_capture(report) else ""
    over = " and ".join(text for text in (of_ranks, of_steps) if text)
    return f"mean of {over}" if over else ""
