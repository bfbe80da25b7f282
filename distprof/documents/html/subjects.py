"""Figures on stragglers, overlap and experts."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import numpy as np

from distprof.artefacts.record import grouped
from distprof.documents.html.blocks import (
    EMPTY,
    Markup,
    Segment,
    bar,
    bullets,
    captioned,
    columns,
    element,
    folded,
    joined,
    legend,
    row,
    rows,
    sentence,
)
from distprof.documents.html.heat_map import Grid, Heat, heat_figure
from distprof.documents.page import group_of
from distprof.escape import short_ranks
from distprof.rules.base import Finding
from distprof.sections.moe import MoeResult
from distprof.sections.overlap import AxisOverlap, OverlapResult
from distprof.sections.parts import mean_span_ns, window_word
from distprof.sections.report import Report
from distprof.sections.stragglers import RankStraggler, StragglerSet, StragglersResult
from distprof.sections.table import Bar, TableView
from distprof.sections.whatif import WhatIfResult
from distprof.units import format_duration, format_ratio

_MOST_RANKS = 3
_FIELDS = {
    "computation": "computation_ns",
    "exposed_copy": "exposed_copy_ns",
    "exposed_wait": "exposed_comm_ns",
    "exposed_transfer": "exposed_comm_ns",
    "exposed_p2p_wait": "exposed_comm_ns",
    "exposed_comm_unsplit": "exposed_comm_ns",
}
"""Part of a step to the field of the per-step breakdown; idle for all others."""
_SUBJECTS = {
    "computation": ("kernels", "efficiency"),
    "exposed_transfer": ("collectives", "gradients", "overlap", "sharding", "placement"),
    "exposed_comm_unsplit": ("collectives", "gradients", "overlap", "sharding"),
    "exposed_wait": ("stragglers", "moe"),
    "exposed_p2p_wait": ("pipeline", "messages"),
    "idle_pause": ("pauses",),
}
"""Part of a step to the sections that its findings name as evidence, if they do not name it."""
_STEP_WORDS = {
    "computation_ns": "Computation",
    "exposed_copy_ns": "Exposed copies",
    "exposed_comm_ns": "All exposed communication",
    "idle_ns": "All idle time",
}


def waterfall_figure(
    report: Report, views: Sequence[TableView], anchor_of: Callable[[Finding], str]
) -> Markup:
    """A row for each part of the main table; each bar begins where the previous one ends."""
    view = next((view for view in views if view.is_main), None)
    if view is None:
        return EMPTY
    span = mean_span_ns(report) or 0.0
    lines, start, told = [], 0.0, _where_steps_are_told(view)
    for label, _, share, drawn in view.rows:
        if not isinstance(drawn, Bar) or not drawn.ratio:
            continue
        piece = Segment(kind=group_of(drawn.key).key, ratio=drawn.ratio)
        name, value = str(label), f"{format_duration(drawn.ratio * span)}  {share}"
        line = row(name, bar((piece,), label=f"{name}: {value}", start=start), value, tag="span")
        by_step = _by_step(report, drawn.key) if drawn.key in told else EMPTY
        parts = (_by_rank(report, drawn.key), by_step, _findings(report, drawn.key, anchor_of))
        told_of = joined(parts) or sentence("The recording says no more about this part.")
        inside = element("div", told_of, class_="inside")
        lines.append(element("details", element("summary", line), inside, class_="row-details"))
        start += drawn.ratio
    hint = "Open a part to see which ranks and steps it comes from."
    return captioned(f"{view.caption}. {hint}".lstrip(". "), rows(lines))


def _where_steps_are_told(view: TableView) -> set[str]:
    """The largest part of each field of the per-step breakdown: its steps are not said twice."""
    bars = sorted((b for *_, b in view.rows if isinstance(b, Bar)), key=lambda bar: bar.ratio)
    return {*{_FIELDS.get(one.key, "idle_ns"): one.key for one in bars}.values()}


def _by_rank(report: Report, key: str) -> Markup:
    field = f"{key}_ns"
    ranks = report.waterfall.ranks
    if len(ranks) < 2 or not hasattr(ranks[0], field):
        return EMPTY
    steps = max(report.waterfall.num_steps, 1)
    by_rank = [(each.rank, getattr(each, field) / steps) for each in ranks]
    text = f"By rank: {_spread(by_rank, 'rank')}"
    return joined((sentence(text), columns([ns for _, ns in by_rank], text, group_of(key).key)))


def _by_step(report: Report, key: str) -> Markup:
    field = _FIELDS.get(key, "idle_ns")
    sums = grouped([(each.step, getattr(each, field)) for each in report.breakdown.steps])
    if len(sums) < 2:
        return EMPTY
    by_step = [(step, statistics.fmean(values)) for step, values in sorted(sums.items())]
    text = f"{_STEP_WORDS[field]} by {window_word(report)}, mean over ranks: " + _spread(
        by_step, "step"
    )
    return joined((sentence(text), columns([ns for _, ns in by_step], text, group_of(key).key)))


def _spread(values: Sequence[tuple[int, float]], word: str) -> str:
    """The largest values and where they occur, the median, and the smallest value."""
    order = sorted(values, key=lambda pair: -pair[1])
    if order[0][1] == order[-1][1]:
        return f"{format_duration(order[0][1])} on each {word}."
    named = [f"{word} {n} ({format_duration(ns)})" for n, ns in order]
    if len(named) <= _MOST_RANKS:
        return f"{', '.join(named)}."
    middle = format_duration(statistics.median(ns for _, ns in values))
    largest = ", ".join(named[:_MOST_RANKS])
    return f"most in {largest}; median {middle}; least in {named[-1]}."


def _findings(report: Report, key: str, anchor_of: Callable[[Finding], str]) -> Markup:
    """Links to the findings whose evidence concerns this part."""
    subjects, part = _SUBJECTS.get(key, ()), f"waterfall.all.{key}_ns"
    links = [
        element("a", f"{one.code} {one.name}", href=f"#{anchor_of(one)}")
        for one in report.findings
        if any(place == part or place.partition(".")[0] in subjects for place in one.evidence)
    ]
    spaced = joined(part for link in links for part in (Markup(" "), link))
    return element("p", "Findings on this part:", spaced) if links else EMPTY


_MOST = 12


def stragglers_figure(result: StragglersResult, word: str) -> Markup:
    """The cost of each straggler, with its evidence, and its distribution over steps."""
    charged = [rank for rank in result.ranks if rank.lost_ns_per_step > 0][:_MOST]
    if not charged:
        return EMPTY
    most = max(rank.lost_ns_per_step for rank in charged)
    caption = (
        f"Time that other ranks wait for each rank, per {word}. Open a rank for the evidence. "
        f"Pattern over all steps: {result.pattern.value}."
    )
    lines = [_straggler(rank, most) for rank in charged]
    sets = [_set(one, word) for one in result.sets if len(one.ranks) > 1]
    return joined((captioned(caption, rows(lines)), bullets(sets), _blame(result)))


def _straggler(rank: RankStraggler, most: int) -> Markup:
    cost = format_duration(rank.lost_ns_per_step)
    value = f"{cost}  {format_ratio(rank.share_of_step_ratio)}"
    name = f"rank {rank.rank}"
    piece = Segment(kind="exposed_wait", ratio=rank.lost_ns_per_step / max(most, 1))
    line = row(name, bar((piece,), label=f"{name}: {value}"), value, tag="span")
    pattern, cause = rank.pattern.value, rank.cause.value.replace("_", " ")
    facts = "No pattern and no cause found."
    if rank.confidence > 0:
        facts = f"Pattern: {pattern}. Cause: {cause}. Confidence: {format_ratio(rank.confidence)}."
    if rank.late_ratio is not None:
        facts += f" Last in {format_ratio(rank.late_ratio)} of its judged collectives."
    inside = element("div", sentence(facts), bullets(rank.evidence), class_="inside")
    return element("details", element("summary", line), inside, class_="row-details")


def _set(one: StragglerSet, word: str) -> str:
    shared = f", {'node ' if one.shares == 'node' else ''}{one.name}" if one.shares else ""
    cost = format_duration(one.lost_ns_per_step)
    cause = one.cause.value.replace("_", " ")
    return (
        f"Ranks {short_ranks(one.ranks)} are slow for one reason{shared}: {cause}, "
        f"{cost} per {word} ({format_ratio(one.share_of_step_ratio)})."
    )


def _blame(result: StragglersResult) -> Markup:
    if len(result.steps) < 2 or not any(step.lost_ns for step in result.steps):
        return EMPTY
    worst = sorted(result.steps, key=lambda step: -step.lost_ns)[:3]
    ranks = ["" if step.rank is None else f", rank {step.rank}" for step in worst]
    named = ", ".join(
        f"step {step.step} ({format_duration(step.lost_ns)}{rank})"
        for step, rank in zip(worst, ranks, strict=True)
    )
    text = f"Time lost to late ranks, by step. Most in {named}."
    drawn = columns([step.lost_ns for step in result.steps], text, "exposed_wait")
    return captioned(text, drawn)


def overlap_figure(result: OverlapResult, num_steps: int) -> Markup:
    """Communication by axis: the part that overlaps with computation, and the rest."""
    found = [axis for axis in result.axes if axis.communication_ns > 0]
    if not found:
        return EMPTY
    # Overlapped and exposed communication, ns, mean per rank and step
    windows = [max(len(axis.ranks), 1) * max(num_steps, 1) for axis in found[:_MOST]]
    means = [
        (axis.overlapped_ns / count, axis.exposed_comm_ns / count)
        for axis, count in zip(found, windows, strict=False)
    ]
    most = max(hidden + exposed for hidden, exposed in means)
    lines = [_overlap_row(axis, *mean, most) for axis, mean in zip(found, means, strict=False)]
    caption = "Communication by axis, mean over its ranks: the share that overlaps with computation"
    kinds = [("k-computation", "overlaps with computation"), ("k-exposed_transfer", "exposed")]
    return captioned(caption, rows(lines), legend(kinds))


def _overlap_row(axis: AxisOverlap, hidden: float, exposed: float, most: float) -> Markup:
    value = f"{format_ratio(axis.overlap_ratio)} of {format_duration(hidden + exposed)}"
    pieces = (
        Segment(kind="computation", ratio=hidden / most),
        Segment(kind="exposed_transfer", ratio=exposed / most),
    )
    return row(axis.axis, bar(pieces, label=f"{axis.axis}: {value} overlap"), value)


def workers_figure(result: WhatIfResult) -> Markup:
    """A map of how much each worker lengthens the step if all other workers are ideal."""
    placed = [w for w in result.workers if w.stage is not None and w.dp_rank is not None]
    stages = sorted({w.stage for w in placed if w.stage is not None})
    replicas = sorted({w.dp_rank for w in placed if w.dp_rank is not None})
    if len(replicas) < 2:  # the table has each stage
        return EMPTY
    values = np.full((len(stages), len(replicas)), np.nan)
    for worker in placed:
        at = stages.index(worker.stage or 0), replicas.index(worker.dp_rank or 0)
        values[at] = np.fmax(values[at], max(worker.slowdown - 1, 0.0))
    grid = Grid(
        rows=tuple(map(str, stages)),
        columns=tuple(map(str, replicas)),
        row_word="stage",
        column_word="data-parallel rank",
    )
    return heat_figure(
        Heat(values=values, grid=grid, what="added to the ideal step"),
        "Time that each worker adds to the ideal step if only its own operations keep their "
        "measured durations, by pipeline stage and data-parallel rank",
    )


def experts_figure(result: MoeResult) -> Markup:
    """Load of ranks and layers, and traffic between ranks."""
    return joined((_rank_loads(result), _layer_loads(result), _traffic(result)))


def _rank_loads(result: MoeResult) -> Markup:
    loads = [(rank.rank, rank.load_ratio) for rank in result.ranks if rank.load_ratio is not None]
    if not loads:
        return EMPTY
    worst, least = max(loads, key=lambda p: p[1]), min(loads, key=lambda p: p[1])
    text = (
        f"Load of each rank's experts relative to the mean of its group: highest on rank {worst[0]}"
        f" ({worst[1]:.2f} ×), lowest on rank {least[0]} ({least[1]:.2f} ×)."
    )
    drawn = columns([load for _, load in loads], text, "computation")
    return captioned(text, drawn)


def _layer_loads(result: MoeResult) -> Markup:
    layers = [layer for layer in result.layers if layer.max_over_mean > 0]
    if not layers:
        return EMPTY
    most = max(layer.max_over_mean for layer in layers)
    lines = []
    for layer in layers:
        name = f"layer {layer.layer}" + (f", {layer.part}" if layer.part else "")
        value = f"{layer.max_over_mean:.2f} ×"
        even = Segment(kind="saved", ratio=1 / most, title="an even load")
        above = Segment(kind="computation", ratio=max(layer.max_over_mean - 1, 0) / most)
        lines.append(row(name, bar((even, above), label=f"{name}: {value}"), value))
    caption = "Load of the busiest expert in each layer relative to the mean. Light: an even load"
    drawn = captioned(caption, rows(lines))
    if len(lines) <= _MOST:
        return drawn
    return folded(f"Busiest expert by layer ({len(lines)} layers)", drawn, class_="table")


def _traffic(result: MoeResult) -> Markup:
    """The amount that each rank sends to each other rank, as a share of the largest."""
    pairs = [pair for pair in result.pairs if pair.sender != pair.receiver]
    most = max((pair.amount_per_step for pair in pairs), default=0)
    if not most:
        return EMPTY
    ranks = sorted({rank for pair in pairs for rank in (pair.sender, pair.receiver)})
    if len(ranks) == 2:  # what one sends, the other receives
        return EMPTY
    place = {rank: i for i, rank in enumerate(ranks)}
    values = np.full((len(ranks), len(ranks)), np.nan)
    for pair in pairs:
        values[place[pair.sender], place[pair.receiver]] = pair.amount_per_step / most
    names = tuple(map(str, ranks))
    heat = Heat(
        values=values,
        grid=Grid(rows=names, columns=names, row_word="sender", column_word="receiver"),
        what="of the largest amount sent",
    )
    return heat_figure(heat, "Traffic between ranks in token exchanges, per step")
