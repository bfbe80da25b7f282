"""The report of a run as one HTML file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from distprof.documents.html.blocks import EMPTY, Markup, Part, drawn_table, joined
from distprof.documents.html.chart import collectives_figure
from distprof.documents.html.findings import anchors
from distprof.documents.html.heat_map import heat_figure, heats_of, node_heats_of
from distprof.documents.html.page import page_html
from distprof.documents.html.picture import Evidence, picture_figure, ranks_with_slots
from distprof.documents.html.roofline import roofline_figure
from distprof.documents.html.schedule import schedule_figures
from distprof.documents.html.subjects import (
    experts_figure,
    overlap_figure,
    stragglers_figure,
    waterfall_figure,
    workers_figure,
)
from distprof.documents.page import drawn_steps
from distprof.documents.report import page_of
from distprof.formats import RenderOptions
from distprof.rules.base import Finding
from distprof.sections.parts import window_word
from distprof.sections.pipeline import PipelineGroup
from distprof.sections.report import Report, RunInfo
from distprof.sections.table import TableView
from distprof.sections.time.show import left_out_steps
from distprof.terms import StragglerPattern

ALL_RANKS = 64
"""Tables of up to 64 ranks are always complete. Longer ones are cut unless ``show_all`` is set."""


class _Drawn(msgspec.Struct, frozen=True, kw_only=True):
    """A report, prepared for drawing."""

    report: Report  # The report.
    tables: tuple[TableView, ...]  # In reading order.
    anchor_of: Callable[[Finding], str]  # Returns the id of a finding.
    leads_with_schedule: bool  # No trace shows the step, but the pipeline's schedule does.
    schedules: tuple[PipelineGroup, ...]  # Pipelines whose slots the picture of the step lacks.


class _Subject(msgspec.Struct, frozen=True):
    """A part of the page about one subject."""

    anchor: str  # Id of the part.
    title: str  # Its heading.
    figure: Callable[[_Drawn], Markup]  # Draws the figure; empty if there is nothing to show.
    sections: tuple[str, ...] = ()  # Sections whose tables belong to it.


def report_html(report: Report, options: RenderOptions) -> str:
    """The report as one self-contained HTML file: its page, with figures between the tables."""
    show_all = options.show_all or len(report.run.ranks) <= ALL_RANKS
    page = page_of(report, replace(options, show_all=show_all))
    steps = () if options.sections else drawn_steps(report)[:1]
    pictured = {rank for step in steps for rank in ranks_with_slots(step)}
    drawn = _Drawn(
        report=report,
        tables=page.tables,
        anchor_of=anchors(report.findings),
        leads_with_schedule=not report.picture.steps and not options.sections,
        schedules=tuple(one for one in report.pipeline.groups if not pictured >= {*one.ranks}),
    )
    own = {name for subject in _SUBJECTS for name in subject.sections}
    others = tuple(view for view in page.tables if view.section not in own)
    has_waterfall = any(view.is_main for view in page.tables)
    return page_html(
        # the first figure shows the parts of the step, each with its findings
        replace(page, tables=others, commands=(), step=None if has_waterfall else page.step),
        tuple(_subject_parts(drawn, options.sections)),
        picture=EMPTY if options.sections else _picture(drawn),
    )


def _picture(drawn: _Drawn) -> Markup:
    """The step with late ranks marked and where each finding's evidence is, or its schedule."""
    report = drawn.report
    if drawn.leads_with_schedule:
        return schedule_figures(report.pipeline.groups)
    late = tuple(
        rank.rank for rank in report.stragglers.ranks if rank.pattern is not StragglerPattern.NONE
    )
    shown = {step.step for step in report.picture.steps}
    found = [
        Evidence(drawn.anchor_of(one), one.ranks, one.steps)
        for one in report.findings
        # what all ranks do in every step has no place of its own
        if 0 < len(one.ranks) < len(report.run.ranks)
        or (shown & {*one.steps} and len(one.steps) < report.run.num_steps)
    ]
    picture = replace(report.picture, steps=drawn_steps(report))
    return picture_figure(picture, late, _folds(report.run), found, report.plan)


def _folds(run: RunInfo) -> dict[str, dict[str, tuple[int, ...]]]:
    """Ranks of each node, and of each group of a mesh axis if ranks are numbered along the mesh."""
    folds = {"node": dict(run.nodes)}
    sizes = [*run.mesh.values()]
    if not sizes or math.prod(sizes) != run.world_size:
        return folds
    numbers = np.arange(run.world_size).reshape(sizes)
    for place, (axis, size) in enumerate(run.mesh.items()):
        if 1 < size < run.world_size:
            groups = np.moveaxis(numbers, place, -1).reshape(-1, size).tolist()
            folds[axis] = {f"{axis} of rank {ranks[0]}": tuple(ranks) for ranks in groups}
    return folds


def _subject_parts(drawn: _Drawn, sections: tuple[str, ...]) -> Iterator[Part]:
    for subject in _SUBJECTS:
        if sections and not set(sections) & set(subject.sections):
            continue
        tables = [drawn_table(view) for view in drawn.tables if view.section in subject.sections]
        figure = subject.figure(drawn)
        if figure or tables:
            content = joined((figure, *tables))
            yield Part(anchor=subject.anchor, title=subject.title, content=content)


def _heat(drawn: _Drawn) -> Markup:
    """Maps of ranks and steps; of a large job, first an overview with a row per node."""
    report, word = drawn.report, window_word(drawn.report)
    heats = heats_of(report)
    if heats is None:
        return EMPTY
    (lost, pace), figures = heats, []
    if (of_nodes := node_heats_of(report)) is not None:
        figures = [
            heat_figure(
                of_nodes[0],
                f"Lost time by node: share of the {word} without computation, mean over the node's "
                "ranks.",
            ),
            heat_figure(
                of_nodes[1],
                "Slowest rank of each node: its computation time relative to the median rank of "
                f"the {word}. The maps of all ranks follow.",
            ),
        ]
    left_out = "".join(f" {text.capitalize()}." for text in left_out_steps(report))
    figures.append(
        heat_figure(
            lost,
            f"Lost time: share of each {word} in which a rank does not compute, but waits, "
            "transfers, copies or is idle. Other ranks wait for a late rank, so the late rank "
            f"itself is pale.{left_out}",
        )
    )
    if len(lost.grid.rows) > 1:
        figures.append(
            heat_figure(
                pace,
                f"Computation time of each rank relative to the median rank of the {word}. A slow "
                "rank, or one with more work, is dark.",
            )
        )
    return joined(figures)


_SUBJECTS: Sequence[_Subject] = (
    _Subject(
        "step",
        "Where the time goes",
        lambda d: waterfall_figure(d.report, d.tables, d.anchor_of),
        ("time",),
    ),
    _Subject("heat", "Ranks and steps", _heat),
    _Subject(
        "stragglers",
        "Stragglers",
        lambda d: stragglers_figure(d.report.stragglers, window_word(d.report)),
        ("stragglers",),
    ),
    _Subject(
        "overlap",
        "Overlap of communication",
        lambda d: overlap_figure(d.report.overlap, d.report.waterfall.num_steps),
        ("overlap",),
    ),
    _Subject(
        "collectives",
        "Collectives",
        lambda d: collectives_figure(d.report.collectives.classes),
        ("collectives",),
    ),
    _Subject(
        "computation",
        "Computation",
        lambda d: roofline_figure(d.report.computation),
        ("computation",),
    ),
    _Subject("workers", "Simulated step", lambda d: workers_figure(d.report.whatif), ("whatif",)),
    _Subject(
        "pipeline",
        "Pipeline",
        lambda d: EMPTY if d.leads_with_schedule else schedule_figures(d.schedules),
        ("pipeline",),
    ),
    _Subject("experts", "Experts", lambda d: experts_figure(d.report.moe), ("moe",)),
)
