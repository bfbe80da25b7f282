"""One step of a pipeline: a line per rank, a box per slot with the number of its micro-batch."""

from __future__ import annotations

from collections.abc import Sequence

from distprof.documents.html.blocks import scrolled, slug
from distprof.documents.html.markup import EMPTY, Markup, element, picture
from distprof.documents.html.rows import legend
from distprof.sections.pipeline.result import PictureRow, PipelineGroup
from distprof.units import format_duration, format_ratio

__all__ = ["schedule_figure"]

WIDTH = 900
_LEFT, _ROW, _GAP = 110, 26, 4
_DIGIT, _MARGIN = 6, 3
_MOST_LINES = 64


def schedule_figure(group: PipelineGroup) -> Markup:
    """The picture of one pipeline's step; empty where the report holds none."""
    if not group.picture:
        return EMPTY
    ranks = [rank for rank in group.ranks if any(slot.rank == rank for slot in group.picture)]
    line_of = {rank: number for number, rank in enumerate(ranks[:_MOST_LINES])}
    span = max(slot.end_ns for slot in group.picture) or 1
    scale = (WIDTH - _LEFT) / span
    slots = [slot for slot in group.picture if slot.rank in line_of]
    height = len(line_of) * (_ROW + _GAP) + 24
    label = f"One step of the pipeline of ranks {', '.join(map(str, line_of))}: {_facts(group)}"
    drawn = picture(
        *(_line(rank, number, slots) for rank, number in line_of.items()),
        *(_slot(slot, line_of[slot.rank], scale) for slot in slots),
        _times(span, height),
        label=label,
        width=WIDTH,
        height=height,
        viewBox=f"0 0 {WIDTH} {height}",
        class_="slots",
    )
    kinds = dict.fromkeys(slot.kind for slot in slots)
    named = legend([(f"w-{slug(kind)}", kind) for kind in kinds])
    caption = f"One step of median length: {_facts(group)}. Numbers are micro-batches."
    return element("figure", element("figcaption", caption), scrolled(drawn, label), named)


def _facts(group: PipelineGroup) -> str:
    text = (
        f"schedule {group.schedule}, {group.stages} stages, {group.num_micro_batches} micro-batches"
    )
    if group.bubble_fraction is None:
        return text
    ideal = group.ideal_bubble_fraction
    known = f", ideal {format_ratio(ideal)}" if ideal is not None else ""
    return f"{text}, bubble {format_ratio(group.bubble_fraction)}{known}"


def _line(rank: int, number: int, slots: Sequence[PictureRow]) -> Markup:
    y = number * (_ROW + _GAP)
    stages = sorted({slot.stage for slot in slots if slot.rank == rank})
    held = ", ".join(map(str, stages[:4])) + (", …" if len(stages) > 4 else "")
    words = element("text", f"rank {rank} · stage {held}", x=0, y=y + _ROW / 2 + 4)
    ground = element("rect", x=_LEFT, y=y, width=WIDTH - _LEFT, height=_ROW, class_="idle")
    return element("g", words, ground, class_="axis")


def _slot(slot: PictureRow, number: int, scale: float) -> Markup:
    x, width = _LEFT + slot.start_ns * scale, (slot.end_ns - slot.start_ns) * scale
    y = number * (_ROW + _GAP)
    length = format_duration(slot.end_ns - slot.start_ns)
    text = (
        f"rank {slot.rank}, stage {slot.stage}: {slot.kind} of micro-batch {slot.micro_batch}, "
        f"{length} from {format_duration(slot.start_ns)}"
    )
    box = element(
        "rect",
        element("title", text),
        x=x,
        y=y,
        width=width,
        height=_ROW,
        class_=f"w-{slug(slot.kind)}",
    )
    if width < _DIGIT * len(str(slot.micro_batch)) + _MARGIN:
        return box
    return Markup(box + element("text", str(slot.micro_batch), x=x + width / 2, y=y + _ROW / 2 + 4))


def _times(span: int, height: int) -> Markup:
    first = element("text", "0", x=_LEFT, y=height - 6)
    last = element("text", format_duration(span), x=WIDTH - 60, y=height - 6)
    return element("g", first, last, class_="axis")
