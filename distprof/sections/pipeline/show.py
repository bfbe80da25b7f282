"""Pipeline parallelism: the bubble, each stage's work, and other schedules."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from distprof.artefacts.record import grouped
from distprof.escape import short_ranks
from distprof.sections.base import VerdictText
from distprof.sections.pipeline import PictureRow, PipelineGroup, PipelineResult
from distprof.sections.table import Column, Drawing, TableView, counted, rows_table
from distprof.units import fold_ranks, format_duration, format_ratio, name_ranks

if TYPE_CHECKING:
    from distprof.sections.report import Report

MAX_GROUPS = 4
MAX_STAGES = 16
MAX_PREDICTIONS = 5

_PARTS = (
    ("warm_up_drain_ns", "warm-up and drain", "this order with equal stages"),
    ("imbalance_ns", "unequal stages", "added by the busiest stage"),
    ("variation_ns", "uneven micro-batches", "some take longer on the same stage"),
    ("exposed_p2p_ns", "messages", "waiting after they were sent"),
    ("host_ns", "CPU and other", "late launches, stalls inside slots"),
)


def bubble_table(report: Report, *, show_all: bool) -> TableView | None:
    """Bubble of each pipeline shape, split into causes."""
    groups = report.pipeline.groups
    if not groups:
        return None
    shown = groups if show_all else groups[:MAX_GROUPS]
    rows = [row for group in shown for row in _bubble_rows(group)]
    notes = [note for group in shown for note in (_source(group), *group.notes)]
    if len(shown) < len(groups):
        notes.append(f"and {counted(len(groups) - len(shown), 'more pipeline')} of other shapes")
    return TableView(
        title="Pipeline bubble",
        caption="mean per step; idle time of the mean rank",
        columns=(
            Column("", left=True),
            Column("time"),
            Column("share"),
            Column("", left=True, stretch=True),
        ),
        rows=tuple(rows),
        notes=tuple(dict.fromkeys(notes)),
        strong=frozenset(i for i, row in enumerate(rows) if not row[0].startswith("  ")),
    )


def _bubble_rows(group: PipelineGroup) -> list[tuple[str, str, str, str]]:
    span = group.span_ns or 0
    rows = [
        (
            f"{group.schedule}, ranks {fold_ranks(group.ranks)}",
            format_duration(group.idle_ns),
            format_ratio(group.bubble_fraction),
            f"of {format_duration(group.span_ns)}; {_shape(group)}",
        )
    ]
    for name, label, meaning in _PARTS:
        part = getattr(group, name)
        if part is not None:
            share = format_ratio(part / span) if span else "–"
            rows.append((f"  {label}", format_duration(part), share, meaning))
    if group.ideal_bubble_fraction is not None:
        how = {"replay": "this order, equal stages"}.get(group.ideal_source or "", "(P−1)/(VM+P−1)")
        rows.append(("  ideal", "", format_ratio(group.ideal_bubble_fraction), how))
    return rows


def _shape(group: PipelineGroup) -> str:
    per_rank = f" ({group.virtual_stages} per rank)" if group.virtual_stages > 1 else ""
    return f"{group.stages} stages{per_rank}, M = {group.num_micro_batches}"


def _source(group: PipelineGroup) -> str:
    pipelines = len(group.replicas)
    median = f"; median of {pipelines} pipelines of this shape" if pipelines > 1 else ""
    return f"from {group.source}, {group.confidence.value}{median}"


def pipeline_table(report: Report, *, show_all: bool) -> TableView | None:
    """Work of each stage."""
    result = report.pipeline
    if not result.positions:
        stages = [stage for group in result.groups[:1] for stage in group.stages_detail]
        if not stages:
            return None
        limiting = result.groups[0].limiting_stage
        shown = stages if show_all else stages[:MAX_STAGES]
        left_out = len(stages) - len(shown)
        return rows_table(
            "Pipeline",
            (
                Column("stage", "stage"),
                Column("rank", "rank"),
                Column("work", "work_ns_per_step"),
                Column("forward", "forward_ns"),
                Column("backward", "backward_ns"),
                Column("idle", "bubble_fraction"),
                Column("in flight", "in_flight", form="id"),
                Column("", lambda stage: "limits" if stage.stage == limiting else "", left=True),
            ),
            shown,
            caption="mean per step; work excludes waiting for other stages",
            notes=(f"and {counted(left_out, 'more stage')}",) if left_out else (),
        )
    in_flight = {
        stage.stage: stage.in_flight for group in result.groups[:1] for stage in group.stages_detail
    }
    return rows_table(
        "Pipeline",
        (
            Column("stage", lambda position: ", ".join(map(str, position.stages)), left=True),
            Column("ranks", "ranks", left=True),
            Column("micro-batches", lambda position: f"{position.num_micro_batches:g}"),
            Column("work", "work_ns_per_step"),
            Column("each", "work_ns_per_micro_batch"),
            Column("over others", "excess_ratio"),
            Column("waits", lambda position: _waits(result, position.ranks), form="ns"),
            Column(
                "in flight",
                lambda position: _in_flight([in_flight.get(s) for s in position.stages]),
            ),
        ),
        result.positions,
        caption="mean per step; work excludes waiting for other stages",
    )


def _in_flight(numbers: list[int | None]) -> str:
    known = [str(number) for number in numbers if number is not None]
    return ", ".join(known) if known else "–"


def _waits(result: PipelineResult, ranks: tuple[int, ...]) -> float:
    waits = [rank.wait_ns_per_step for rank in result.ranks if rank.rank in ranks]
    return sum(waits) / max(len(waits), 1)


def predictions_table(report: Report, *, show_all: bool) -> TableView | None:
    """The best predicted configurations of the first pipeline that has predictions."""
    groups = [group for group in report.pipeline.groups if group.predictions]
    if not groups:
        return None
    group = groups[0]
    useful = [row for row in group.predictions if row.saved_ns > 0 or show_all]
    notes = [
        "for the same batch: more micro-batches are proportionally smaller and shorter; stages "
        "added per rank are equal"
    ]
    if group.prediction_error_ratio is not None:
        error = format_ratio(abs(group.prediction_error_ratio))
        way = "below" if group.prediction_error_ratio < 0 else "above"
        notes.append(
            f"all are corrected: the prediction for the present schedule is {error} {way} the "
            "measurement"
        )
    return rows_table(
        "Pipeline predictions",
        (
            Column("change", "what", left=True, stretch=True),
            Column("step", "step_ns"),
            Column("saves", lambda row: row.saved_ns if row.saved_ns >= 0 else "none", form="ns"),
            Column("bubble", "bubble_fraction"),
        ),
        useful if show_all else useful[:MAX_PREDICTIONS],
        caption=f"predicted step time; now {format_duration(group.step_ns or group.span_ns)}",
        notes=tuple(notes),
    )


# One step of a pipeline as text, one line per rank -----------------------------------

MAX_LINES = 16
IDLE = "·"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_WEIGHT = "backward_weight"
_CROWDED = {"forward": ">", _WEIGHT: "="}

_LEGEND = (
    "digits: forward of a micro-batch (its last digit); letters: backward (a is micro-batch 0); "
    "capitals: weight gradients; dots: idle"
)

_CROWDED_LEGEND = ">: forward; <: backward; =: weight gradients; dots: idle"


def pipeline_picture(report: Report, *, show_all: bool) -> TableView | None:
    """The schedule of the first pipeline in a step of median length."""
    groups = [group for group in report.pipeline.groups if group.picture]
    if not groups:
        return None
    group = groups[0]
    lines = _lines(group, show_all=show_all)
    span = max((row.end_ns for row in group.picture), default=0)
    # whether a typical slot is narrower than one character in a line of 70
    lengths = [row.end_ns - row.start_ns for row in group.picture]
    crowded = span > 0 and float(np.median(lengths)) * 70 < 0.8 * span
    left_out = len(group.ranks) - len(lines)
    notes = [f"{name_ranks(group.ranks)}, {format_duration(span)}"]
    notes.append(_CROWDED_LEGEND if crowded else _LEGEND)
    if left_out:
        notes.append(f"not drawn: {counted(left_out, 'more rank')}")
    if not group.comparable_clocks:
        notes.append("clocks cannot be compared: each rank begins at its own first work")
    return TableView(
        title="Schedule",
        caption="one step of the pipeline, time from left to right",
        columns=(Column("rank"), Column("", left=True)),
        rows=tuple(
            (str(rank), Drawing(partial(draw_line, rows, span, crowded=crowded)))
            for rank, rows in lines.items()
        ),
        notes=tuple(notes),
    )


def _lines(group: PipelineGroup, *, show_all: bool) -> dict[int, list[PictureRow]]:
    rows = grouped([(row.rank, row) for row in group.picture])
    ranks = list(rows)
    if show_all or len(ranks) <= MAX_LINES:
        return rows
    places = np.rint(np.linspace(0, len(ranks) - 1, MAX_LINES)).astype(int).tolist()
    return {ranks[place]: rows[ranks[place]] for place in places}


def draw_line(rows: Sequence[PictureRow], span_ns: int, width: int, *, crowded: bool) -> str:
    """One rank's step in ``width`` characters."""
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


# The first line of a report that contains only pipeline slots -----------------


def pipeline_verdict(report: Report) -> VerdictText:
    """The verdict; None if no pipeline has a known bubble."""
    groups = [group for group in report.pipeline.groups if group.bubble_fraction is not None]
    if not groups:
        return None
    group = max(groups, key=lambda each: each.bubble_fraction or 0.0)
    ideal = group.ideal_bubble_fraction
    compared = "" if ideal is None else f"; the ideal of its schedule is {format_ratio(ideal)}"
    idle = f"{format_ratio(group.bubble_fraction)} of {format_duration(group.span_ns)}"
    ranks = short_ranks(group.ranks)
    return f"The pipeline of ranks {ranks} idles {idle} per step{compared}.", ()
