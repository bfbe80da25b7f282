"""What tables of other tools tell: collectives by class and rank, readiness of input."""

from __future__ import annotations

from distprof.report.escape import shorten
from distprof.report.model import Report
from distprof.report.views.table import Bar, TableColumn, TableView, counted, folded_ranks
from distprof.units import format_bytes, format_duration, format_ratio

__all__ = ["readiness_table", "summarised_classes_table", "summarised_ranks_table"]

MAX_ROWS = 12
_MAX_NAME = 60


def summarised_classes_table(report: Report, *, show_all: bool) -> TableView | None:
    """Collectives by class, those with most waiting first."""
    result = report.collective_summary
    if not result.classes:
        return None
    shown = result.classes if show_all else result.classes[:MAX_ROWS]
    left = len(result.classes) - len(shown)
    more = (f"{counted(left, 'more class')} with --all.",) if left > 0 else ()
    return TableView(
        title="Collectives by another tool",
        caption="mean call; it is shortest on the rank that comes last",
        columns=(
            TableColumn(title="operation", left=True),
            TableColumn(title="group", left=True, wide_only=True),
            TableColumn(title="size"),
            TableColumn(title="ranks", wide_only=True),
            TableColumn(title="calls"),
            TableColumn(title="mean"),
            TableColumn(title="shortest"),
            TableColumn(title="waiting"),
            TableColumn(title="last rank"),
            TableColumn(title="first rank"),
        ),
        rows=tuple(
            (
                one.kind,
                shorten(one.group, _MAX_NAME),
                format_bytes(one.num_bytes),
                f"{one.num_ranks:,}",
                f"{one.num_calls:,}",
                format_duration(one.mean_ns),
                format_duration(one.shortest_ns),
                format_duration(one.wait_ns) if one.is_compared else "–",
                str(one.last_rank) if one.is_compared else "–",
                str(one.first_rank) if one.is_compared else "–",
            )
            for one in shown
        ),
        notes=(*result.unavailable, *more),
    )


def summarised_ranks_table(report: Report, *, show_all: bool) -> TableView | None:
    """Ranks: what they spend in collectives, wait for others, and make others wait."""
    ranks = report.collective_summary.ranks
    if not ranks:
        return None
    return TableView(
        title="Waiting in collectives",
        caption="over all calls of the table",
        columns=(
            TableColumn(title="rank", left=True),
            TableColumn(title="in collectives"),
            TableColumn(title="waits"),
            TableColumn(title="others wait for it"),
        ),
        rows=folded_ranks(
            [one.rank for one in ranks],
            [(one.communication_ns, one.wait_ns, one.blamed_ns) for one in ranks],
            lambda values: tuple(format_duration(value) for value in values),
            show_all=show_all,
        ),
    )


def readiness_table(report: Report, *, show_all: bool) -> TableView | None:
    """Readiness of input by rank."""
    result = report.input_readiness
    if not result.ranks:
        return None
    periods = [
        f"Rank {one.rank} is the least ready from sample {one.first_sample:,} on, for "
        f"{counted(one.num_samples, 'sample')}: {format_ratio(one.mean_ratio)}."
        for one in result.periods[: None if show_all else MAX_ROWS]
    ]
    return TableView(
        title="Readiness of input",
        caption=f"{counted(result.num_samples, 'sample')}; 100 % where the loader never lags",
        columns=(
            TableColumn(title="rank", left=True),
            TableColumn(title="ready"),
            TableColumn(title="", left=True, stretch=True),
            TableColumn(title="least ready of all"),
        ),
        rows=folded_ranks(
            [one.rank for one in result.ranks],
            [(one.mean_ratio, one.least_ratio) for one in result.ranks],
            lambda values: (
                format_ratio(values[0]),
                Bar(ratio=values[0] or 0.0, key="idle_input"),
                format_ratio(values[1]),
            ),
            show_all=show_all,
        ),
        notes=(*periods, *result.unavailable),
    )
