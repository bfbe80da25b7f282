"""What ran, how it ended, and which probes recorded it: run.json, combined over ranks."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from distprof.artefacts.record import grouped, made_from
from distprof.artefacts.run_file import Overhead, RankEntry, RunFile
from distprof.artefacts.summary_file import flat_config
from distprof.run.run import Run
from distprof.sections.job import (
    NO_RUN_DIRECTORY,
    JobError,
    JobExit,
    JobFailure,
    JobResult,
    ProbeOverhead,
    ProbeState,
)
from distprof.units import name_ranks

_MAX_ERRORS = 16

_MAX_TEXT = 2_000

_MAX_NOTES = 64


def analyze_job(run: Run) -> JobResult:
    """The job of a run; without a run directory the result only says so."""
    job = run.job
    if job is None:
        return JobResult(kind=None, unavailable=(NO_RUN_DIRECTORY,))
    ordered = sorted(run.errors, key=lambda error: (error.is_peer_loss, error.time_ns))
    by_mode = grouped(
        [(one.mode, (entry.rank, one)) for entry in job.ranks for one in entry.overhead]
    )
    return made_from(
        job,
        JobResult,
        duration_ns=None if job.ended_ns is None else max(0, job.ended_ns - job.started_ns),
        failure=_failure(job),
        exits=_exits(job.ranks),
        errors=tuple(
            made_from(error, JobError, message=error.message[:_MAX_TEXT])
            for error in ordered[:_MAX_ERRORS]
        ),
        coverage=job.coverage.text,
        probes=_probes(job.ranks),
        overhead=tuple(_median_overhead(found) for _, found in sorted(by_mode.items())),
        notes=(*job.notes, *_end_unseen(job)),
        probe_notes=_probe_notes(job.ranks),
        config=flat_config(job.config),
    )


def _failure(job: RunFile) -> JobFailure | None:
    found = job.failure
    if found is None:
        return None
    after = None if found.detected_ns is None else max(0, found.detected_ns - job.started_ns)
    return made_from(found, JobFailure, message=found.message[:_MAX_TEXT], after_ns=after)


def _exits(entries: Iterable[RankEntry]) -> tuple[JobExit, ...]:
    """Exits combined over ranks; ranks that failed by themselves come first."""
    ended = [(entry.exit, entry.rank) for entry in entries if entry.exit is not None]
    found = grouped([((end.code, end.signal, end.by_launcher), rank) for end, rank in ended])
    exits = [
        JobExit(ranks=tuple(ranks), code=code, signal=signal, by_launcher=by_launcher)
        for (code, signal, by_launcher), ranks in found.items()
    ]
    return tuple(sorted(exits, key=lambda e: (e.by_launcher, e.code == 0, e.ranks)))


def _probes(entries: Iterable[RankEntry]) -> tuple[ProbeState, ...]:
    probes = [(probe, entry.rank) for entry in entries for probe in entry.probes]
    found = grouped([((one.name, one.state, one.reason), (one, rank)) for one, rank in probes])
    return tuple(
        ProbeState(
            name=name,
            state=state,
            reason=reason,
            ranks=tuple(rank for _, rank in alike),
            num_records=sum(one.num_records for one, _ in alike),
            num_dropped=sum(one.num_dropped for one, _ in alike),
        )
        for (name, state, reason), alike in found.items()
    )


def _median_overhead(found: Sequence[tuple[int, Overhead]]) -> ProbeOverhead:
    measured = [overhead for _, overhead in found]
    return ProbeOverhead(
        mode=measured[0].mode,
        ratio=statistics.median(o.ratio for o in measured),
        low=statistics.median(o.low for o in measured),
        high=statistics.median(o.high for o in measured),
        num_pairs=min(o.num_pairs for o in measured),
        step_ns=round(statistics.median(o.step_ns for o in measured)),
        ranks=tuple(rank for rank, _ in found),
        method=measured[0].method,
    )


def _probe_notes(entries: Iterable[RankEntry]) -> tuple[str, ...]:
    """Notes combined over ranks, up to a limit."""
    found = grouped([(note[:_MAX_TEXT], entry.rank) for entry in entries for note in entry.notes])
    return tuple(f"{name_ranks(ranks)}: {note}" for note, ranks in list(found.items())[:_MAX_NOTES])


def _end_unseen(job: RunFile) -> tuple[str, ...]:
    if job.outcome != "running":
        return ()
    return (
        "The end of the job was not recorded: it was still running, or its launcher was killed.",
    )
