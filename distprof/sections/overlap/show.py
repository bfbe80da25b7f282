"""How much communication overlaps with compute, by axis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from distprof.escape import short_ranks
from distprof.sections.overlap import AxisOverlap, RankOverlap
from distprof.sections.parts import parts_of, window_word
from distprof.sections.shares import has_all_members
from distprof.sections.table import Cell, Column, TableView
from distprof.units import format_duration, format_ratio

if TYPE_CHECKING:
    from distprof.sections.report import Report


def communication_sentence(report: Report) -> str:
    """How much communication overlaps with compute, and what the exposed rest consists of."""
    total = sum(rank.communication_ns for rank in report.overlap.ranks)
    if total <= 0:
        return ""
    hidden = sum(rank.overlapped_ns for rank in report.overlap.ranks)
    by_key = Counter({part.key: part.ns for part in parts_of(report)})
    wait = by_key["exposed_wait"] + by_key["exposed_p2p_wait"]
    transfer, unsplit = by_key["exposed_transfer"], by_key["exposed_comm_unsplit"]
    exposed = wait + transfer + unsplit
    only = "Only " if hidden < total / 2 else ""
    share = f"{only}{format_ratio(hidden / total)} of" if hidden else "No"
    text = f"{share} communication overlaps with compute"
    if exposed <= 0:
        return f"{text}."
    if unsplit > exposed / 2:
        return f"{text}; waiting and transfer cannot be separated in the exposed rest."
    caveat = "" if has_all_members(report.capture) else " or waiting for ranks not recorded"
    rest = f", {format_ratio(unsplit / exposed)} not separable" if unsplit else ""
    return (
        f"{text}; the exposed rest is {format_ratio(wait / exposed)} waiting for late ranks, "
        f"{format_ratio(transfer / exposed)} transfer{caveat}{rest}."
    )


def overlap_table(report: Report, *, show_all: bool) -> TableView | None:  # noqa: ARG001
    """Communication and its overlap with compute: all ranks, then by axis."""
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
            Column("axis", left=True, stretch=True),
            Column("communication"),
            Column("overlapped"),
            Column("exposed"),
            Column("overlap"),
            Column("ranks", left=True, wide_only=True),
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
