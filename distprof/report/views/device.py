"""The device: why it was idle, which kernels take the time, and which rank runs them slower."""

from __future__ import annotations

from collections.abc import Sequence

from distprof.analyzers.kernels import KernelRow
from distprof.report.escape import short_ranks
from distprof.report.model import Report
from distprof.report.parts import is_cpu_only, is_whole_capture, mean_span_ns, window_word
from distprof.report.views.table import Cell, TableColumn, TableView, counted, folded_ranks
from distprof.terms import ActivityKind
from distprof.units import format_duration, format_ratio

__all__ = ["idle_table", "kernels_table", "speed_table", "sync_table"]

MAX_KERNELS_SHOWN = 10
MAX_CALLS_SHOWN = 5
_WORTH_IDLE_RATIO = 0.02
_WORTH_UNLIKE_RATIO = 0.02
_WORTH_A_ROW_RATIO = 0.005
_ALIKE = 1.005
_COMMON_IN_NAMES = ("at::native::", "(anonymous namespace)::")
_WAITING_KINDS = (ActivityKind.COMMUNICATION.name.lower(), ActivityKind.WAITING.name.lower())
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


def kernels_table(report: Report, *, show_all: bool) -> TableView | None:
    """Kernels by name, longest total first."""
    kernels = report.kernels.kernels
    if not kernels:
        return None
    total = sum(category.total_ns for category in report.kernels.categories)
    shown = kernels if show_all else kernels[:MAX_KERNELS_SHOWN]
    left_out = len(kernels) - len(shown)
    compared = any(_compares_devices(row) for row in shown)
    what = "operator" if is_cpu_only(report) else "kernel"
    slowest = "; slowest: its median over the median rank's" if compared else ""
    return TableView(
        title=f"{what.capitalize()}s",
        caption=f"share of all {what} time{slowest}",
        columns=(
            TableColumn(title=what, left=True, stretch=True),
            TableColumn(title="kind", left=True, wide_only=True),
            TableColumn(title="share"),
            TableColumn(title="count"),
            TableColumn(title="median"),
            TableColumn(title="total", wide_only=True),
            *((TableColumn(title="slowest rank", left=True),) if compared else ()),
        ),
        rows=tuple(_kernel_cells(row, total, compared=compared) for row in shown),
        notes=(f"and {counted(left_out, 'more name')}",) if left_out else (),
    )


def speed_table(report: Report, *, show_all: bool) -> TableView | None:
    """How fast each rank runs the kernels it shares with its peers, where ranks differ."""
    ranks = [r for r in report.kernels.ranks if r.relative_work is not None]
    counts = not is_whole_capture(report)  # captures differ in length, and so in kernels
    values: list[tuple[float | None, ...]] = [
        (r.relative_time, *((r.relative_work,) if counts else ()), float(r.num_shared_kernels))
        for r in ranks
    ]
    differs = any(
        abs((r.relative_time or 1) - 1) > _WORTH_UNLIKE_RATIO
        or (counts and abs((r.relative_work or 1) - 1) > _WORTH_UNLIKE_RATIO)
        for r in ranks
    )
    if not (differs or (show_all and ranks)):
        return None
    return TableView(
        title="Rank against rank",
        caption="the same computation kernels; 100 %: "
        + ("the median rank, name by name" if len(ranks) > 2 else "the faster, name by name"),
        columns=(
            TableColumn(title="rank", left=True),
            TableColumn(title="time of a kernel"),
            *((TableColumn(title="number of kernels"),) if counts else ()),
            TableColumn(title="names compared"),
        ),
        rows=folded_ranks([r.rank for r in ranks], values, _speed_cells, show_all=show_all),
    )


def _idle_cells(values: Sequence[float | None], *, launched: bool) -> tuple[Cell, ...]:
    late = (format_ratio(values[-1]),) if launched else ()
    return (*(format_duration(value) for value in values[:-1]), *late)


def _speed_cells(values: Sequence[float | None]) -> tuple[Cell, ...]:
    *ratios, names = values
    texts = (format_ratio(ratio) for ratio in ratios)
    return (*texts, f"{names:,.0f}" if names is not None else "–")


def short_kernel_name(name: str) -> str:
    """A kernel's name without what all C++ kernels have in common; the report keeps it whole."""
    for common in _COMMON_IN_NAMES:
        name = name.replace(common, "")
    return name.removeprefix("void ")


def _compares_devices(row: KernelRow) -> bool:
    """Whether a longer kernel is a slower device: in communication it is one that waits longer."""
    return row.slowest_rank is not None and row.kind not in _WAITING_KINDS


def _kernel_cells(row: KernelRow, total_ns: int, *, compared: bool) -> tuple[Cell, ...]:
    slowest = "–"
    if _compares_devices(row) and row.spread is not None:
        alike = row.spread < _ALIKE
        slowest = "alike" if alike else f"{row.slowest_rank} ({row.spread:.2f} ×)"
    return (
        short_kernel_name(row.name),
        row.kind,
        format_ratio(row.total_ns / total_ns if total_ns else None),
        f"{row.count:,}",
        format_duration(row.median_ns),
        format_duration(row.total_ns),
        *((slowest,) if compared else ()),
    )
