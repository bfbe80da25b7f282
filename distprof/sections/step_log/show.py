"""What probes recorded beside the traces: the whole training, memory, sensors, pauses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from distprof.sections.step_log.result import RankStepLog, StepLogResult
from distprof.sections.table import Cell, TableColumn, TableView, folded_ranks, number
from distprof.units import format_duration, format_ratio

if TYPE_CHECKING:
    from distprof.sections.report import Report

__all__ = ["steps_table", "training_table"]

_WORTH_SAYING_RATIO = 0.01


def training_table(report: Report, *, show_all: bool) -> TableView | None:  # noqa: ARG001
    """The whole training by its step log, as pairs."""
    log = report.step_log
    if not log.ranks:
        return None
    pairs = (
        ("steps", _steps_text(log)),
        ("step time", _time_text(log)),
        ("traced steps", _traced_text(log)),
        ("throughput", _throughput_text(log)),
        ("phases", " · ".join(f"{n} {format_duration(t)}" for n, t in log.phases.items())),
        ("input", _input_text(log)),
        ("loss", _loss_text(log)),
    )
    return TableView(
        title="Training",
        caption="all steps by the step log; times of steps without a profiler",
        columns=(TableColumn(title="", left=True), TableColumn(title="", left=True, wrap=True)),
        rows=tuple((name, text) for name, text in pairs if text),
        notes=log.unavailable,
    )


def steps_table(report: Report, *, show_all: bool) -> TableView | None:
    """Each rank's steps by its step log; only when all is shown."""
    ranks = report.step_log.ranks
    if not show_all or len(ranks) < 2:
        return None
    values = [_step_values(rank) for rank in ranks]
    return TableView(
        title="Steps by rank",
        caption="steps without a profiler",
        columns=(
            TableColumn(title="rank", left=True),
            TableColumn(title="steps"),
            TableColumn(title="median"),
            TableColumn(title="p95"),
            TableColumn(title="varies by"),
            TableColumn(title="traced"),
            TableColumn(title="last loss"),
        ),
        rows=folded_ranks([r.rank for r in ranks], values, _step_cells, show_all=show_all),
    )


def _steps_text(log: StepLogResult) -> str:
    first = min(rank.first_step for rank in log.ranks)
    last = max(rank.last_step for rank in log.ranks)
    text = f"{first}-{last}" if last > first else str(first)
    if log.last_step is not None and log.last_step < last:
        text += f", on every rank to {log.last_step}"
    return text


def _time_text(log: StepLogResult) -> str:
    if log.median_ns is None:
        return ""
    text = f"{format_duration(log.median_ns)} median"
    if log.p95_ns is not None and log.cv is not None:
        text += f", {format_duration(log.p95_ns)} p95, varies by {format_ratio(log.cv)}"
    return text


def _traced_text(log: StepLogResult) -> str:
    if log.traced_median_ns is None:
        return ""
    text = f"{format_duration(log.traced_median_ns)} median"
    if log.median_ns:
        more = log.traced_median_ns / log.median_ns - 1
        text += f", {format_ratio(abs(more))} {'longer' if more > 0 else 'shorter'}"
    return text


def _throughput_text(log: StepLogResult) -> str:
    rates = ((log.tokens_per_s, "tokens/s"), (log.samples_per_s, "samples/s"))
    return " · ".join(f"{_short(rate)} {unit}" for rate, unit in rates if rate is not None)


def _short(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _input_text(log: StepLogResult) -> str:
    ratio = log.input_ratio
    return f"{format_ratio(ratio)} of a step" if ratio and ratio > _WORTH_SAYING_RATIO else ""


def _loss_text(log: StepLogResult) -> str:
    if log.first_loss is None or log.last_loss is None:
        return ""
    return f"{log.first_loss:.4g} → {log.last_loss:.4g}"


def _step_values(rank: RankStepLog) -> tuple[float | None, ...]:
    return (
        rank.num_steps,
        rank.median_ns,
        rank.p95_ns,
        rank.cv,
        rank.traced_median_ns,
        rank.last_loss,
    )


def _step_cells(values: Sequence[float | None]) -> tuple[Cell, ...]:
    steps, median, p95, cv, traced, loss = values
    return (
        number(steps),
        format_duration(median),
        format_duration(p95),
        format_ratio(cv),
        format_duration(traced),
        "–" if loss is None else f"{loss:.4g}",
    )
