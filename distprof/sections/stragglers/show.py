"""Communication: what hides it, what it costs by class, and who makes the others wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distprof.escape import short_ranks
from distprof.sections.parts import window_word
from distprof.sections.table import TableColumn, TableView, counted
from distprof.sections.verdict import culprits
from distprof.units import format_duration, format_ratio

if TYPE_CHECKING:
    from distprof.sections.report import Report

__all__ = ["stragglers_table"]

MAX_STRAGGLERS_SHOWN = 5


def stragglers_table(report: Report, *, show_all: bool) -> TableView | None:
    """Ranks by what they cost the others; only those with a pattern unless all is shown."""
    named = culprits(report)
    shown = report.stragglers.ranks if show_all else named[:MAX_STRAGGLERS_SHOWN]
    if not shown:
        return None
    notes = tuple(f"rank {r.rank}: {text}" for r in shown for text in r.evidence)
    if not show_all and len(named) > len(shown):
        more = counted(len(named) - len(shown), "more rank")
        ranks = short_ranks([r.rank for r in named[len(shown) :]])
        notes = (*notes, f"and {more}: {ranks}")
    return TableView(
        title="Stragglers",
        caption=f"lost: exposed wait of a typical other rank per {window_word(report)}",
        columns=(
            TableColumn(title="rank", left=True),
            TableColumn(title="lost"),
            TableColumn(title="share"),
            TableColumn(title="comes last"),
            TableColumn(title="pattern", left=True),
            TableColumn(title="cause", left=True),
            TableColumn(title="confidence"),
        ),
        rows=tuple(
            (
                str(r.rank),
                format_duration(r.lost_ns_per_step),
                format_ratio(r.share_of_step_ratio),
                format_ratio(r.late_ratio),
                r.pattern.value,
                r.cause.value.replace("_", " "),
                f"{100 * r.confidence:.0f} %",
            )
            for r in shown
        ),
        notes=notes,
    )
