"""Memory of GPUs and processes by rank, from the probes' counters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distprof.sections.table import Column, TableView, ranks_table

if TYPE_CHECKING:
    from distprof.sections.report import Report


def memory_table(report: Report, *, show_all: bool) -> TableView | None:
    """Memory by rank; on a CPU only with --all."""
    ranks = report.memory.ranks
    if not (show_all or any(r.peak_allocated_bytes is not None for r in ranks)):
        return None
    return ranks_table(
        "Memory",
        (
            Column("allocated", "peak_allocated_bytes"),
            Column("reserved", "reserved_bytes"),
            Column("retries", "num_retries"),
            Column("process", "peak_rss_bytes"),
            Column("grows per step", "rss_growth_bytes_per_step", wide_only=True),
        ),
        ranks,
        show_all=show_all,
        caption="maximum over all steps",
    )
