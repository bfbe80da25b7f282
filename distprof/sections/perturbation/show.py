"""What the profiler cost, in words and in a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distprof.sections.perturbation import PerturbationResult
from distprof.sections.table import TableView, facts_table
from distprof.terms import Severity
from distprof.units import format_duration, format_ratio

if TYPE_CHECKING:
    from distprof.sections.report import Report


def profiler_fact(known: PerturbationResult) -> str:
    """What the times of the report are and what recording cost; empty if nothing is known."""
    if not known.is_corrected or known.traced_ns is None:
        return ""
    traced, step = format_duration(known.traced_ns), format_duration(known.simulated_ns)
    text = f"times are without the profiler: a step took {traced} while traced, {step} without"
    if known.window_cost_ns:
        text += f"; recording cost the job {format_duration(known.window_cost_ns)}, once"
    return text


def is_undecided(report: Report) -> bool:
    """Whether the job may only seem launch-bound, because a profiler recorded it."""
    if not report.perturbation.is_estimated:
        return False
    return any(one.code == "HST101" and one.severity is Severity.INFO for one in report.findings)


def launch_sentence(report: Report) -> str:
    """Idle time that the profiler may have caused; empty if that is decided, or the verdict."""
    if not is_undecided(report) or report.findings[0].code == "HST101":
        return ""
    times = report.waterfall
    of_all = times.all.idle_host_ns if times.all else 0
    spent = of_all / max(times.num_ranks * times.num_steps, 1)
    part = format_duration(min(report.perturbation.explained_ns[1], round(spent)))
    return f"Up to {part} of late launches may be the profiler's doing: --step-time decides."


def perturbation_table(report: Report, *, show_all: bool) -> TableView | None:  # noqa: ARG001
    """The step as traced and without the profiler."""
    known = report.perturbation
    if known.traced_ns is None:
        return None
    facts = [("step as traced", format_duration(known.traced_ns))]
    if known.light_ns is not None:
        facts.append(("step with only the GPU recorded", format_duration(known.light_ns)))
    if known.untraced_ns is not None:
        text = format_duration(known.untraced_ns)
        if known.untraced_low_ns is not None:
            low, high = map(format_duration, (known.untraced_low_ns, known.untraced_high_ns))
            text += f" ({low} to {high}, {known.num_untraced} steps of the {known.origin})"
        facts.append(("step without the profiler", text))
    if known.is_corrected:
        facts.append(("step in this report", format_duration(known.simulated_ns)))
        facts.append(("cost of the profiler", _cost(known)))
    if known.window_cost_ns is not None:
        facts.append(("recording cost the job, once", format_duration(known.window_cost_ns)))
    return facts_table("Profiler", tuple(facts), notes=known.unavailable)


def _cost(known: PerturbationResult) -> str:
    ratio = "" if known.slowdown_ratio is None else format_ratio(known.slowdown_ratio)
    if known.is_paced_by_gpu:
        each = "unknown per operator, because the GPU or the input sets the pace"
        return f"{ratio} of a step; {each}" if ratio else each
    text = f"{format_duration(known.operator_ns)} for each of {known.num_operators:,} operators"
    if known.num_launches:
        call = format_duration(known.call_ns)
        text += f" and {call} for each of {known.num_launches:,} launches"
    return f"{text}: {ratio} of a step" if ratio else text
