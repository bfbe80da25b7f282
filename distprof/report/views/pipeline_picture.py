"""One step of a pipeline as lines of text, a line for each rank.

A character is a stretch of time and shows what the rank did for most of it. Forward and backward
are told apart without colour: digits and letters.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from distprof.analyzers.pipeline.rows import PictureRow, PipelineGroup
from distprof.report.model import Report
from distprof.report.views.table import Drawing, TableColumn, TableView
from distprof.units import format_duration, name_ranks

__all__ = ["draw_line", "pipeline_picture"]

MAX_LINES = 16
IDLE = "·"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_WEIGHT = "backward_weight"
_CROWDED = {"forward": ">", _WEIGHT: "="}
_LEGEND = (
    "digits: forward of a micro-batch (its last digit); letters: backward (a is micro-batch 0); "
    "capitals: the weights' part of it; dots: idle"
)
_CROWDED_LEGEND = ">: forward; <: backward; =: the weights' part of it; dots: idle"


def pipeline_picture(report: Report, *, show_all: bool) -> TableView | None:
    """The schedule of the first pipeline, one step of median length."""
    groups = [group for group in report.pipeline.groups if group.picture]
    if not groups:
        return None
    group = groups[0]
    lines = _lines(group, show_all=show_all)
    span = max((row.end_ns for row in group.picture), default=0)
    crowded = _is_crowded(group, span)
    left_out = len(group.ranks) - len(lines)
    notes = [f"{name_ranks(group.ranks)}, {format_duration(span)}"]
    notes.append(_CROWDED_LEGEND if crowded else _LEGEND)
    if left_out:
        notes.append(f"{left_out} more ranks are not drawn")
    if not group.comparable_clocks:
        notes.append("every rank begins at its own first work: clocks cannot be compared")
    return TableView(
        title="Schedule",
        caption="one step of the pipeline, time from left to right",
        columns=(TableColumn(title="rank"), TableColumn(title="", left=True)),
        rows=tuple(
            (str(rank), Drawing(partial(draw_line, rows, span, crowded=crowded)))
            for rank, rows in lines.items()
        ),
        notes=tuple(notes),
    )


def _lines(group: PipelineGroup, *, show_all: bool) -> dict[int, list[PictureRow]]:
    """Rows of each rank that is drawn, in the order of positions."""
    rows: dict[int, list[PictureRow]] = {}
    for row in group.picture:
        rows.setdefault(row.rank, []).append(row)
    ranks = list(rows)
    if show_all or len(ranks) <= MAX_LINES:
        return rows
    places = np.rint(np.linspace(0, len(ranks) - 1, MAX_LINES)).astype(int).tolist()
    return {ranks[place]: rows[ranks[place]] for place in places}


def _is_crowded(group: PipelineGroup, span_ns: int) -> bool:
    """Whether a usual slot is narrower than a character of a line of 70."""
    lengths = [row.end_ns - row.start_ns for row in group.picture]
    return span_ns > 0 and float(np.median(lengths)) * 70 < 0.8 * span_ns


def draw_line(rows: Sequence[PictureRow], span_ns: int, width: int, *, crowded: bool) -> str:
    """One rank's step in ``width`` characters.

    Args:
        rows: Its slots.
        span_ns: What the whole width stands for.
        width: Characters.
        crowded: Whether micro-batches are too many to be told apart.
    """
    if span_ns <= 0 or width <= 0:
        return IDLE * max(width, 0)
    edges = np.linspace(0, span_ns, width + 1)
    best = np.full(width, (edges[1] - edges[0]) / 2)
    line = [IDLE] * width
    for row in rows:
        low = min(max(int(row.start_ns * width // span_ns), 0), width - 1)
        high = min(max(int(-(-row.end_ns * width // span_ns)), low + 1), width)
        part = np.minimum(edges[low + 1 : high + 1], row.end_ns)
        part = part - np.maximum(edges[low:high], row.start_ns)
        for cell in (np.flatnonzero(part > best[low:high]) + low).tolist():
            line[cell] = _glyph(row, crowded=crowded)
        best[low:high] = np.maximum(best[low:high], part)
    return "".join(line)


def _glyph(row: PictureRow, *, crowded: bool) -> str:
    if crowded:
        return _CROWDED.get(row.kind, "<")
    if row.kind == "forward":
        return str(row.micro_batch % 10)
    letter = _LETTERS[row.micro_batch % len(_LETTERS)]
    return letter.upper() if row.kind == _WEIGHT else letter
