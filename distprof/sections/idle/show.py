"""The device: why it was idle, which kernels take the time, and which rank runs them slower."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from distprof.escape import short_ranks
from distprof.sections.parts import mean_span_ns, window_word
from distprof.sections.table import Cell, TableColumn, TableView, folded_ranks
from distprof.units import format_duration, format_ratio

if TYPE_CHECKING:
    from distprof.sections.report import Report

__all__ = ["idle_table", "pauses_table", "sync_table"]

MAX_CALLS_SHOWN = 5

_WORTH_IDLE_RATIO = 0.02

_WORTH_A_ROW_RATIO = 0.005

_IDLE_CAUSES = ("input_ns", "sync_ns", "host_ns", "comm_wait_ns", "unknown_ns")


def idle_table(report: Report, *, show_all: bool) -> TableView | None:
    """Each rank's idle time by cause."""
    ranks = report.idle.ranks
    launched = any(rank.late_launch_ratio is not None for rank in ranks)
    spans = {rank.rank: rank.span_ns for rank in report.breakdown.ranks}
    worth = any(r.idle_ns > _WORTH_IDLE_RATIO * spans.get(r.rank, 0) for r in ranks)
    if not ranks or not (show_all or (worth and len(ranks) > 1)):
        return None  # one rank's idle time is in the waterfall
    windows = max(report.waterfall.num_steps, 1)
    values: list[tuple[float | None, ...]] = [
        (
            rank.idle_ns / windows,
            *(getattr(rank, field) / windows for field in _IDLE_CAUSES),
            rank.late_launch_ratio,
        )
        for rank in ranks
    ]
    return TableView(
        title="Idle by cause",
        caption=f"per {window_word(report)}"
        + ("; late: launches that found the device idle" if launched else ""),
        columns=(
            TableColumn(title="rank", left=True),
            TableColumn(title="idle"),
            TableColumn(title="input"),
            TableColumn(title="sync call"),
            TableColumn(title="host"),
            TableColumn(title="after comm"),
            TableColumn(title="unknown"),
            *((TableColumn(title="late"),) if launched else ()),
        ),
        rows=folded_ranks(
            [r.rank for r in ranks],
            values,
            lambda row: _idle_cells(row, launched=launched),
            show_all=show_all,
        ),
    )


def sync_table(report: Report, *, show_all: bool) -> TableView | None:
    """Synchronising calls that left the device idle."""
    least = 0 if show_all else _WORTH_A_ROW_RATIO * (mean_span_ns(report) or 0)
    calls = [call for call in report.idle.sync_calls if call.idle_ns_per_step >= least]
    if not calls:
        return None
    shown = calls if show_all else calls[:MAX_CALLS_SHOWN]
    return TableView(
        title="Synchronising calls",
        caption=f"mean per rank and {window_word(report)}",
        columns=(
            TableColumn(title="call", left=True, stretch=True),
            TableColumn(title="calls"),
            TableColumn(title="host blocked"),
            TableColumn(title="device idle"),
            TableColumn(title="ranks", left=True),
        ),
        rows=tuple(
            (
                call.name,
                f"{call.count_per_step:,.1f}",
                format_duration(call.blocked_ns_per_step),
                format_duration(call.idle_ns_per_step),
                short_ranks(call.ranks, 20),
            )
            for call in shown
        ),
    )


def _idle_cells(values: Sequence[float | None], *, launched: bool) -> tuple[Cell, ...]:
    late = (format_ratio(values[-1]),) if launched else ()
    return (*(format_duration(value) for value in values[:-1]), *late)


# What probes recorded beside the traces: the whole training, memory, sensors, pauses -------------

_WORTH_PAUSES_RATIO = 0.01


def pauses_table(report: Report, *, show_all: bool) -> TableView | None:
    """Garbage collection and input waits by rank, where they matter."""
    ranks, step = report.pauses.ranks, report.step_log.median_ns
    least = _WORTH_PAUSES_RATIO * (step or 0)
    if not ranks or not (
        show_all or any(max(r.gc_ns_per_step, r.input_ns_per_step) > least for r in ranks)
    ):
        return None
    values: list[tuple[float | None, ...]] = [
        (r.gc_ns_per_step, r.longest_gc_ns, r.input_ns_per_step, r.longest_input_ns) for r in ranks
    ]
    return TableView(
        title="Pauses",
        caption="mean per step of the whole run, and the longest",
        columns=(
            TableColumn(title="rank", left=True),
            TableColumn(title="garbage collection"),
            TableColumn(title="longest"),
            TableColumn(title="input"),
            TableColumn(title="longest"),
        ),
        rows=folded_ranks(
            [r.rank for r in ranks],
            values,
            lambda row: tuple(format_duration(value) for value in row),
            show_all=show_all,
        ),
    )
