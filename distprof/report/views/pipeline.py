"""Pipeline parallelism: what each stage works."""

from __future__ import annotations

from distprof.analyzers.pipeline import PipelineResult
from distprof.report.model import Report
from distprof.report.views.table import TableColumn, TableView
from distprof.units import fold_ranks, format_duration, format_ratio

__all__ = ["pipeline_table"]


def pipeline_table(report: Report, *, show_all: bool) -> TableView | None:  # noqa: ARG001
    """Work of the stages beside each other."""
    result = report.pipeline
    if not result.positions:
        return None
    return TableView(
        title="Pipeline",
        caption="mean per step; work without waiting for other stages",
        columns=(
            TableColumn(title="stage", left=True),
            TableColumn(title="ranks", left=True),
            TableColumn(title="micro-batches"),
            TableColumn(title="work"),
            TableColumn(title="each"),
            TableColumn(title="beyond others"),
            TableColumn(title="waits"),
        ),
        rows=tuple(
            (
                ", ".join(map(str, position.stages)),
                fold_ranks(position.ranks),
                f"{position.num_micro_batches:g}",
                format_duration(position.work_ns_per_step),
                format_duration(position.work_ns_per_micro_batch),
                format_ratio(position.excess_ratio),
                format_duration(_waits(result, position.ranks)),
            )
            for position in result.positions
        ),
    )


def _waits(result: PipelineResult, ranks: tuple[int, ...]) -> float:
    """Mean waiting of these ranks, per step."""
    waits = [rank.wait_ns_per_step for rank in result.ranks if rank.rank in ranks]
    return sum(waits) / max(len(waits), 1)
