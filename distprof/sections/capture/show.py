"""The recording: what was captured, its quality, and what could not be checked."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from distprof.artefacts.record import grouped
from distprof.escape import short_ranks
from distprof.run.run import ANOTHER_JOB, RECENT_STEPS
from distprof.sections.base import VerdictText
from distprof.sections.capture import FILTERED, LEFT_OUT, CaptureResult
from distprof.sections.capture.measure import NO_DEVICE
from distprof.sections.job.show import mesh_text
from distprof.sections.parts import is_whole_capture
from distprof.sections.table import Column, TableView, counted, facts_table, first_rows, rows_table
from distprof.terms import StepSource
from distprof.units import capitalized, format_duration, format_ratio

if TYPE_CHECKING:
    from distprof.sections.report import Report

MAX_NOTES_SHOWN = 12

_DOUBTFUL = 0.05
"""Acceptable share of causality violations: a clock's residual is only a 95th percentile."""


def damage_fact(report: Report) -> str:
    """Everything in the recording that makes numbers or causes uncertain; empty without any."""
    gaps = report.capture.gaps
    facts = dict.fromkeys(gap.fact for gap in gaps if gap.fact)
    is_damaged = any(gap.what == "damaged" for gap in gaps)
    return " · ".join(facts) or ("partly damaged" if is_damaged else "")


def recording_line(report: Report) -> str:
    """Contents of the traces or records of a run."""
    run = report.run
    recorded = len(run.ranks)
    is_empty = not (run.world_size or report.step_log.ranks or report.job.kind is not None)
    if not recorded and (report.placement.machines or is_empty):
        return "no ranks · no steps"
    ranks = f"{recorded} of {run.world_size} ranks" if run.world_size else f"{recorded} ranks"
    if recorded == 1 and run.world_size in (1, None):
        ranks = "1 rank"
    if recorded == 0 and report.job.kind is not None:
        world = run.world_size
        ranks = f"{counted(world, 'rank')}, none traced" if world else "no rank traced"
    steps = report.step_time.num_steps
    window = counted(steps, "step")
    if is_whole_capture(report):
        window = "whole capture" if report.capture.steps else "no common step"
        if not (report.capture.steps or report.capture.dropped_steps):
            window = "no steps"
    if recorded == 0 and report.step_log.ranks:
        window = f"{counted(report.step_log.num_steps, 'step')} logged"
    what = run.strategy or report.job.workload
    mesh = mesh_text(run.mesh, what) if report.job.kind is not None else ""
    facts = [what, mesh, ranks, window, _left_out(report), run.backend, run.device]
    facts += [_clock_fact(report), _stacks_fact(report)]
    return " · ".join(fact for fact in facts if fact)


def quality_table(report: Report, *, show_all: bool) -> TableView | None:
    """Quality of the recording; without ``show_all``, only what needs attention."""
    facts = _coverage(report)
    if report.step_time.source != StepSource.OPERATIONS:
        capture = report.capture
        counts = (
            ("events repaired", capture.num_repaired),
            ("events discarded", capture.num_quarantined),
            ("durations set to 0", capture.num_clamped),
            ("without a launch record", capture.num_unlaunched),
        )
        damage = [(name, f"{count:,}") for name, count in counts if count or show_all]
        facts += [("events", f"{capture.num_events:,}"), *damage]
    gaps = tuple(gap.message for gap in report.capture.gaps)
    results = (
        report.breakdown,
        report.step_time,
        report.overlap,
        report.collectives,
        report.stragglers,
        report.idle,
        report.kernels,
        report.waterfall,
        report.capture,
        *((report.whatif,) if report.step_time.source == StepSource.OPERATIONS else ()),
    )
    sentences = [sentence for result in results for sentence in result.unavailable]
    notes = _sentences((*gaps, *report.capture.notes, *tuple(dict.fromkeys(sentences))), report)
    shown = len(notes) if show_all else MAX_NOTES_SHOWN
    left_out = len(notes) - shown
    more = (f"and {left_out} more",) if left_out > 0 else ()
    return facts_table("Recording", facts, notes=(*notes[:shown], *more))


def clocks_table(report: Report, *, show_all: bool) -> TableView | None:
    """Corrections of the clocks, if there is more than one clock."""
    clocks = report.capture.clocks
    if len(clocks) < 2:
        return None
    return rows_table(
        "Clocks",
        (
            Column("clock", "name", left=True, stretch=True),
            Column("ranks", lambda clock: short_ranks(clock.ranks, 20), left=True),
            Column("offset", "offset_ns"),
            Column("drift", lambda c: f"{c.drift_ppm:.2f} ppm" if c.drift_ppm else "none seen"),
            Column("residual", "residual_ns"),
        ),
        first_rows(clocks, 8, show_all=show_all, noun="clock", note="and {}"),
        caption="no rank is blamed for less than the residual of its clock",
    )


def not_checked_table(report: Report, *, show_all: bool) -> TableView | None:  # noqa: ARG001
    """Rules that lacked their evidence; rules with the same reason share a line."""
    by_reason = grouped([(item.why, f"{item.code} {item.name}") for item in report.not_checked])
    return rows_table(
        "Not checked",
        (
            Column("rule", lambda item: ", ".join(item[1]), left=True, wrap=True),
            Column("why", lambda item: item[0], left=True, wrap=True),
        ),
        list(by_reason.items()),
    )


def no_device_verdict(report: Report) -> VerdictText:
    """Why no device was recorded; None if a device or host activity was recorded."""
    lost = [gap for gap in report.capture.gaps if gap.what == NO_DEVICE]
    if not lost or report.breakdown.ranks:
        return None
    line, _, more = lost[0].message.partition(". ")
    why = (more, *(gap.message for gap in lost[1:]))
    return f"{line.rstrip('.')}.", tuple(sentence for sentence in why if sentence)


def start_sentence(report: Report) -> str:
    """Waiting in the numbers that the start of the profiler may have caused; empty without any."""
    wait_ns = report.capture.start_wait_ns
    if not wait_ns:
        return ""
    return (
        f"{format_duration(wait_ns)} of the waiting may come from starting the profiler: no rank "
        "is blamed for it."
    )


def missing_sentence(report: Report) -> str:
    """Ranks without a usable trace; empty without any."""
    left_out, found = _left_out_ranks(report), []
    if unusable := left_out.intersection(report.capture.ranks_missing):
        found.append(_ranks_were(unusable, "left out, because their traces are unusable"))
    if missing := set(report.capture.ranks_missing) - left_out:
        chosen = any(gap.what == "chosen-ranks" for gap in report.capture.gaps)
        found.append(_ranks_were(missing, "left out on request" if chosen else "not recorded"))
    return f"{capitalized('; '.join(found))}." if found else ""


def limits_sentence(report: Report) -> str:
    """Limits of the recording that affect every number."""
    limits = []
    if is_whole_capture(report):
        limits.append(f"{_why_no_steps(report)} the whole capture counts as one window")
    one_of_many = len(report.run.ranks) == 1 and report.run.world_size is None
    if one_of_many and not _left_out_ranks(report):
        limits.append("only one rank of a job of unknown size was recorded")
    others = (gap.message for gap in report.capture.gaps if gap.what in _LIMITS)
    limits += [f"{text[0].lower()}{text[1:].rstrip('.')}" for text in others]
    return f"{capitalized('; '.join(limits))}." if limits else ""


def _left_out_ranks(report: Report) -> set[int]:
    return {rank for gap in report.capture.gaps if gap.what in LEFT_OUT for rank in gap.ranks}


_LIMITS = (FILTERED, ANOTHER_JOB, RECENT_STEPS)


def _ranks_were(ranks: Collection[int], what: str) -> str:
    if len(ranks) > 1:
        return f"ranks {short_ranks(ranks)} were {what}"
    return f"rank {next(iter(ranks))} was {what}".replace("their traces are", "its trace is")


def _why_no_steps(report: Report) -> str:
    if report.capture.steps:
        return "as requested,"
    if report.capture.dropped_steps:
        return "no step was recorded completely on every rank, so"
    return "no step marks were found, so"


def _sentences(notes: tuple[str, ...], report: Report) -> tuple[str, ...]:
    """Each note once, as a sentence; another row already says how steps were found."""
    sentences = (capitalized(note).rstrip(".") for note in notes if note)
    known = {report.step_time.note.rstrip(".")}
    return tuple(note for note in dict.fromkeys(sentences) if note not in known)


def _left_out(report: Report) -> str:
    gaps = report.capture.gaps
    number = sum(gap.num_files for gap in gaps)
    others = sum(gap.what == ANOTHER_JOB for gap in gaps)
    facts = [
        f"{counted(number, 'file')} of other runs left out" if number else "",
        f"{counted(others, 'log')} of another job" if others else "",
    ]
    return " · ".join(fact for fact in facts if fact)


def _stacks_fact(report: Report) -> str:
    is_known = any(cost.mode == "tracing" for cost in report.job.overhead)
    if not report.capture.has_python_stacks or is_known:
        return ""
    return "Python stacks slowed the CPU"


def _clock_fact(report: Report) -> str:
    """Accuracy of the clocks; never empty if they cannot be trusted."""
    capture = report.capture
    violated, checked = capture.num_causality_violations, capture.num_causality_checked
    if checked and violated > _DOUBTFUL * checked:
        return (
            f"clocks doubtful: {violated:,} of {checked:,} collectives end before all ranks start"
        )
    if len(capture.clocks) < 2:
        return ""
    residuals = [clock.residual_ns for clock in capture.clocks if clock.residual_ns is not None]
    unknown = len(capture.clocks) - len(residuals)
    if unknown:
        return f"{unknown:,} of {len(capture.clocks):,} clocks not compared"
    return f"clocks agree to {format_duration(max(residuals))}"


def _coverage(report: Report) -> list[tuple[str, str]]:
    capture = report.capture
    matched = ""
    if capture.matched_ratio is not None:
        matched = f"{format_ratio(capture.matched_ratio)} ({capture.num_matched:,} records joined)"
    overlap = capture.window_overlap_ratio
    chosen = any(gap.what == "chosen-ranks" for gap in capture.gaps)
    violations = ""
    if capture.num_causality_checked:
        violations = f"{capture.num_causality_violations:,} of {capture.num_causality_checked:,}"
    step_time = report.step_time
    no_traces = step_time.source == StepSource.OPERATIONS
    by_reason = grouped([(reason, step) for step, reason in capture.dropped_steps.items()])
    texts = [f"{short_ranks(steps)} ({reason})" for reason, steps in by_reason.items()]
    unexplained = set(capture.transient_steps) - set(capture.dropped_steps)
    if unexplained:
        texts.append(f"{short_ranks(unexplained)} (disturbed by the start of the profiler)")
    return [
        ("ranks", "" if no_traces else short_ranks(capture.ranks_present) or "none"),
        ("ranks left out" if chosen else "ranks missing", short_ranks(capture.ranks_missing)),
        ("steps", short_ranks(report.capture.steps)),
        ("steps left out", ", ".join(texts)),
        ("step time", _step_time_text(report)),
        ("step windows", step_time.note.rstrip(".")),
        ("collectives matched", matched),
        ("clock residual", _only_residual(capture)),
        ("captures overlap", format_ratio(overlap) if overlap is not None else ""),
        ("causality violations", violations),
    ]


def _only_residual(capture: CaptureResult) -> str:
    """Residual of a single clock; several clocks have a table."""
    if len(capture.clocks) != 1:
        return ""
    if capture.clocks[0].within_ns is not None:
        return f"{format_duration(capture.clocks[0].within_ns)} (one host's clock)"
    if not capture.clocks[0].residual_ns:
        return ""
    return format_duration(capture.clocks[0].residual_ns)


def _step_time_text(report: Report) -> str:
    step_time = report.step_time
    if step_time.median_ns is None:
        return ""
    text = f"{format_duration(step_time.median_ns)} median"
    if step_time.p95_ns is not None and step_time.num_steps > 1:
        text += f", {format_duration(step_time.p95_ns)} p95"
    if step_time.cv is not None and step_time.num_steps > 1:
        text += f", varies by {format_ratio(step_time.cv)}"
    return text
