"""Records of collectives: bandwidth by operation, and periods in which a rank or link was slow."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from distprof.sections.base import VerdictText
from distprof.sections.collective_log import CollectiveLogResult, LoggedOperation
from distprof.sections.parts import is_recorded
from distprof.sections.table import Column, TableView, counted, first_rows, rows_table
from distprof.units import NS_PER_S, format_bandwidth, format_bytes, format_duration, format_ratio

if TYPE_CHECKING:
    from distprof.sections.report import Report

MAX_ROWS = 12


def time_text(ns: int) -> str:
    """A time for people, in UTC: ``2025-02-23 16:24:18Z``."""
    return f"{datetime.fromtimestamp(ns // NS_PER_S, UTC):%Y-%m-%d %H:%M:%S}Z"


def operations_table(report: Report, *, show_all: bool) -> TableView | None:
    """Operations by kind and size, longest total time first."""
    result = report.collective_log
    return rows_table(
        "Collectives recorded by ranks",
        (
            Column("operation", "kind", left=True),
            Column("size", "num_bytes", form="bytes"),
            Column("ranks", "num_ranks"),
            Column("groups", "num_groups", wide_only=True),
            Column("records", "num_records"),
            Column("mean", "mean_ns"),
            Column("bus bandwidth", "busbw_bytes_per_s"),
            Column("slowest 5 %", "slow_busbw_bytes_per_s"),
        ),
        first_rows(result.operations, MAX_ROWS, show_all=show_all, noun="row"),
        caption="bandwidth without waiting for the last rank; size: bytes that a rank passes in",
        notes=result.unavailable,
    )


def spells_table(report: Report, *, show_all: bool) -> TableView | None:
    """Periods in which ranks mostly wait for one rank."""
    spells = report.collective_log.spells
    return rows_table(
        "Late ranks by period",
        (
            Column("rank", "rank"),
            Column("from", lambda one: time_text(one.start_ns), left=True),
            Column("until", lambda one: time_text(one.end_ns), left=True),
            Column("waiting", "wait_ratio"),
            Column("for this rank", "blamed_ratio"),
            Column("collectives", "num_compared"),
        ),
        first_rows(spells, MAX_ROWS, show_all=show_all, noun="row"),
    )


def falls_table(report: Report, *, show_all: bool) -> TableView | None:
    """Periods in which an operation was slower than usual."""
    falls = report.collective_log.falls
    return rows_table(
        "Periods of low bandwidth",
        (
            Column("operation", "kind", left=True),
            Column("size", "num_bytes", form="bytes"),
            Column("ranks", "num_ranks"),
            Column("from", lambda one: time_text(one.start_ns), left=True),
            Column("until", lambda one: time_text(one.end_ns), left=True),
            Column("bandwidth", "bytes_per_s"),
            Column("usual", "usual_bytes_per_s"),
        ),
        first_rows(falls, MAX_ROWS, show_all=show_all, noun="row"),
    )


# The first lines of a report on records of collectives alone ---------------------------------


def records_verdict(report: Report) -> VerdictText:
    """The verdict and the numbers behind it; None for other reports."""
    result = report.collective_log
    if not result.num_records or is_recorded(report) or report.training_log.origin:
        return None
    worst = result.operations[0] if result.operations else None
    lines = [*_waiting(result), *(_speed(worst) if worst else ())]
    return lines[0], tuple(lines[1:])


def records_origin(report: Report) -> str:
    """What the records cover."""
    result = report.collective_log
    if not result.num_records or is_recorded(report) or report.training_log.origin:
        return ""
    facts = ["records of collectives", counted(result.num_ranks, "rank")]
    facts.append(counted(result.num_records, "record"))
    if result.start_ns is not None and result.end_ns is not None:
        facts.append(f"over {format_duration(result.end_ns - result.start_ns)}")
    return " · ".join([*facts, "no traces"])


def _waiting(result: CollectiveLogResult) -> list[str]:
    if result.wait_ratio is None:
        return ["The records contain no collective whose ranks can be compared."]
    return [
        f"{format_ratio(result.wait_ratio)} of the time in collectives is spent waiting for the "
        f"last rank, according to {counted(result.num_compared, 'collective')} that all of their "
        "ranks recorded."
    ]


def _speed(one: LoggedOperation) -> tuple[str, ...]:
    if one.busbw_bytes_per_s is None:
        return ()
    return (
        f"Most time goes to {one.kind} of {format_bytes(one.num_bytes)} on "
        f"{counted(one.num_ranks, 'rank')}: bus bandwidth {format_bandwidth(one.busbw_bytes_per_s)}"
        f", below {format_bandwidth(one.slow_busbw_bytes_per_s)} in the slowest 5 %.",
    )
