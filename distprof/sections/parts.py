"""The parts of a mean step, shared by the verdict, the bar and the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from distprof.bounds import table_beside
from distprof.terms import StepSource
from distprof.units import format_duration

if TYPE_CHECKING:
    from distprof.sections.report import Report

MIN_LOSS_RATIO = 0.05  # A part below this share of the step does not dominate

_WORDS = table_beside(__package__, "losses.toml")


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a mean step."""

    key: str  # Field of the waterfall, without ``_ns``.
    label: str  # Label in bars and tables.
    ns: float  # Mean over ranks and steps, in ns.
    ratio: float  # Share of the span.


def parts_of(report: Report) -> tuple[Part, ...]:
    """All parts in the order of the waterfall; empty if nothing was measured."""
    everything = report.waterfall.all
    windows = report.waterfall.num_ranks * report.waterfall.num_steps
    if everything is None or everything.span_ns <= 0 or windows <= 0:
        return ()
    return tuple(
        Part(
            key=key,
            label=words["label"],
            ns=getattr(everything, f"{key}_ns") / windows,
            ratio=getattr(everything, f"{key}_ns") / everything.span_ns,
        )
        for key, words in _WORDS.items()
    )


def loss_words(key: str) -> tuple[str, str]:
    """What a verdict says of a part that dominates, and what to do about it."""
    return _WORDS[key]["said"], _WORDS[key]["action"]


def mean_span_ns(report: Report) -> float | None:
    """Length of the mean step over all ranks; None if nothing was measured."""
    parts = parts_of(report)
    return sum(part.ns for part in parts) if parts else None


def is_whole_capture(report: Report) -> bool:
    """Whether the whole capture was analysed as one window."""
    return report.step_time.source == StepSource.CAPTURE or report.step_time.num_steps == 0


def is_recorded(report: Report) -> bool:
    """Whether there is a trace or a run directory with content, not only another tool's log."""
    return bool(report.run.ranks or report.step_log.ranks or report.job.kind is not None)


def is_cpu_only(report: Report) -> bool:
    """Whether the job ran without GPUs and CPU threads were measured."""
    return report.run.device == "cpu"


def device_word(report: Report) -> str:
    """The word for what computes: ``GPU``, or ``CPU`` if there is none."""
    return "CPU" if is_cpu_only(report) else "GPU"


def window_word(report: Report) -> str:
    """The window that times refer to: ``step``, or ``capture`` without step marks."""
    return "capture" if is_whole_capture(report) else "step"


def each_window(report: Report) -> str:
    """The reference of a share in a sentence, for example ``each step``."""
    return "the whole capture" if is_whole_capture(report) else "each step"


def amount_text(report: Report, ns: float) -> str:
    """A part of the mean step in a sentence, for example ``6.90 ms of 22.3 ms``."""
    return f"{format_duration(ns)} of {format_duration(mean_span_ns(report))}"
