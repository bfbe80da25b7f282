"""What probes recorded beside the traces: the whole training, memory, sensors, pauses."""

from __future__ import annotations

from collections.abc import Sequence

from distprof.analyzers.step_log import RankStepLog, StepLogResult
from distprof.report.model import Report
from distprof.report.views.table import Cell, TableColumn, TableView, folded_ranks, number
from distprof.units import format_bytes, format_duration, format_ratio

__all__ = [
    "memory_table",
    "pauses_table",
    "steps_table",
    "telemetry_table",
    "training_table",
]

_WORTH_PAUSES_RATIO = 0.01
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


def memory_table(report: Report, *, show_all: bool) -> TableView | None:
    """Memory by rank; on a CPU only when all is shown."""
    ranks = report.memory.ranks
    if not ranks or not (show_all or any(r.peak_allocated_bytes is not None for r in ranks)):
        return None
    values: list[tuple[float | None, ...]] = [
        (
            r.peak_allocated_bytes,
            r.reserved_bytes,
            r.num_retries,
            r.peak_rss_bytes,
            r.rss_growth_bytes_per_step,
        )
        for r in ranks
    ]
    return TableView(
        title="Memory",
        caption="highest over all steps",
        columns=(
            TableColumn(title="rank", left=True),
            TableColumn(title="allocated"),
            TableColumn(title="reserved"),
            TableColumn(title="retries"),
            TableColumn(title="process"),
            TableColumn(title="grows per step", wide_only=True),
        ),
        rows=folded_ranks([r.rank for r in ranks], values, _memory_cells, show_all=show_all),
    )


def telemetry_table(report: Report, *, show_all: bool) -> TableView | None:
    """Sensors by rank."""
    ranks = report.telemetry.ranks
    if not ranks:
        return None
    values: list[tuple[float | None, ...]] = [
        (
            r.sm_clock_mhz_median,
            r.sm_clock_mhz_min,
            r.throttled_ratio,
            r.power_w_mean,
            r.temperature_c_max,
            r.gpu_utilization_ratio,
            r.memory_used_bytes,
        )
        for r in ranks
    ]
    reasons = dict.fromkeys(reason for r in ranks for reason in r.throttle_reasons)
    notes = [f"slowed down by: {', '.join(reasons)}"] if reasons else []
    notes += [f"rank {r.rank}: XID errors {', '.join(map(str, r.xid))}" for r in ranks if r.xid]
    return TableView(
        title="Sensors",
        caption="over the whole run",
        columns=(
            TableColumn(title="rank", left=True),
            TableColumn(title="clock"),
            TableColumn(title="lowest"),
            TableColumn(title="slowed"),
            TableColumn(title="power"),
            TableColumn(title="heat"),
            TableColumn(title="busy"),
            TableColumn(title="memory"),
        ),
        rows=folded_ranks([r.rank for r in ranks], values, _sensor_cells, show_all=show_all),
        notes=tuple(notes),
    )


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


def _memory_cells(values: Sequence[float | None]) -> tuple[Cell, ...]:
    allocated, reserved, retries, process, growth = values
    return (
        format_bytes(allocated),
        format_bytes(reserved),
        number(retries),
        format_bytes(process),
        format_bytes(growth),
    )


def _sensor_cells(values: Sequence[float | None]) -> tuple[Cell, ...]:
    clock, lowest, slowed, power, heat, busy, memory = values
    return (
        number(clock, " MHz"),
        number(lowest, " MHz"),
        format_ratio(slowed),
        number(power, " W"),
        number(heat, " °C"),
        format_ratio(busy),
        format_bytes(memory),
    )
