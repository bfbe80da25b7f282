"""One step of a pipeline: a line per rank, a box per slot, labelled with its micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from distprof.documents.html.blocks import (
    EMPTY,
    Markup,
    captioned,
    element,
    joined,
    legend,
    picture,
    scrolled,
    sentence,
    slug,
)
from distprof.escape import short_ranks
from distprof.sections.pipeline import PictureRow, PipelineGroup
from distprof.sections.table import counted
from distprof.units import format_duration, format_ratio

WIDTH = 790
_ROW, _GAP = 26, 4
_LETTER, _DIGIT, _MARGIN = 7, 6, 3
_MOST_LINES = 256
_ZOOMS = (2, 4, 8, 16, 32)
"""Zoom levels that the script offers. A slot shows its number from the first one with room."""
MAX_SLOTS = 6_000
"""Slots drawn for all pipelines: each takes 0.2 kB, and a page of 1,024 ranks stays below 4 MB."""


def schedule_figures(groups: Sequence[PipelineGroup]) -> Markup:
    """The schedules of as many pipelines as there is room for, largest bubble first."""
    pictured = [group for group in groups if group.picture]
    order = sorted(pictured, key=lambda group: -(group.bubble_fraction or 0.0))
    slots = accumulate(len(group.picture) for group in order)
    fit = [
        group
        for i, (group, n) in enumerate(zip(order, slots, strict=True))
        if not i or n <= MAX_SLOTS
    ]
    drawn = [schedule_figure(group) for group in fit]
    left_out = len(pictured) - len(drawn)
    if left_out:
        drawn.append(
            sentence(f"Not drawn: {counted(left_out, 'other pipeline')} with smaller bubbles.")
        )
    return joined(drawn)


def schedule_figure(group: PipelineGroup) -> Markup:
    """The schedule of one step of a pipeline; empty if the report has none."""
    if not group.picture:
        return EMPTY
    present = {slot.rank for slot in group.picture}
    ranks = [rank for rank in group.ranks if rank in present]
    line_of = {rank: number for number, rank in enumerate(ranks[:_MOST_LINES])}
    span = max(slot.end_ns for slot in group.picture) or 1
    slots = [slot for slot in group.picture if slot.rank in line_of]
    height = len(line_of) * (_ROW + _GAP) + 24
    label = f"One step of the pipeline of ranks {short_ranks(ranks, 80)}: {_facts(group)}"
    first = element("text", "0", x=0, y=height - 6)
    last = element("text", format_duration(span), x="100%", y=height - 6, class_="end")
    drawn = picture(
        *(
            element("rect", x=0, y=number * (_ROW + _GAP), width="100%", height=_ROW, class_="idle")
            for number in line_of.values()
        ),
        *(_slot(slot, line_of[slot.rank], span) for slot in slots),
        element("g", first, last, class_="axis"),
        label=label,
        width=WIDTH,
        height=height,
        class_="slots",
    )
    content = element("div", _names(line_of, slots, height), drawn, class_="map")
    kinds = dict.fromkeys(slot.kind for slot in slots)
    named = legend([(f"w-{slug(kind)}", kind) for kind in kinds])
    left_out = len(ranks) - len(line_of)
    text = (
        f"Ranks {short_ranks(group.ranks, 60)}, one step of median length: {_facts(group)}. "
        "Numbers are micro-batches."
    )
    caption = f"{text} Not drawn: {counted(left_out, 'further rank')}." if left_out else text
    return captioned(caption, scrolled(content, label), named, class_="schedule")


def _facts(group: PipelineGroup) -> str:
    text = (
        f"schedule {group.schedule}, {group.stages} stages, {group.num_micro_batches} micro-batches"
    )
    if group.bubble_fraction is None:
        return text
    ideal = group.ideal_bubble_fraction
    suffix = f", ideal {format_ratio(ideal)}" if ideal is not None else ""
    return f"{text}, bubble {format_ratio(group.bubble_fraction)}{suffix}"


def _names(line_of: dict[int, int], slots: Sequence[PictureRow], height: int) -> Markup:
    """Rank and stages of each line. They stay visible while the slots scroll."""
    stages: dict[int, set[int]] = {}
    for slot in slots:
        stages.setdefault(slot.rank, set()).add(slot.stage)
    names = []
    for rank in line_of:
        held = sorted(stages[rank])
        more = ", …" if len(held) > 4 else ""
        names.append(f"rank {rank} · stage {', '.join(map(str, held[:4]))}{more}")
    texts = [
        element("text", name, x=0, y=number * (_ROW + _GAP) + _ROW / 2 + 4)
        for number, name in enumerate(names)
    ]
    width = _LETTER * max(map(len, names)) + 8
    return element(
        "svg", *texts, width=width, height=height, class_="labels lines", aria_hidden="true"
    )


def _slot(slot: PictureRow, number: int, span: int) -> Markup:
    share = (slot.end_ns - slot.start_ns) / span
    y = number * (_ROW + _GAP)
    length = format_duration(slot.end_ns - slot.start_ns)
    text = (
        f"rank {slot.rank}, stage {slot.stage}: {slot.kind} of micro-batch {slot.micro_batch}, "
        f"{length} from {format_duration(slot.start_ns)}"
    )
    box = element(
        "rect",
        element("title", text),
        x=_percent(slot.start_ns / span),
        y=y,
        width=_percent(share),
        height=_ROW,
        class_=f"w-{slug(slot.kind)}",
    )
    return joined((box, _number(slot, share, span, y)))


def _number(slot: PictureRow, share: float, span: int, y: int) -> Markup:
    """The micro-batch of a slot, shown from the zoom level with room for it; else empty."""
    needed = _DIGIT * len(str(slot.micro_batch)) + _MARGIN
    sizes = [zoom for zoom in (1, *_ZOOMS) if share * WIDTH * zoom >= needed]
    if not sizes:
        return EMPTY
    middle = _percent((slot.start_ns + slot.end_ns) / 2 / span)
    return element(
        "text",
        str(slot.micro_batch),
        x=middle,
        y=y + _ROW / 2 + 4,
        class_=None if sizes[0] == 1 else f"z{sizes[0]}",
    )


def _percent(share: float) -> str:
    return f"{100 * share:.5g}%"
