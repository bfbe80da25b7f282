"""Slow-down of a logged job by stage, kind of operation and worker."""

from __future__ import annotations

from collections.abc import Iterator

from distprof.analyzers.whatif.analysis import WhatIfResult
from distprof.report.escape import short_ranks
from distprof.report.model import Report
from distprof.report.views.table import TableColumn, TableView
from distprof.units import format_duration, format_ratio

__all__ = ["slowdown_table"]

MAX_KINDS_SHOWN = 4
MAX_WORKERS_SHOWN = 4
MAX_STAGES_SHOWN = 16


def slowdown_table(report: Report, *, show_all: bool) -> TableView | None:
    """Which stages, kinds and workers lengthen the step; for logs of operations only."""
    whatif = report.whatif
    if whatif.source != "operations" or whatif.slowdown is None:
        return None
    rows = tuple(_rows(whatif, show_all=show_all))
    return TableView(
        title="Slow-down",
        caption="of a step in which only this is as it was; what making it ideal saves",
        columns=(
            TableColumn(title="what", left=True, stretch=True),
            TableColumn(title="slow-down"),
            TableColumn(title="saves"),
            TableColumn(title="computes per step"),
        ),
        rows=rows,
        strong=frozenset({0}),
    )


def _rows(whatif: WhatIfResult, *, show_all: bool) -> Iterator[tuple[str, str, str, str]]:
    saved = {scenario.what: scenario.recoverable_ns for scenario in whatif.without}
    lost = (whatif.replayed_ns or 0) - (whatif.ideal_ns or 0)
    yield "everything", _beyond(whatif.slowdown), _saves(lost), ""
    last = max((stage.stage for stage in whatif.stages), default=None)
    stages = sorted(whatif.stages, key=lambda stage: -stage.slowdown)
    for stage in stages if show_all else stages[:MAX_STAGES_SHOWN]:
        plural = "" if len(stage.ranks) == 1 else "s"
        name = f"stage {stage.stage} (rank{plural} {short_ranks(stage.ranks, 24)})"
        key = "last-stage" if stage.stage == last else f"stage {stage.stage}"
        computes = format_duration(stage.compute_ns)
        yield name, _beyond(stage.slowdown), _saves(saved.get(key)), computes
    for kind in whatif.kinds if show_all else whatif.kinds[:MAX_KINDS_SHOWN]:
        yield kind.kind, _beyond(kind.slowdown), _saves(saved.get(f"kind {kind.kind}")), ""
    for worker in whatif.workers if show_all else whatif.workers[:MAX_WORKERS_SHOWN]:
        name = f"rank {worker.rank} (dp_rank {worker.dp_rank}, stage {worker.stage})"
        yield name, _beyond(worker.slowdown), _saves(saved.get(f"rank {worker.rank}")), ""


def _saves(ns: int | None) -> str:
    """What a step saves; empty where that is less than anything worth a scenario."""
    return format_duration(ns) if ns is not None and ns > 0 else ""


def _beyond(slowdown: float | None) -> str:
    if slowdown is None:
        return "–"
    beyond = slowdown - 1
    if abs(beyond) < 0.0005:
        return "none"
    return f"+{format_ratio(beyond)}" if beyond > 0 else f"−{format_ratio(-beyond)}"
