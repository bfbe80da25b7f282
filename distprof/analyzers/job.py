"""What was run, how it ended, and what was watching: run.json, folded over ranks."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from distprof.analyzers.result import Record, Result
from distprof.artefacts.run_file import Overhead, RankEntry, RunFile
from distprof.run.run import Run
from distprof.units import name_ranks

__all__ = [
    "NO_RUN_DIRECTORY",
    "JobError",
    "JobExit",
    "JobFailure",
    "JobFault",
    "JobResult",
    "ProbeOverhead",
    "ProbeState",
    "analyze_job",
]

NO_RUN_DIRECTORY = "the traces come without a run directory (run.json)"
_MAX_ERRORS = 16
_MAX_TEXT = 2_000
_MAX_NOTES = 64


class JobFailure(Record, frozen=True, kw_only=True):
    """The first cause of a failed job, by the launcher's own evidence.

    Args:
        rank: Who failed first; None when that cannot be told.
        kind: What happened to it.
        message: One sentence: what, and what the evidence is.
        step: Last step that rank completed, None when unknown.
        after_ns: Time from the start of the job until the launcher knew.
    """

    rank: int | None
    kind: str
    message: str
    step: int | None
    after_ns: int | None


class JobExit(Record, frozen=True, kw_only=True):
    """Ranks whose processes ended alike.

    Args:
        ranks: Which.
        code: Exit code, None if a signal ended them or nobody saw them end.
        signal: For example ``SIGKILL``; empty when there was none.
        by_launcher: Whether the launcher ended them after another rank had failed.
    """

    ranks: tuple[int, ...]
    code: int | None
    signal: str
    by_launcher: bool


class JobError(Record, frozen=True, kw_only=True):
    """Why a rank's Python code stopped.

    Args:
        rank: Which.
        kind: Name of the exception's class.
        message: Its text.
        step: Last step completed, None before the first.
        is_peer_loss: It says only that another rank went away or did not answer in time.
    """

    rank: int
    kind: str
    message: str
    step: int | None
    is_peer_loss: bool


class JobFault(Record, frozen=True, kw_only=True):
    """A fault that was injected on purpose.

    Args:
        kind: For example ``slow-rank``.
        target: Rank, stage, expert or node, as the kind has it; None for all.
        amount: Factor, milliseconds or share, as the kind has it.
        text: As it was asked for.
    """

    kind: str
    target: int | None
    amount: float
    text: str


class ProbeState(Record, frozen=True, kw_only=True):
    """What one probe did, on all ranks on which it did the same.

    Args:
        name: For example ``profiler``.
        state: ``on``, ``off``, ``unavailable``, ``yielded`` or ``failed``.
        reason: One sentence; empty when there is nothing to say.
        ranks: Which.
        num_records: Records written, all these ranks together.
        num_dropped: Records lost because the disk was full or too slow.
    """

    name: str
    state: str
    reason: str
    ranks: tuple[int, ...]
    num_records: int
    num_dropped: int


class ProbeOverhead(Record, frozen=True, kw_only=True):
    """Measured cost of probes as a share of the step without them.

    Every rank measures the same steps; the figures are those of the median rank.

    Args:
        mode: ``always_on`` or ``tracing``.
        ratio: 0.01 is one percent.
        low: Lower end of the 95 % confidence interval.
        high: Upper end.
        num_pairs: Pairs of neighbouring blocks of steps that were compared.
        step_ns: Median step without the probes.
        ranks: Ranks that measured it.
        method: One sentence.
    """

    mode: str
    ratio: float
    low: float
    high: float
    num_pairs: int
    step_ns: int
    ranks: tuple[int, ...]
    method: str


class JobResult(Result, frozen=True, kw_only=True):
    """The job that was recorded; ``kind`` is None for bare traces, of which nothing is known.

    Args:
        kind: ``run`` a reference workload, ``capture`` a user's program, ``session`` probes used
            from a user's own code.
        command: What was typed.
        workload: Name of the reference workload; empty for others.
        strategy: Parallelism, for people; empty when unknown.
        outcome: ``completed``, ``failed``, ``interrupted``; ``running`` when its end was not seen.
        duration_ns: From start to end, None when the end was not seen.
        failure: The first cause, when it failed.
        exits: How ranks' processes ended; ranks of which nobody saw it are left out.
        errors: Exceptions of ranks, in order of time, at most some.
        faults: Injected on purpose.
        coverage: Which ranks were to be traced, as it was asked for.
        probes: What each probe did.
        overhead: What probes cost.
        git_commit: Of the folder the command ran in; empty if none.
        notes: What a reader should know, one sentence each.
        probe_notes: What probes noted, for example why their cost could not be measured, with the
            ranks that say so.
        config: Of a reference workload, ``section.option`` to its value as text.
        environment: Variables of the job that matter to speed, as run.json keeps them.
        started_ns: ns since the epoch; None when unknown.
        ended_ns: None when its end was not seen.
    """

    kind: str | None
    command: tuple[str, ...] = ()
    workload: str = ""
    strategy: str = ""
    outcome: str | None = None
    duration_ns: int | None = None
    failure: JobFailure | None = None
    exits: tuple[JobExit, ...] = ()
    errors: tuple[JobError, ...] = ()
    faults: tuple[JobFault, ...] = ()
    coverage: str = ""
    probes: tuple[ProbeState, ...] = ()
    overhead: tuple[ProbeOverhead, ...] = ()
    git_commit: str = ""
    notes: tuple[str, ...] = ()
    probe_notes: tuple[str, ...] = ()
    config: dict[str, str] = msgspec.field(default_factory=dict)
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    started_ns: int | None = None
    ended_ns: int | None = None


def analyze_job(run: Run) -> JobResult:
    """The job of a run; one without a run directory says only that."""
    job = run.job
    if job is None:
        return JobResult(kind=None, unavailable=(NO_RUN_DIRECTORY,))
    return JobResult(
        kind=job.kind,
        command=job.command,
        workload=job.workload,
        strategy=job.strategy,
        outcome=job.outcome,
        duration_ns=None if job.ended_ns is None else max(0, job.ended_ns - job.started_ns),
        failure=_failure(job),
        exits=_exits(job.ranks),
        errors=_errors(run),
        faults=tuple(
            JobFault(kind=f.kind, target=f.target, amount=f.amount, text=f.text) for f in job.faults
        ),
        coverage=job.coverage.text,
        probes=_probes(job.ranks),
        overhead=_overhead(job.ranks),
        git_commit=job.git_commit,
        notes=(*job.notes, *_end_unseen(job)),
        probe_notes=_probe_notes(job.ranks),
        config=_flat(job.config),
        environment=dict(job.environment),
        started_ns=job.started_ns,
        ended_ns=job.ended_ns,
    )


def _flat(config: Mapping[str, Mapping[str, object]]) -> dict[str, str]:
    """Sections and options as one level of text."""
    return {
        f"{section}.{option}": str(value)[:_MAX_TEXT]
        for section, options in config.items()
        for option, value in options.items()
    }


def _failure(job: RunFile) -> JobFailure | None:
    found = job.failure
    if found is None:
        return None
    after = None if found.detected_ns is None else max(0, found.detected_ns - job.started_ns)
    return JobFailure(
        rank=found.rank,
        kind=found.kind,
        message=found.message[:_MAX_TEXT],
        step=found.step,
        after_ns=after,
    )


def _exits(entries: Iterable[RankEntry]) -> tuple[JobExit, ...]:
    """Ends folded over ranks, ranks that failed by themselves first."""
    alike: dict[tuple[int | None, str, bool], list[int]] = {}
    for entry in entries:
        if entry.exit is not None:
            key = (entry.exit.code, entry.exit.signal, entry.exit.by_launcher)
            alike.setdefault(key, []).append(entry.rank)
    exits = [
        JobExit(ranks=tuple(ranks), code=code, signal=signal, by_launcher=by_launcher)
        for (code, signal, by_launcher), ranks in alike.items()
    ]
    return tuple(sorted(exits, key=lambda e: (e.by_launcher, e.code == 0, e.ranks)))


def _errors(run: Run) -> tuple[JobError, ...]:
    """Exceptions, those that tell of more than a lost peer first."""
    ordered = sorted(run.errors, key=lambda error: (error.is_peer_loss, error.time_ns))
    return tuple(
        JobError(
            rank=error.rank,
            kind=error.kind,
            message=error.message[:_MAX_TEXT],
            step=error.step,
            is_peer_loss=error.is_peer_loss,
        )
        for error in ordered[:_MAX_ERRORS]
    )


def _probes(entries: Iterable[RankEntry]) -> tuple[ProbeState, ...]:
    alike: dict[tuple[str, str, str], list[tuple[int, int, int]]] = {}
    for entry in entries:
        for probe in entry.probes:
            key = (probe.name, probe.state, probe.reason)
            alike.setdefault(key, []).append((entry.rank, probe.num_records, probe.num_dropped))
    return tuple(
        ProbeState(
            name=name,
            state=state,
            reason=reason,
            ranks=tuple(rank for rank, _, _ in ranks),
            num_records=sum(records for _, records, _ in ranks),
            num_dropped=sum(dropped for _, _, dropped in ranks),
        )
        for (name, state, reason), ranks in alike.items()
    )


def _overhead(entries: Sequence[RankEntry]) -> tuple[ProbeOverhead, ...]:
    by_mode: dict[str, list[tuple[int, Overhead]]] = {}
    for entry in entries:
        for measured in entry.overhead:
            by_mode.setdefault(measured.mode, []).append((entry.rank, measured))
    return tuple(_median_overhead(mode, found) for mode, found in sorted(by_mode.items()))


def _median_overhead(mode: str, found: Sequence[tuple[int, Overhead]]) -> ProbeOverhead:
    measured = [overhead for _, overhead in found]
    return ProbeOverhead(
        mode=mode,
        ratio=statistics.median(o.ratio for o in measured),
        low=statistics.median(o.low for o in measured),
        high=statistics.median(o.high for o in measured),
        num_pairs=min(o.num_pairs for o in measured),
        step_ns=round(statistics.median(o.step_ns for o in measured)),
        ranks=tuple(rank for rank, _ in found),
        method=measured[0].method,
    )


def _probe_notes(entries: Iterable[RankEntry]) -> tuple[str, ...]:
    """Notes folded over ranks, at most some."""
    alike: dict[str, list[int]] = {}
    for entry in entries:
        for note in entry.notes:
            alike.setdefault(note[:_MAX_TEXT], []).append(entry.rank)
    return tuple(f"{name_ranks(ranks)}: {note}" for note, ranks in list(alike.items())[:_MAX_NOTES])


def _end_unseen(job: RunFile) -> tuple[str, ...]:
    if job.outcome != "running":
        return ()
    return (
        "How the job ended was not recorded: it was still running, or its launcher was killed.",
    )
