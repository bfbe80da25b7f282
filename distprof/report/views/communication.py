"""Communication: what hides it, what it costs by class, and who makes the others wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from distprof.analyzers.collectives import CollectiveClass
from distprof.analyzers.rows import AxisOverlap, RankOverlap
from distprof.report.escape import short_ranks
from distprof.report.model import Report
from distprof.report.parts import is_whole_capture, window_word
from distprof.report.verdict import culprits
from distprof.report.views.table import Cell, TableColumn, TableView, counted
from distprof.units import (
    format_bandwidth,
    format_bytes,
    format_duration,
    format_ratio,
)

__all__ = ["collectives_table", "overlap_table", "stragglers_table"]

MAX_CLASSES_SHOWN = 8
MAX_STRAGGLERS_SHOWN = 5


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


def collectives_table(report: Report, *, show_all: bool) -> TableView | None:
    """Collectives by kind, group and size, those with most exposed time first."""
    classes = report.collectives.classes
    if not classes:
        return None
    shown = classes if show_all else classes[:MAX_CLASSES_SHOWN]
    left_out = len(classes) - len(shown)
    notes = (f"and {counted(left_out, 'more class')}",) if left_out else ()
    expected = _expected_cells(shown)
    return TableView(
        title="Collectives",
        caption=f"count: in {_windows(report)}; exposed: mean per rank and {window_word(report)};"
        " others: median of one",
        columns=(
            TableColumn(title="kind", left=True),
            TableColumn(title="group", left=True, stretch=True),
            TableColumn(title="bytes"),
            TableColumn(title="count"),
            TableColumn(title="exposed"),
            TableColumn(title="duration", wide_only=True),
            TableColumn(title="wait"),
            TableColumn(title="transfer"),
            TableColumn(title="algbw", wide_only=True),
            TableColumn(title="busbw"),
            *((TableColumn(title="expected"),) if any(expected) else ()),
        ),
        rows=tuple(
            (*_class_cells(c, size), *more)
            for c, size, more in zip(shown, _sizes(shown), expected, strict=True)
        ),
        notes=notes,
    )


def _expected_cells(classes: Sequence[CollectiveClass]) -> list[tuple[Cell, ...]]:
    """What a fabric profile expects of each; nothing at all without a profile."""
    if not any(record.expected_busbw_bytes_per_s for record in classes):
        return [()] * len(classes)
    return [(format_bandwidth(record.expected_busbw_bytes_per_s),) for record in classes]


def stragglers_table(report: Report, *, show_all: bool) -> TableView | None:
    """Ranks by what they cost the others; only those with a pattern unless all is shown."""
    named = culprits(report)
    shown = report.stragglers.ranks if show_all else named[:MAX_STRAGGLERS_SHOWN]
    if not shown:
        return None
    notes = tuple(f"rank {r.rank}: {text}" for r in shown for text in r.evidence)
    if not show_all and len(named) > len(shown):
        more = counted(len(named) - len(shown), "more rank")
        ranks = short_ranks([r.rank for r in named[len(shown) :]])
        notes = (*notes, f"and {more}: {ranks}")
    return TableView(
        title="Stragglers",
        caption=f"lost: exposed wait of a typical other rank per {window_word(report)}",
        columns=(
            TableColumn(title="rank", left=True),
            TableColumn(title="lost"),
            TableColumn(title="share"),
            TableColumn(title="comes last"),
            TableColumn(title="pattern", left=True),
            TableColumn(title="cause", left=True),
            TableColumn(title="confidence"),
        ),
        rows=tuple(
            (
                str(r.rank),
                format_duration(r.lost_ns_per_step),
                format_ratio(r.share_of_step_ratio),
                format_ratio(r.late_ratio),
                r.pattern.value,
                r.cause.value.replace("_", " "),
                f"{100 * r.confidence:.0f} %",
            )
            for r in shown
        ),
        notes=notes,
    )


def _windows(report: Report) -> str:
    if is_whole_capture(report):
        return "the whole capture"
    return counted(report.collectives.num_steps, "step")


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


def _sizes(classes: Sequence[CollectiveClass]) -> list[str]:
    """Sizes of the classes; to the byte where two of one kind and group would look the same."""
    rounded = [(c.kind, c.axis, c.group, format_bytes(c.bytes)) for c in classes]
    seen = Counter(rounded)
    return [
        f"{c.bytes:,} B" if seen[key] > 1 and c.bytes is not None else key[-1]
        for c, key in zip(classes, rounded, strict=True)
    ]


def _class_cells(c: CollectiveClass, size: str) -> tuple[Cell, ...]:
    name = c.axis or c.group or "group"
    group = f"{name} ({c.group_size})" if c.group_size is not None else name
    return (
        c.kind,
        group,
        size,
        f"{c.count:,}",
        format_duration(c.exposed_ns_per_step),
        format_duration(c.duration_ns_median),
        format_duration(c.wait_ns_median),
        format_duration(c.transfer_ns_median),
        format_bandwidth(c.algbw_bytes_per_s),
        format_bandwidth(c.busbw_bytes_per_s),
    )
