"""What training programs printed, as tables."""

from __future__ import annotations

from distprof.analyzers.training_log import TrainingLogResult
from distprof.report.model import Report
from distprof.report.verdict_training import ideal_sentence, micro_batches_text, rate_text
from distprof.report.views.table import Bar, TableColumn, TableView, counted
from distprof.units import format_duration, format_ratio

__all__ = ["slow_iterations_table", "timers_table", "training_log_table"]

MAX_ROWS = 15
_AXES = ("tp", "pp", "dp", "cp", "ep")


def training_log_table(report: Report, *, show_all: bool) -> TableView | None:  # noqa: ARG001
    """The training by its own log, as pairs."""
    log = report.training_log
    if not log.origin:
        return None
    pairs = (
        ("iterations", _iterations(log)),
        ("time of one", _time(log)),
        ("traced steps", _traced(report)),
        ("throughput", rate_text(log)),
        ("layout", _layout(log)),
        ("pipeline", _pipeline(log)),
        ("slow ones", _slow(log)),
        ("loss", _loss(log)),
    )
    return TableView(
        title="Training log",
        caption=f"as {log.origin} printed it",
        columns=(TableColumn(title="", left=True), TableColumn(title="", left=True, wrap=True)),
        rows=tuple((name, text) for name, text in pairs if text),
        notes=log.unavailable,
    )


def timers_table(report: Report, *, show_all: bool) -> TableView | None:
    """The program's timers, longest first."""
    log = report.training_log
    if not log.timers:
        return None
    shown = log.timers if show_all else log.timers[:MAX_ROWS]
    left = len(log.timers) - len(shown)
    stage = f"of the {log.timer_stage} stage" if log.timer_stage else "of a rank"
    return TableView(
        title="Timers",
        caption=f"{stage}, mean per iteration; timers may contain each other",
        columns=(
            TableColumn(title="timer", left=True),
            TableColumn(title="time"),
            TableColumn(title="share"),
            TableColumn(title="", left=True, stretch=True),
            TableColumn(title="mostly", left=True, wide_only=True),
        ),
        rows=tuple(
            (
                timer.name,
                format_duration(timer.mean_ns),
                "–" if timer.ratio is None else format_ratio(timer.ratio),
                Bar(
                    ratio=min(timer.ratio or 0.0, 1.0),
                    key="exposed_wait" if timer.waits else "computation",
                ),
                "waiting for stages" if timer.waits else "",
            )
            for timer in shown
        ),
        notes=(f"{counted(left, 'more timer')} with --all.",) if left > 0 else (),
    )


def slow_iterations_table(report: Report, *, show_all: bool) -> TableView | None:
    """The slowest iterations; only when all is shown."""
    log = report.training_log
    if not show_all or not log.slowest or not log.median_ns:
        return None
    return TableView(
        title="Slowest iterations",
        caption="against the median of their neighbours, beyond 1.2 times",
        columns=(TableColumn(title="iteration"), TableColumn(title="time")),
        rows=tuple(
            (
                "–" if one.iteration is None else f"{one.iteration:,}",
                format_duration(one.duration_ns),
            )
            for one in log.slowest
        ),
    )


def _iterations(log: TrainingLogResult) -> str:
    text = counted(log.num_reports, "report")
    if log.first_iteration is not None and log.last_iteration is not None:
        text += f", iterations {log.first_iteration:,} to {log.last_iteration:,}"
    if log.num_restarts:
        text += f", {counted(log.num_restarts, 'restart')}"
    return text


def _time(log: TrainingLogResult) -> str:
    if log.mean_ns is None:
        return ""
    text = (
        f"mean {format_duration(log.mean_ns)} · median {format_duration(log.median_ns)} · "
        f"p95 {format_duration(log.p95_ns)} · longest {format_duration(log.max_ns)}"
    )
    return text if log.cv is None else f"{text} · varies by {format_ratio(log.cv)}"


def _traced(report: Report) -> str:
    """What a profiler's steps take beside those of the log."""
    steps, log = report.step_time, report.training_log
    if not steps.num_steps or steps.median_ns is None or not log.median_ns or not report.run.ranks:
        return ""
    ratio = steps.median_ns / log.median_ns - 1
    return f"{format_duration(steps.median_ns)} in the trace ({100 * ratio:+.1f} % to the median)"


def _layout(log: TrainingLogResult) -> str:
    facts = [
        counted(log.world_size, "rank") if log.world_size else "",
        *(f"{axis} {log.mesh[axis]}" for axis in _AXES if log.mesh.get(axis, 1) > 1),
        micro_batches_text(log.num_micro_batches) if log.num_micro_batches else "",
        f"batch {log.global_batch_size:,}" if log.global_batch_size else "",
        f"{log.sequence_length:,} tokens each" if log.sequence_length else "",
    ]
    return " · ".join(fact for fact in facts if fact)


def _pipeline(log: TrainingLogResult) -> str:
    if log.idle_ratio is None:
        return ideal_sentence(log)
    who = f"the {log.timer_stage} stage" if log.timer_stage else "the rank of the timers"
    text = f"{who} does not compute for {format_ratio(log.idle_ratio)} of an iteration"
    ideal = ideal_sentence(log)
    return f"{text}; {ideal}" if ideal else text


def _slow(log: TrainingLogResult) -> str:
    if not log.num_slow:
        return ""
    often = f", every {log.slow_period:,}" if log.slow_period else ""
    return f"{log.num_slow:,} beyond 1.2 times the median of their neighbours{often}"


def _loss(log: TrainingLogResult) -> str:
    if log.first_loss is None or log.last_loss is None:
        return ""
    return f"{log.first_loss:.4g} to {log.last_loss:.4g}"
