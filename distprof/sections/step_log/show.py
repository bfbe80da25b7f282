"""The whole training, traced or not, according to the step log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distprof.sections.base import VerdictText
from distprof.sections.parts import MIN_LOSS_RATIO
from distprof.sections.step_log import StepLogResult
from distprof.sections.table import Column, TableView, counted, facts_table, ranks_table
from distprof.units import format_duration, format_ratio

if TYPE_CHECKING:
    from distprof.sections.report import Report

_WORTH_SAYING_RATIO = 0.01


def logged_verdict(report: Report) -> VerdictText:
    """The verdict from the step log; None without a step log, or with traces."""
    log = report.step_log
    if not log.ranks or report.run.ranks:
        return None
    gap = next((g.message for g in report.capture.gaps if g.what == "no-traces"), "")
    because = gap.rstrip(".") or "No trace was recorded"
    if log.median_ns is None:
        return f"{because}, so where the time went is unknown.", ()
    num_plain = max(rank.num_plain for rank in log.ranks)
    text = f"A step takes {format_duration(log.step_ns)} ({_of(log, num_plain)})"
    if log.input_ratio is not None and log.input_ratio >= MIN_LOSS_RATIO:
        text += f", {format_ratio(log.input_ratio)} of it waiting for input"
    return f"{text}. {because}: record a trace of a few steps to see where the rest goes.", ()


def _of(log: StepLogResult, num_plain: int) -> str:
    """Which steps the time of a step comes from."""
    if not log.smoothed_steps:
        return f"median of {counted(num_plain, 'step')}"
    return f"median of {len(log.samples_ns):,} means over {log.smoothed_steps:,} steps"


def training_table(report: Report, *, show_all: bool) -> TableView | None:  # noqa: ARG001
    """The whole training, from its step log."""
    log = report.step_log
    if not log.ranks:
        return None
    first = min(rank.first_step for rank in log.ranks)
    last = max(rank.last_step for rank in log.ranks)
    text = f"{first}-{last}" if last > first else str(first)
    if log.last_step is not None and log.last_step < last:
        text += f", on every rank up to {log.last_step}"
    facts = (
        ("steps", text),
        ("step time", _time_text(log)),
        ("traced steps", _traced_text(log)),
        ("throughput", _throughput_text(log)),
        ("phases", " · ".join(f"{n} {format_duration(t)}" for n, t in log.phases.items())),
        ("input", _input_text(log)),
        ("loss", _loss_text(log)),
    )
    return facts_table(
        "Training",
        facts,
        caption="all steps in the step log; times of steps without a profiler",
        notes=log.unavailable,
    )


def steps_table(report: Report, *, show_all: bool) -> TableView | None:
    """Steps of each rank, from its step log; only with --all."""
    ranks = report.step_log.ranks
    if not show_all or len(ranks) < 2:
        return None
    return ranks_table(
        "Steps by rank",
        (
            Column("steps", "num_steps"),
            Column("median", "median_ns"),
            Column("p95", "p95_ns"),
            Column("varies by", "cv"),
            Column("traced", "traced_median_ns"),
            Column("last loss", "last_loss", form="figure"),
        ),
        ranks,
        show_all=show_all,
        caption="steps without a profiler",
    )


def _time_text(log: StepLogResult) -> str:
    if log.median_ns is None:
        return ""
    text = f"{format_duration(log.median_ns)} median"
    if log.step_ns != log.median_ns:
        text = f"{format_duration(log.step_ns)}, mean over {log.smoothed_steps:,} steps; {text}"
    if log.p95_ns is not None and log.cv is not None:
        text += f", {format_duration(log.p95_ns)} p95, varies by {format_ratio(log.cv)}"
    return text


def _traced_text(log: StepLogResult) -> str:
    if log.traced_median_ns is None:
        return ""
    text = f"{format_duration(log.traced_median_ns)} median"
    if log.step_ns:
        more = log.traced_median_ns / log.step_ns - 1
        text += f", {format_ratio(abs(more))} {'longer' if more > 0 else 'shorter'}"
    return text


def _throughput_text(log: StepLogResult) -> str:
    rates = ((log.tokens_per_s, "tokens/s"), (log.samples_per_s, "samples/s"))
    return " · ".join(f"{format_rate(rate)} {unit}" for rate, unit in rates if rate is not None)


def format_rate(rate: float) -> str:
    """For example ``3.93`` and ``4,026``."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _input_text(log: StepLogResult) -> str:
    ratio = log.input_ratio
    return f"{format_ratio(ratio)} of a step" if ratio and ratio > _WORTH_SAYING_RATIO else ""


def _loss_text(log: StepLogResult) -> str:
    if log.first_loss is None or log.last_loss is None:
        return ""
    return f"{log.first_loss:.4g} → {log.last_loss:.4g}"
