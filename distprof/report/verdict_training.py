"""The first lines of a report on what a training program printed, without a trace."""

from __future__ import annotations

from distprof.analyzers.training_log import TrainingLogResult
from distprof.report.model import Report
from distprof.report.parts import is_of_training_log_alone
from distprof.report.verdict_nccl import nccl_verdict
from distprof.units import format_duration, format_ratio

__all__ = ["ideal_sentence", "micro_batches_text", "rate_text", "training_verdict"]

MIN_IDLE_RATIO = 0.05
MIN_SLOW_RATIO = 0.02


def training_verdict(report: Report) -> tuple[str, tuple[str, ...]] | None:
    """The verdict and the numbers behind it; None for a report on anything else."""
    if not is_of_training_log_alone(report):
        return None
    log = report.training_log
    nccl = nccl_verdict(report)
    told = nccl[0] if nccl else ""
    line = _line(log)
    if told and log.mean_ns is not None and log.idle_ratio is None:  # the best that is known
        time = f"An iteration takes {format_duration(log.mean_ns)}"
        line, told = f"{time}; {told[:1].lower()}{told[1:]}", ""
    why = (_waiting(log), _slow(log), _throughput(log), told)
    return line, tuple(sentence for sentence in why if sentence)


def ideal_sentence(log: TrainingLogResult) -> str:
    """For example ``4 micro-batches on 16 stages leave 78.9 % idle at best``; empty if unknown."""
    if log.ideal_bubble_ratio is None:
        return ""
    stages = f"{log.mesh['pp']} stages"
    if log.virtual_stages and log.virtual_stages > 1:
        stages = f"{log.mesh['pp']} × {log.virtual_stages} stages"
    batches = micro_batches_text(log.num_micro_batches or 0)
    return f"{batches} on {stages} leave {format_ratio(log.ideal_bubble_ratio)} idle at best"


def micro_batches_text(number: int) -> str:
    """For example ``1 micro-batch`` and ``256 micro-batches``."""
    return f"{number:,} micro-batch{'' if number == 1 else 'es'}"


def rate_text(log: TrainingLogResult) -> str:
    """Throughput as far as known, for example ``3.93 samples/s · 4,026 tokens/s``."""
    rates = (
        (log.printed_samples_per_s or log.samples_per_s, "samples/s"),
        (log.tokens_per_s, "tokens/s"),
        (log.tokens_per_s_per_device, "tokens/s per device"),
        (log.tflops, "TFLOP/s per device"),
    )
    return " · ".join(f"{_rate(rate)} {unit}" for rate, unit in rates if rate is not None)


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 1_000 else f"{rate:.3g}"


def _line(log: TrainingLogResult) -> str:
    if log.mean_ns is None:
        return f"The log of {log.origin} tells no times of iterations."
    time = f"An iteration takes {format_duration(log.mean_ns)}"
    if log.idle_ratio is None:
        return f"{time} (mean of {log.num_steady:,} reports): where it goes, a trace would tell."
    who = f"the {log.timer_stage} stage" if log.timer_stage else "the slowest rank"
    if log.mesh.get("pp", 1) < 2:
        who = "the rank of the timers"
    text = f"{time}, and {who} computes for {format_ratio(log.compute_ratio)} of it"
    ideal = ideal_sentence(log)
    return f"{text}: {ideal}." if ideal else f"{text}."


def _waiting(log: TrainingLogResult) -> str:
    """Timers that are waiting for other stages."""
    waits = [t for t in log.timers if t.waits and (t.ratio or 0) >= MIN_IDLE_RATIO]
    if not waits:
        return ""
    parts = [f"{t.name} {format_duration(t.mean_ns)}" for t in waits]
    return f"Most of what the timers call communication is waiting for stages: {', '.join(parts)}."


def _slow(log: TrainingLogResult) -> str:
    if not log.num_slow or not log.mean_ns or not log.slow_excess_ns:
        return ""
    if log.slow_excess_ns < MIN_SLOW_RATIO * log.mean_ns:
        return ""
    often = f", every {log.slow_period:,} iterations" if log.slow_period else ""
    return (
        f"{log.num_slow:,} of {log.num_steady:,} iterations are slow{often}: they add "
        f"{format_ratio(log.slow_excess_ns / log.mean_ns)} to the training."
    )


def _throughput(log: TrainingLogResult) -> str:
    text = rate_text(log)
    return f"Throughput: {text}." if text else ""
