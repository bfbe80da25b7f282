"""Slow-down of a logged job by stage, kind of operation and worker."""

from __future__ import annotations

from collections.abc import Iterator

from distprof.analyzers.whatif import WhatIfResult
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
        caption="of the step where only this is as it was and all else is ideal",
        columns=(
            TableColumn(title="what", left=True, stretch=True),
            TableColumn(title="slow-down"),
            TableColumn(title="computes per step"),
        ),
        rows=rows,
        strong=frozenset({0}),
    )


def _rows(whatif: WhatIfResult, *, show_all: bool) -> Iterator[tuple[str, str, str]]:
    yield "everything", _beyond(whatif.slowdown), ""
    stages = sorted(whatif.stages, key=lambda stage: -stage.slowdown)
    for stage in stages if show_all else stages[:MAX_STAGES_SHOWN]:
        plural = "" if len(stage.ranks) == 1 else "s"
        name = f"stage {stage.stage} (rank{plural} {short_ranks(stage.ranks, 24)})"
        yield name, _beyond(stage.slowdown), format_duration(stage.compute_ns)
    kinds = whatif.kinds if show_all else whatif.kinds[:MAX_KINDS_SHOWN]
    for kind in kinds:
        yield kind.kind, _beyond(kind.slowdown), ""
    workers = whatif.workers if show_all else whatif.workers[:MAX_WORKERS_SHOWN]
    for worker in workers:
        place = f"dp_rank {worker.dp_rank}, stage {worker.stage}"
        yield f"rank {worker.rank} ({place})", _beyond(worker.slowdown), ""


def _beyond(slowdown: float | None) -> str:
    if slowdown is None:
        return "–"
    beyond = slowdown - 1
    if abs(beyond) < 0.0005:
        return "none"
    return f"+{format_ratio(beyond)}" if beyond > 0 else f"−{format_ratio(-beyond)}"
