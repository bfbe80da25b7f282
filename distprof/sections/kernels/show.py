"""The device: why it was idle, which kernels take the time, and which rank runs them slower."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from distprof.sections.kernels.result import KernelRow
from distprof.sections.parts import is_cpu_only, is_whole_capture
from distprof.sections.table import Cell, TableColumn, TableView, counted, folded_ranks
from distprof.terms import ActivityKind
from distprof.units import format_duration, format_ratio

if TYPE_CHECKING:
    from distprof.sections.report import Report

__all__ = ["kernels_table", "speed_table"]

MAX_KERNELS_SHOWN = 10

_WORTH_UNLIKE_RATIO = 0.02

_ALIKE = 1.005

_COMMON_IN_NAMES = ("at::native::", "(anonymous namespace)::")

_WAITING_KINDS = (ActivityKind.COMMUNICATION.name.lower(), ActivityKind.WAITING.name.lower())


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
