"""The cost of communication per class of collectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from distprof.sections.collectives import CollectiveClass
from distprof.sections.parts import is_whole_capture, window_word
from distprof.sections.table import Column, TableView, counted, first_rows, rows_table
from distprof.units import format_bytes

if TYPE_CHECKING:
    from distprof.sections.report import Report

MAX_CLASSES_SHOWN = 8


def collectives_table(report: Report, *, show_all: bool) -> TableView | None:
    """Collectives by kind, group and size; the class with the most exposed time comes first."""
    classes = report.collectives.classes
    shown = first_rows(classes, MAX_CLASSES_SHOWN, show_all=show_all, noun="class", note="and {}")
    same_text = Counter(_rounded(c) for c in shown.rows)
    expected = any(c.expected_busbw_bytes_per_s for c in shown.rows)  # by a fabric profile
    return rows_table(
        "Collectives",
        (
            Column("kind", "kind", left=True),
            Column("group", _group_text, left=True, stretch=True),
            Column("bytes", lambda c: _size_text(c, is_alone=same_text[_rounded(c)] == 1)),
            Column("count", "count"),
            Column("exposed", "exposed_ns_per_step"),
            Column("duration", "duration_ns_median", wide_only=True),
            Column("wait", "wait_ns_median"),
            Column("transfer", "transfer_ns_median"),
            Column("algbw", "algbw_bytes_per_s", wide_only=True),
            Column("busbw", "busbw_bytes_per_s"),
            Column("expected", "expected_busbw_bytes_per_s", when=expected),
        ),
        shown,
        caption=f"count: in {_windows(report)}; exposed: mean per rank and {window_word(report)};"
        " other times: median per collective",
    )


def _windows(report: Report) -> str:
    if is_whole_capture(report):
        return "the whole capture"
    return counted(report.collectives.num_steps, "step")


def _rounded(c: CollectiveClass) -> Sequence[str | None]:
    return c.kind, c.axis, c.group, format_bytes(c.bytes)


def _size_text(c: CollectiveClass, *, is_alone: bool) -> str:
    """The size, exact to the byte if another row of this kind and group would look the same."""
    return format_bytes(c.bytes) if is_alone or c.bytes is None else f"{c.bytes:,} B"


def _group_text(c: CollectiveClass) -> str:
    name = c.axis or c.group or "group"
    return f"{name} ({c.group_size})" if c.group_size is not None else name
