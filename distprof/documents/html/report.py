"""The report of a run as one HTML file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from distprof.documents.advice import cost_text, gain_text
from distprof.documents.html.blocks import (
    Part,
    bounded,
    bullets,
    drawn_table,
    sentence,
)
from distprof.documents.html.findings import anchors, finding_articles, to_do
from distprof.documents.html.heat_map import heat_figure, heats_of, node_heats_of
from distprof.documents.html.markup import Markup, element, joined
from distprof.documents.html.rows import plan_figure, step_figure
from distprof.documents.html.scatter import collectives_figure
from distprof.documents.html.schedule import schedule_figures
from distprof.documents.html.shell import document
from distprof.documents.html.subjects import (
    experts_figure,
    overlap_figure,
    stragglers_figure,
    workers_figure,
)
from distprof.documents.html.waterfall import waterfall_figure
from distprof.formats import FINDINGS, RenderOptions
from distprof.rules.base import Finding
from distprof.sections.capture.show import headline
from distprof.sections.job.show import job_facts
from distprof.sections.parts import window_word
from distprof.sections.report import Report
from distprof.sections.shows import declared
from distprof.sections.table import TableView
from distprof.sections.time.show import left_out_steps
from distprof.sections.verdict import judge

ALL_RANKS = 64
"""Tables of up to 64 ranks are always complete. Longer ones are cut unless ``show_all`` is set."""

_NUM_TO_DO = 3


class _Drawn(msgspec.Struct, frozen=True, kw_only=True):
    """A report, prepared for drawing."""

    report: Report  # The report.
    tables: tuple[tuple[str, TableView], ...]  # Section and table, in reading order.
    anchor_of: Callable[[Finding], str]  # Returns the id of a finding.
    sections: tuple[str, ...]  # Sections to show; empty for all.


class _Subject(msgspec.Struct, frozen=True):
    """A part of the page about one subject."""

    anchor: str  # Id of the part.
    title: str  # Heading.
    figure: Callable[[_Drawn], Markup]  # Draws the figure; empty if there is nothing to show.
    sections: tuple[str, ...] = ()  # Sections whose tables belong to it.


def render(report: Report, options: RenderOptions) -> str:
    """The report as one self-contained HTML file."""
    drawn = _Drawn(
        report=report,
        tables=_tables(report, options),
        anchor_of=anchors(report.findings),
        sections=options.sections,
    )
    return document(judge(report).line, _header(drawn), tuple(_parts(drawn)))


def _tables(report: Report, options: RenderOptions) -> tuple[tuple[str, TableView], ...]:
    show_all = options.show_all or len(report.run.ranks) <= ALL_RANKS
    made = (
        (each.section, each(report, show_all=show_all))
        for each in declared(report, "table")
        if not options.sections or each.section in options.sections
    )
    return tuple((section, view) for section, view in made if view is not None)


def _header(drawn: _Drawn) -> list[Markup]:
    report = drawn.report
    verdict = judge(report)
    first = report.findings[:_NUM_TO_DO]
    left_out = len(report.findings) - len(first)
    more = sentence(f"{left_out} more below.") if left_out > 0 else Markup("")
    return [
        element("h1", bounded(verdict.line)),
        sentence(headline(report), class_="evidence"),
        *(sentence(fact) for fact in job_facts(report)),
        step_figure(report),
        plan_figure(report.plan, window_word(report)),
        bullets(verdict.why),
        element("h2", "What to do"),
        to_do(first, drawn.anchor_of, lambda one: gain_text(one, report), verdict.line),
        more,
    ]


def _parts(drawn: _Drawn) -> Iterator[Part]:
    yield from _subject_parts(drawn)
    report = drawn.report
    if not drawn.sections or FINDINGS in drawn.sections:
        articles = finding_articles(
            report.findings, drawn.anchor_of, lambda one: cost_text(one, report)
        )
        yield Part(anchor="findings", title="Findings", content=articles)
    own = {name for subject in _SUBJECTS for name in subject.sections}
    rest = [drawn_table(view) for section, view in drawn.tables if section not in own]
    if rest:
        yield Part(anchor="tables", title="More tables", content=joined(rest))
    yield Part(anchor="about", title="About this file", content=_about(report))


def _subject_parts(drawn: _Drawn) -> Iterator[Part]:
    for subject in _SUBJECTS:
        if drawn.sections and not set(drawn.sections) & set(subject.sections):
            continue
        tables = [drawn_table(view) for name, view in drawn.tables if name in subject.sections]
        figure = subject.figure(drawn)
        if figure or tables:
            content = joined((figure, *tables))
            yield Part(anchor=subject.anchor, title=subject.title, content=content)


def _about(report: Report) -> Markup:
    return joined(
        (
            sentence(f"Source: {report.run.source}"),
            sentence(
                f"Written by distprof {report.distprof_version}. The file is self-contained: it "
                "loads nothing from the network. Times are means over ranks and "
                f"{window_word(report)}s unless a title says otherwise."
            ),
        )
    )


def _waterfall(drawn: _Drawn) -> Markup:
    found = next((v for name, v in drawn.tables if name == "time" and _has_bars(v)), None)
    return waterfall_figure(drawn.report, found, drawn.anchor_of) if found else Markup("")


def _has_bars(view: TableView) -> bool:
    return any(not isinstance(cell, str) for row in view.rows for cell in row)


def _heat(drawn: _Drawn) -> Markup:
    heats = heats_of(drawn.report)
    if heats is None:
        return Markup("")
    lost, pace = heats
    word = window_word(drawn.report)
    figures = [*_node_heat(drawn.report, word)]
    figures.append(
        heat_figure(
            lost,
            f"Lost time: share of each {word} in which a rank does not compute, but waits, "
            "transfers, copies or is idle. Other ranks wait for a late rank, so the late rank "
            f"itself is pale.{_left_out(drawn.report)}",
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


def _left_out(report: Report) -> str:
    return "".join(f" {text.capitalize()}." for text in left_out_steps(report))


def _node_heat(report: Report, word: str) -> Iterator[Markup]:
    """An overview of a large job, a row per node."""
    heats = node_heats_of(report)
    if heats is None:
        return
    lost, pace = heats
    yield heat_figure(
        lost,
        f"Lost time by node: share of the {word} without computation, mean over the node's ranks.",
    )
    yield heat_figure(
        pace,
        "Slowest rank of each node: its computation time relative to the median rank of the "
        f"{word}. The maps of all ranks follow.",
    )


def _workers(drawn: _Drawn) -> Markup:
    return workers_figure(drawn.report.whatif)


def _schedules(drawn: _Drawn) -> Markup:
    return schedule_figures(drawn.report.pipeline.groups)


_SUBJECTS: Sequence[_Subject] = (
    _Subject("step", "Where the time goes", _waterfall, ("time",)),
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
    _Subject("workers", "Simulated step", _workers, ("whatif",)),
    _Subject("pipeline", "Pipeline", _schedules, ("pipeline",)),
    _Subject("experts", "Experts", lambda d: experts_figure(d.report.moe), ("moe",)),
)
