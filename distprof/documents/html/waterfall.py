"""The parts of a mean step. Opening a part shows the ranks and steps that it comes from."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from distprof.documents.html.blocks import Segment, bar, sentence
from distprof.documents.html.markup import EMPTY, Markup, captioned, element, joined
from distprof.documents.html.rows import columns, row, rows
from distprof.documents.step_bar import group_of
from distprof.rules.base import Finding
from distprof.sections.parts import window_word
from distprof.sections.report import Report
from distprof.sections.table import Bar, TableView
from distprof.units import format_duration

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
    "exposed_copy": ("copies",),
    "other": (),
}
"""Part of a step to the sections that its findings name as evidence."""
_IDLE_SUBJECTS = ("idle", "pauses", "settings")
_STEP_WORDS = {
    "computation_ns": "Computation",
    "exposed_copy_ns": "Exposed copies",
    "exposed_comm_ns": "All exposed communication",
    "idle_ns": "All idle time",
}


def waterfall_figure(
    report: Report, view: TableView, anchor_of: Callable[[Finding], str]
) -> Markup:
    """A row for each part of ``view``; each bar begins where the previous one ends."""
    lines, start = [], 0.0
    for cells in view.rows:
        label, text, share, drawn = cells
        if not isinstance(drawn, Bar) or not drawn.ratio:
            continue
        piece = Segment(kind=group_of(drawn.key).key, ratio=drawn.ratio)
        name, value = str(label), f"{text}  {share}"
        line = row(name, bar((piece,), label=f"{name}: {value}", start=start), value, tag="span")
        lines.append(_opened_by(line, _details(report, drawn.key, anchor_of)))
        start += drawn.ratio
    hint = "Open a part to see which ranks and steps it comes from."
    return captioned(f"{view.caption}. {hint}".lstrip(". "), rows(lines))


def _opened_by(line: Markup, inside: Markup) -> Markup:
    return element(
        "details",
        element("summary", line),
        element("div", inside, class_="inside"),
        class_="row-details",
    )


def _details(report: Report, key: str, anchor_of: Callable[[Finding], str]) -> Markup:
    parts = (_by_rank(report, key), _by_step(report, key), _findings(report, key, anchor_of))
    return joined(parts) or sentence("The recording does not show which ranks or steps it is from.")


def _by_rank(report: Report, key: str) -> Markup:
    field = f"{key}_ns"
    ranks = report.waterfall.ranks
    if not ranks or not hasattr(ranks[0], field):
        return EMPTY
    steps = max(report.waterfall.num_steps, 1)
    by_rank = [(each.rank, getattr(each, field) / steps) for each in ranks]
    if len(by_rank) == 1:
        return sentence(f"Rank {by_rank[0][0]} is the only rank recorded.")
    text = f"By rank: {_spread(by_rank, 'rank')}"
    return joined((sentence(text), columns([ns for _, ns in by_rank], text, group_of(key).key)))


def _by_step(report: Report, key: str) -> Markup:
    field = _FIELDS.get(key, "idle_ns")
    sums: dict[int, list[int]] = {}
    for each in report.breakdown.steps:
        sums.setdefault(each.step, []).append(getattr(each, field))
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
    largest = ", ".join(f"{word} {n} ({format_duration(ns)})" for n, ns in order[:_MOST_RANKS])
    middle = format_duration(statistics.median(ns for _, ns in values))
    number, least = order[-1]
    return (
        f"most in {largest}; median {middle}; least in {word} {number} ({format_duration(least)})."
    )


def _findings(report: Report, key: str, anchor_of: Callable[[Finding], str]) -> Markup:
    """Links to the findings whose evidence concerns this part."""
    subjects = _SUBJECTS.get(key, _IDLE_SUBJECTS)
    links = [
        element("a", f"{one.code} {one.name}", href=f"#{anchor_of(one)}")
        for one in report.findings
        if any(place.partition(".")[0] in subjects for place in one.evidence)
    ]
    spaced = joined(part for link in links for part in (Markup(" "), link))
    return element("p", "Findings on this part:", spaced) if links else EMPTY
