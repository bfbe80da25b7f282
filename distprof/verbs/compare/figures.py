"""Figures of a comparison: both steps by part, the change of each part, and both medians."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distprof.documents.html.blocks import (
    EMPTY,
    Markup,
    Part,
    captioned,
    changes,
    interval_bar,
    joined,
    legend,
    row,
    row_of_parts,
    rows,
)
from distprof.documents.html.picture import pictures_figure
from distprof.units import format_duration
from distprof.verbs import part_of
from distprof.verbs.compare import Comparison, PartChange, StepChange

_MARGIN = 0.08
"""Share of the width that stays free on either side of the medians."""


def figures(comparison: Comparison) -> Iterator[Part]:
    """The step of both runs: drawn, by part, and its medians. Then the change of each part."""
    pictures = pictures_figure([*zip(("first", "second"), comparison.pictures, strict=False)])
    both = joined((pictures, pair_figure(comparison.parts), medians_figure(comparison.step)))
    yield Part(anchor="both-steps", title="The step of both runs", content=both)
    changed = change_figure([(part.part, part.change_ns) for part in comparison.parts])
    yield Part(anchor="changes", title="What changed", content=changed)


def pair_figure(parts: Sequence[PartChange]) -> Markup:
    """The traced step of both runs on one scale; empty without traces."""
    sums = {
        "first": [(part.part, part.first_ns) for part in parts],
        "second": [(part.part, part.second_ns) for part in parts],
    }
    most = max(sum(ns for _, ns in each) for each in sums.values())
    if most <= 0:
        return EMPTY
    lines = [_step_row(name, each, most) for name, each in sums.items()]
    used = [part.part for part in parts if part.first_ns or part.second_ns]
    named = legend([(f"k-{part_of(key).kind}", part_of(key).name) for key in used])
    caption = "Mean traced step of both runs by part, on one scale"
    return captioned(caption, rows(lines), named)


def _step_row(name: str, parts: Sequence[tuple[str, int]], most: int) -> Markup:
    length = format_duration(sum(ns for _, ns in parts))
    pieces = [
        (part_of(key).kind, max(ns, 0) / most, f"{part_of(key).name} {format_duration(ns)}")
        for key, ns in parts
    ]
    return row_of_parts(name, length, pieces)


def change_figure(found: Sequence[tuple[str, int]]) -> Markup:
    """The change of each part of the step (key, ns), one after another; empty if none changed."""
    changed = [(part_of(key).name, ns) for key, ns in found if ns]
    if not changed:
        return EMPTY
    caption = (
        "Change of the mean traced step by part. Each bar begins where the previous one ends. The "
        "line marks no change, and bars that extend to the right make the step longer."
    )
    return captioned(caption, changes(changed))


def medians_figure(step: StepChange) -> Markup:
    """Median step of both runs with intervals; empty if there are too few steps for intervals."""
    found = {
        "first": (step.first_ns, step.first_low_ns, step.first_high_ns),
        "second": (step.second_ns, step.second_low_ns, step.second_high_ns),
    }
    known = [value for each in found.values() for value in each if value is not None]
    if step.first_ns is None or step.second_ns is None or max(known) <= min(known):
        return EMPTY
    if step.first_low_ns is None and step.second_low_ns is None:
        return EMPTY
    least, most = min(known), max(known)
    lines = [_median_row(name, *each, least, most) for name, each in found.items()]
    caption = "Median step and its 95 % interval; the axis does not begin at 0"
    return captioned(caption, rows(lines))


def _median_row(
    name: str, middle: int | None, low: int | None, high: int | None, least: int, most: int
) -> Markup:
    def place(ns: int) -> float:
        return _MARGIN + (1 - 2 * _MARGIN) * (ns - least) / (most - least)

    value = format_duration(middle)
    ends = (place(low), place(high)) if low is not None and high is not None else None
    span = f", 95 % {format_duration(low)} to {format_duration(high)}" if ends else ""
    drawn = interval_bar(place(middle or 0), ends, label=f"{name}: {value}{span}")
    return row(name, drawn, value)


FIGURES = {Comparison: figures}
