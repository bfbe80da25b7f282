"""Communication: what hides it, what it costs by class, and who makes the others wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from distprof.sections.collectives.result import CollectiveClass
from distprof.sections.parts import is_whole_capture, window_word
from distprof.sections.table import Cell, TableColumn, TableView, counted
from distprof.units import format_bandwidth, format_bytes, format_duration

if TYPE_CHECKING:
    from distprof.sections.report import Report

__all__ = ["collectives_table"]

MAX_CLASSES_SHOWN = 8


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


def _windows(report: Report) -> str:
    if is_whole_capture(report):
        return "the whole capture"
    return counted(report.collectives.num_steps, "step")


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
