"""Rules about job."""

from __future__ import annotations

from collections.abc import Iterator

from distprof.escape import headed
from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, advice, rule
from distprof.sections.job import JobResult, ProbeOverhead
from distprof.sections.perturbation import PerturbationResult
from distprof.terms import Severity
from distprof.units import capitalized, format_ratio


def _fix(job: JobResult) -> str:
    failure = job.failure
    kind = failure.kind if failure else ""
    if kind == "hung":
        return advice("job-failed", kind if job.kind == "run" else "hung-without-launcher")
    if kind in ("out_of_memory", "stopped", "killed"):
        return advice("job-failed", kind)
    rank = failure.rank if failure else None
    has_error = any(rank in (None, error.rank) for error in job.errors)
    folder = "in the folder of that rank" if rank is not None else "in the folders of the ranks"
    if job.kind == "run":
        return f"Read {'error.json and ' if has_error else ''}output.log {folder}."
    return f"Read output.log of the run{f', and error.json {folder}' if has_error else ''}."


@rule("CAP104", Severity.ERROR, costs_time=False)
def job_failed(job: JobResult) -> Iterator[Draft]:
    """The job did not complete: a rank died, hung, was stopped or ran out of memory."""
    if job.outcome != "failed":
        return
    failure = job.failure
    message = (
        failure.message if failure else "the job failed; it is unknown which rank failed first"
    )
    headline, rest = headed(capitalized(message))
    own = next((error for error in job.errors if not error.is_peer_loss), None)
    if own is not None and (failure is None or own.rank == failure.rank):
        words = " ".join(own.message.split())[:200]
        rest += "" if words in message else f" {own.kind}: {words.rstrip('.')}."
    yield Draft(
        headline=headline,
        message=rest.strip() or "No rank recorded an error of its own.",
        fix=_fix(job),
        ranks=(failure.rank,) if failure and failure.rank is not None else (),
        evidence=("job.failure", "job.exits", "job.errors"),
    )


_NAMES = {"tracing": "Recording CPU and GPU makes", "always_on": "The always-on probes make"}


@rule(
    "CAP105",
    Severity.INFO,
    costs_time=False,
    tracing_ratio=Limit(0.05, "share of the step that tracing may add"),
    always_on_ratio=Limit(0.01, "share of the step that the always-on probes may add"),
    after_ratio=Limit(0.01, "share of the step that may remain after tracing"),
)
def probe_overhead(
    job: JobResult, perturbation: PerturbationResult, limits: Limits
) -> Iterator[Draft]:
    """The probes themselves make the measured steps longer than steps without probes, or steps stay
    longer after the profiler has stopped.
    """
    if job.kind is None:
        return  # bare traces: how they were recorded is unknown
    if not job.overhead:
        why = next((note for note in job.probe_notes if "not measured" in note), "")
        raise InsufficientEvidenceError(
            why or "the cost of the probes was not measured in this run"
        )
    for overhead in job.overhead:
        limit = limits.get(f"{overhead.mode}_ratio")
        if limit is None or overhead.ratio <= limit or overhead.low <= 0:
            continue
        if overhead.mode == "after":
            if overhead.low > limit:
                yield Draft(
                    headline=f"Steps after tracing take {format_ratio(overhead.ratio)} longer",
                    message=(
                        f"{_interval(overhead)} longer than before tracing: CUPTI may still be "
                        "attached, or the machine became slower."
                    ),
                    fix=advice("probe-overhead", "after"),
                    ranks=overhead.ranks,
                    evidence=("job.overhead", "step_log"),
                )
        elif overhead.mode == "always_on" or not perturbation.is_corrected:
            yield Draft(
                headline=f"{_NAMES[overhead.mode]} a step {format_ratio(overhead.ratio)} longer",
                message=(
                    f"{_interval(overhead)}; the shares below refer to steps that are slower than "
                    "without probes."
                ),
                fix=advice("probe-overhead", "always"),
                ranks=overhead.ranks,
                evidence=("job.overhead", "step_log"),
            )


def _interval(overhead: ProbeOverhead) -> str:
    return f"{format_ratio(overhead.low)} to {format_ratio(overhead.high)}"
