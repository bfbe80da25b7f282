"""The job: how it ended, which faults were injected, and what the probes cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from distprof.escape import few_ranks, shorten
from distprof.sections.job import JobExit, JobResult, ProbeOverhead, ProbeState
from distprof.sections.perturbation.show import profiler_fact
from distprof.sections.table import TableView, facts_table
from distprof.units import capitalized, format_duration, name_ranks, signed_ratio

if TYPE_CHECKING:
    from distprof.sections.report import Report

MAX_ERRORS_SHOWN = 3
MAX_NOTES_SHOWN = 6
_MAX_TEXT = 300
_MODES = {
    "always_on": "always-on probes",
    "tracing": "tracing",
    "light": "tracing the GPU alone",
    "after": "after tracing",
}
_QUIET = ("on", "off")


def end_line(report: Report) -> str:
    """What happened to a job that did not complete; empty for a job that did."""
    job = report.job
    if job.failure is not None:
        message = " ".join(job.failure.message.split()).rstrip(".")
        return f"{capitalized(message)}." if message else "The job failed."
    if job.outcome == "failed":
        return "The job failed; it is unknown which rank failed first."
    last = report.step_log.last_step
    after = "" if last is None else f" after step {last}"
    if job.outcome == "interrupted":
        return f"The job was interrupted{after}."
    if job.outcome == "running":
        seen = "" if last is None else f"; its last recorded step is {last}"
        return f"The job was still running, or its launcher was killed{seen}."
    return ""


def job_facts(report: Report) -> Iterator[str]:
    """What a reader must know before any number: injected faults, and the cost of the probes."""
    job = report.job
    if job.faults:
        yield "injected on purpose: " + ", ".join(fault.text for fault in job.faults)
    if profiler := profiler_fact(report.perturbation):
        yield profiler
    modes = ("always_on",) if report.perturbation.is_corrected else ("always_on", "tracing")
    costs = [_overhead_text(one) for one in job.overhead if one.mode in modes]
    if costs:
        yield f"measured cost: {', '.join(costs)}"


def mesh_text(mesh: dict[str, int], strategy: str) -> str:
    """For example ``pp 2 × dp_shard 4``; empty for a single axis, or if the strategy names it."""
    if "×" in strategy:
        return ""
    axes = [f"{axis} {size}" for axis, size in mesh.items() if size > 1]
    return " × ".join(axes) if len(axes) > 1 else ""


def job_table(report: Report, *, show_all: bool) -> TableView | None:
    """How the job ended and what its probes could not do, if that needs attention."""
    job = report.job
    if job.kind is None:
        return None
    facts = tuple(_facts(job, show_all=show_all))
    all_notes = (*job.notes, *job.probe_notes)
    notes = all_notes if show_all else job.notes[:MAX_NOTES_SHOWN]
    if not facts and not notes:
        return None
    return facts_table("Job", facts, notes=notes)


def _facts(job: JobResult, *, show_all: bool) -> Iterator[tuple[str, str]]:
    if job.outcome != "completed" or show_all:
        duration = f" after {format_duration(job.duration_ns)}" if job.duration_ns else ""
        yield "outcome", f"{job.outcome}{duration}"
    if show_all:
        yield "command", shorten(" ".join(job.command), _MAX_TEXT)
        if job.git_commit:
            yield "commit", job.git_commit
        if job.coverage and job.coverage != "all":
            yield "ranks to trace", job.coverage
    unusual = [end for end in job.exits if show_all or end.code != 0]
    for end in unusual if job.outcome != "completed" or show_all else ():
        yield f"end of {few_ranks(end.ranks)}", _exit_text(end)
    own = [error for error in job.errors if show_all or not error.is_peer_loss]
    for error in own if show_all else own[:MAX_ERRORS_SHOWN]:
        after = "" if error.step is None else f" after step {error.step}"
        words = shorten(" ".join(error.message.split()), _MAX_TEXT)
        yield f"error of rank {error.rank}", f"{error.kind}{after}: {words}"
    lost = [error.rank for error in job.errors if error.is_peer_loss]
    if lost and not show_all:
        yield "lost a peer", few_ranks(tuple(sorted(lost)))
    for probe in job.probes:
        if show_all or probe.num_dropped or probe.state in ("failed", "yielded"):
            yield f"probe {probe.name}", _probe_text(probe)


def _exit_text(end: JobExit) -> str:
    how = end.signal if end.signal else "not seen" if end.code is None else f"exit code {end.code}"
    return f"{how}, ended by the launcher" if end.by_launcher else how


def _probe_text(probe: ProbeState) -> str:
    parts = [probe.state if probe.state not in _QUIET or not probe.reason else "", probe.reason]
    if probe.num_dropped:
        parts.append(f"{probe.num_dropped:,} of {probe.num_records + probe.num_dropped:,} lost")
    state = ": ".join(part for part in parts[:2] if part) or probe.state
    return "; ".join([state, *parts[2:]]) + f" ({name_ranks(probe.ranks)})"


def _overhead_text(overhead: ProbeOverhead) -> str:
    """For example ``tracing 4.1 % of a step (2.0 % to 6.3 %)``; may be negative."""
    name = _MODES.get(overhead.mode, overhead.mode)
    interval = f"{signed_ratio(overhead.low)} to {signed_ratio(overhead.high)}"
    return f"{name} {signed_ratio(overhead.ratio)} of a step ({interval})"
