"""Which kernels take the most time, and which rank runs them slower."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distprof.sections.kernels import KernelRow
from distprof.sections.parts import is_cpu_only, is_whole_capture
from distprof.sections.table import Column, TableView, first_rows, ranks_table, rows_table
from distprof.terms import ActivityKind

if TYPE_CHECKING:
    from distprof.sections.report import Report

MAX_KERNELS_SHOWN = 10

_NOTABLE_RATIO = 0.02

_EQUAL = 1.005

_COMMON_IN_NAMES = ("at::native::", "(anonymous namespace)::")

_WAITING_KINDS = (ActivityKind.COMMUNICATION.label, ActivityKind.WAITING.label)


def kernels_table(report: Report, *, show_all: bool) -> TableView | None:
    """Kernels by name; the kernel with the longest total comes first."""
    kernels = report.kernels.kernels
    total = sum(category.total_ns for category in report.kernels.categories)
    shown = first_rows(kernels, MAX_KERNELS_SHOWN, show_all=show_all, noun="name", note="and {}")
    compared = any(_compares_devices(row) for row in shown.rows)
    what = "operator" if is_cpu_only(report) else "kernel"
    slowest = "; slowest rank: its median relative to the median rank" if compared else ""
    return rows_table(
        f"{what.capitalize()}s",
        (
            Column(what, lambda row: short_kernel_name(row.name), left=True, stretch=True),
            Column("kind", "kind", left=True, wide_only=True),
            Column("share", lambda row: row.total_ns / total if total else None, form="ratio"),
            Column("count", "count"),
            Column("median", "median_ns"),
            Column("total", "total_ns", wide_only=True),
            Column("slowest rank", _slowest_text, left=True, when=compared),
        ),
        shown,
        caption=f"share of all {what} time{slowest}",
    )


def speed_table(report: Report, *, show_all: bool) -> TableView | None:
    """How fast each rank runs the kernels that it shares with its peers, if ranks differ."""
    ranks = [r for r in report.kernels.ranks if r.relative_work is not None]
    counts = not is_whole_capture(report)  # captures of different lengths hold different counts
    differs = any(
        abs((r.relative_time or 1) - 1) > _NOTABLE_RATIO
        or (counts and abs((r.relative_work or 1) - 1) > _NOTABLE_RATIO)
        for r in ranks
    )
    if not (differs or show_all):
        return None
    return ranks_table(
        "Kernel speed by rank",
        (
            Column("time per kernel", "relative_time", form="ratio"),
            Column("number of kernels", "relative_work", form="ratio", when=counts),
            Column("names compared", "num_shared_kernels"),
        ),
        ranks,
        show_all=show_all,
        caption="computation kernels that ranks share, compared by name; 100 %: "
        + ("the median rank" if len(ranks) > 2 else "the faster rank"),
    )


def short_kernel_name(name: str) -> str:
    """The kernel name without parts common to all C++ kernels; the JSON keeps the whole name."""
    for common in _COMMON_IN_NAMES:
        name = name.replace(common, "")
    return name.removeprefix("void ")


def _compares_devices(row: KernelRow) -> bool:
    """Whether a longer kernel means a slower GPU; in communication it means longer waiting."""
    return row.slowest_rank is not None and row.kind not in _WAITING_KINDS


def _slowest_text(row: KernelRow) -> str:
    if not _compares_devices(row) or row.spread is None:
        return "–"
    return "equal" if row.spread < _EQUAL else f"{row.slowest_rank} ({row.spread:.2f} ×)"
