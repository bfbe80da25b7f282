"""What probes recorded beside the traces: the whole training, memory, sensors, pauses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from distprof.sections.table import Cell, TableColumn, TableView, folded_ranks, number
from distprof.units import format_bytes

if TYPE_CHECKING:
    from distprof.sections.report import Report

__all__ = ["memory_table"]


def memory_table(report: Report, *, show_all: bool) -> TableView | None:
    """Memory by rank; on a CPU only when all is shown."""
    ranks = report.memory.ranks
    if not ranks or not (show_all or any(r.peak_allocated_bytes is not None for r in ranks)):
        return None
    values: list[tuple[float | None, ...]] = [
        (
            r.peak_allocated_bytes,
            r.reserved_bytes,
            r.num_retries,
            r.peak_rss_bytes,
            r.rss_growth_bytes_per_step,
        )
        for r in ranks
    ]
    return TableView(
        title="Memory",
        caption="highest over all steps",
        columns=(
            TableColumn(title="rank", left=True),
            TableColumn(title="allocated"),
            TableColumn(title="reserved"),
            TableColumn(title="retries"),
            TableColumn(title="process"),
            TableColumn(title="grows per step", wide_only=True),
        ),
        rows=folded_ranks([r.rank for r in ranks], values, _memory_cells, show_all=show_all),
    )


def _memory_cells(values: Sequence[float | None]) -> tuple[Cell, ...]:
    allocated, reserved, retries, process, growth = values
    return (
        format_bytes(allocated),
        format_bytes(reserved),
        number(retries),
        format_bytes(process),
        format_bytes(growth),
    )
