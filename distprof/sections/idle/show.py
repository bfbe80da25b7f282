"""Why the GPU was idle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distprof.escape import short_ranks
from distprof.sections.parts import (
    MIN_LOSS_RATIO,
    Part,
    amount_text,
    device_word,
    each_window,
    is_cpu_only,
    loss_words,
    mean_span_ns,
    parts_of,
    window_word,
)
from distprof.sections.table import Column, TableView, ranks_table, rows_table
from distprof.units import format_ratio

if TYPE_CHECKING:
    from distprof.sections.report import Report

MAX_CALLS_SHOWN = 5
_MIN_IDLE_RATIO = 0.02
_MIN_ROW_RATIO = 0.005
_MIN_PAUSES_RATIO = 0.01


def idle_words(report: Report, idle: Part) -> tuple[str, str]:
    """The verdict if idle time of one cause dominates; then the amount, and what to do."""
    loss, action = loss_words(idle.key)
    if idle.key == "idle_unknown":
        loss, action = _unknown_words(report, loss, action)
    words = {
        "device": device_word(report),
        "share": f"{format_ratio(idle.ratio)} of {each_window(report)}",
    }
    detail = f"{amount_text(report, idle.ns)}. {action.format_map(words)}"
    return loss.format_map(words), detail


def _unknown_words(report: Report, loss: str, action: str) -> tuple[str, str]:
    """The sentence on idle time of unknown cause, and how to find the cause."""
    if is_cpu_only(report):
        loss = "The CPU spends {share} between operators (Python or blocked)"
        return loss, "Use fewer, larger operators. Record stacks to see what runs between them."
    if not report.idle.ranks:
        return loss, action
    inside = sum(rank.within_launch_ns for rank in report.idle.ranks)
    if inside > sum(rank.unknown_ns for rank in report.idle.ranks) / 2:
        action = (
            "Most of it is inside CUDA graphs, whose kernels the trace may lack: "
            "record once without graphs."
        )
        return loss, action
    return loss, "Look at the gaps in a timeline."


def idle_sentence(report: Report) -> str:
    """How much of a step the GPU is idle, and the main cause."""
    idle = [part for part in parts_of(report) if part.key.startswith("idle_")]
    total = sum(part.ratio for part in idle)
    if total < MIN_LOSS_RATIO or report.capture.filtered_ranks:
        return ""
    worst = max(idle, key=lambda part: part.ns)
    return (
        f"The {device_word(report)} is idle {format_ratio(total)} of {each_window(report)}, "
        f"mostly {worst.label.removeprefix('idle: ')} ({format_ratio(worst.ratio)})."
    )


def idle_table(report: Report, *, show_all: bool) -> TableView | None:
    """The idle time of each rank by cause."""
    ranks = report.idle.ranks
    launched = any(rank.late_launch_ratio is not None for rank in ranks)
    spans = {rank.rank: rank.span_ns for rank in report.breakdown.ranks}
    matters = any(r.idle_ns > _MIN_IDLE_RATIO * spans.get(r.rank, 0) for r in ranks)
    if not (show_all or (matters and len(ranks) > 1)):
        return None  # the waterfall shows the idle time of a single rank
    windows = max(report.waterfall.num_steps, 1)

    def cause(title: str, field: str) -> Column:
        return Column(title, lambda rank: getattr(rank, field) / windows, form="ns")

    return ranks_table(
        "Idle by cause",
        (
            cause("idle", "idle_ns"),
            cause("input", "input_ns"),
            cause("sync call", "sync_ns"),
            cause("pause", "pause_ns"),
            cause("CPU", "host_ns"),
            cause("after comm", "comm_wait_ns"),
            cause("unknown", "unknown_ns"),
            Column("late", "late_launch_ratio", when=launched),
        ),
        ranks,
        show_all=show_all,
        caption=f"per {window_word(report)}"
        + ("; late: share of launches that found the GPU idle" if launched else ""),
    )


def cpu_pauses_table(report: Report, *, show_all: bool) -> TableView | None:
    """What CPUs did while they left the GPU idle."""
    min_ns = 0 if show_all else _MIN_ROW_RATIO * (mean_span_ns(report) or 0)
    found = [pause for pause in report.idle.pauses if pause.idle_ns_per_step >= min_ns]
    return rows_table(
        "What CPUs did instead of launching",
        (
            Column("call or range", "name", left=True, stretch=True),
            Column("in", "caller", left=True, when=any(pause.caller for pause in found)),
            Column("times", lambda pause: f"{pause.count_per_step:,.1f}"),
            Column("CPU time", "cpu_ns_per_step"),
            Column("GPU idle", "idle_ns_per_step"),
            Column("ranks", lambda pause: short_ranks(pause.ranks, 20), left=True),
        ),
        found if show_all else found[:MAX_CALLS_SHOWN],
        caption=f"mean per rank and {window_word(report)}",
    )


def pauses_table(report: Report, *, show_all: bool) -> TableView | None:
    """Garbage collection and waits for input by rank, if they matter."""
    ranks, step = report.pauses.ranks, report.step_log.step_ns
    min_ns = _MIN_PAUSES_RATIO * (step or 0)
    if not (show_all or any(max(r.gc_ns_per_step, r.input_ns_per_step) > min_ns for r in ranks)):
        return None
    return ranks_table(
        "Pauses",
        (
            Column("garbage collection", "gc_ns_per_step"),
            Column("longest", "longest_gc_ns"),
            Column("input", "input_ns_per_step"),
            Column("longest", "longest_input_ns"),
        ),
        ranks,
        show_all=show_all,
        caption="mean per step over the whole run, and the longest pause",
    )
