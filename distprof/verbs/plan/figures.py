"""Figures of a plan: the step of each layout by part, and its memory next to the limit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from distprof.documents.html.blocks import (
    EMPTY,
    Markup,
    Part,
    captioned,
    legend,
    row_of_parts,
    rows,
)
from distprof.sections.table import counted
from distprof.units import format_bytes, format_duration, format_ratio
from distprof.verbs.plan import Estimate, Plan
from distprof.verbs.plan.layout import TABLE, says
from distprof.verbs.plan.show import MEMORY, layout_name

_MOST = 32
"""Maximum number of layouts drawn: further ones differ by less than the error of the model."""
_PARTS: Mapping[str, tuple[str, str]] = TABLE["parts"]


def figures(plan: Plan) -> Iterator[Part]:
    """The step and the memory of each layout."""
    best, memory = plan.best[:_MOST], plan.cluster.usable_bytes
    yield Part(anchor="steps", title="Step by layout", content=steps_figure(best))
    yield Part(anchor="memory", title="Memory by layout", content=memory_figure(best, memory))


def steps_figure(found: Sequence[Estimate]) -> Markup:
    """Modelled steps on one scale, fastest first; empty if there are none."""
    most = max((one.step_ns for one in found), default=0)
    if most <= 0:
        return EMPTY
    lines = []
    for one in found:
        parts = [
            (kind, getattr(one, key) / most, f"{text} {format_duration(getattr(one, key))}")
            for key, (kind, text) in _PARTS.items()
        ]
        value = f"{format_duration(one.step_ns)}, {format_ratio(one.mfu)} MFU"
        lines.append(row_of_parts(_name(one), value, parts))
    used = [key for key in _PARTS if any(getattr(one, key) for one in found)]
    named = legend([(f"k-{_PARTS[key][0]}", _PARTS[key][1]) for key in used])
    return captioned("Modelled step by part, fastest layout first", rows(lines), named)


def _name(one: Estimate) -> str:
    layout = one.layout
    batches = counted(layout.micro_batches, "micro-batch")
    facts = [layout_name(layout), f"{batches} of {layout.micro_batch}"]
    if layout.virtual_stages > 1:
        facts.append(f"{layout.virtual_stages} stages per rank")
    if layout.recomputation != "selective":
        facts.append(f"recomputation: {layout.recomputation}")
    return ", ".join(facts)


def memory_figure(found: Sequence[Estimate], usable_bytes: int) -> Markup:
    """Memory of the fullest GPU by part, with a line at the limit; empty if there is no layout."""
    most = max([usable_bytes, *(one.memory.total_bytes for one in found)])
    if not found or most <= 0:
        return EMPTY
    lines = []
    for one in found:
        sizes = {key: getattr(one.memory, key) for key in MEMORY}
        parts = [
            (f"m{number}", sizes[key] / most, f"{text} {format_bytes(sizes[key])}")
            for number, (key, text) in enumerate(MEMORY.items())
        ]
        total = one.memory.total_bytes
        share = f"{format_bytes(total)}, {format_ratio(total / max(usable_bytes, 1))}"
        lines.append(row_of_parts(_name(one), share, parts, (usable_bytes / most,)))
    named = legend(
        [
            (f"k-m{number}", text)
            for number, (key, text) in enumerate(MEMORY.items())
            if any(getattr(one.memory, key) for one in found)
        ]
    )
    return captioned(says("memory", usable=usable_bytes), rows(lines), named)


FIGURES = {Plan: figures}
