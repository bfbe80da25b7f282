"""Communication: what hides it, what it costs by class, and who makes the others wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from distprof.escape import short_ranks
from distprof.sections.overlap.result import AxisOverlap, RankOverlap
from distprof.sections.parts import window_word
from distprof.sections.table import Cell, TableColumn, TableView
from distprof.units import format_duration, format_ratio

if TYPE_CHECKING:
    from distprof.sections.report import Report

__all__ = ["overlap_table"]


def overlap_table(report: Report, *, show_all: bool) -> TableView | None:  # noqa: ARG001
    """Communication and what computation hides of it: all ranks, then by axis."""
    ranks, axes = report.overlap.ranks, report.overlap.axes
    if not any(rank.communication_ns for rank in ranks):
        return None
    steps = max(report.waterfall.num_steps, 1)
    rows: list[tuple[Cell, ...]] = []
    if len(axes) != 1 or axes[0].communication_ns != sum(r.communication_ns for r in ranks):
        rows.append(
            ("all", *_overlap_cells(ranks, len(ranks), steps), short_ranks([r.rank for r in ranks]))
        )
    rows += [
        (axis.axis, *_overlap_cells((axis,), len(axis.ranks), steps), short_ranks(axis.ranks))
        for axis in axes
    ]
    return TableView(
        title="Overlap",
        caption=f"mean per rank and {window_word(report)}; axes can be busy at the same time",
        columns=(
            TableColumn(title="axis", left=True, stretch=True),
            TableColumn(title="communication"),
            TableColumn(title="hidden"),
            TableColumn(title="exposed"),
            TableColumn(title="overlap"),
            TableColumn(title="ranks", left=True, wide_only=True),
        ),
        rows=tuple(rows),
        strong=frozenset({0}) if len(rows) > 1 else frozenset(),
    )


def _overlap_cells(
    rows: Sequence[RankOverlap | AxisOverlap], num_ranks: int, num_steps: int
) -> tuple[Cell, ...]:
    communication = sum(row.communication_ns for row in rows)
    hidden = sum(row.overlapped_ns for row in rows)
    exposed = sum(row.exposed_comm_ns for row in rows)
    windows = max(num_ranks, 1) * num_steps
    return (
        format_duration(communication / windows),
        format_duration(hidden / windows),
        format_duration(exposed / windows),
        format_ratio(hidden / communication if communication else None),
    )
