"""What ran, how it ended, and which probes recorded it: run.json, combined over ranks."""

from __future__ import annotations

import msgspec

from distprof.artefacts.record import Record
from distprof.sections.base import Result

NO_RUN_DIRECTORY = "the traces come without a run directory (run.json)"


class JobFailure(Record, frozen=True, kw_only=True):
    """The first cause of a failed job, according to the launcher's evidence.

    Args:
        rank: Rank that failed first; None if unknown.
        kind: What happened to it.
        message: One sentence: what happened, and the evidence for it.
        step: Last step that the rank completed; None if unknown.
        after_ns: Time from the start of the job until the launcher noticed.
    """

    rank: int | None
    kind: str
    message: str
    step: int | None
    after_ns: int | None


class JobExit(Record, frozen=True, kw_only=True):
    """Ranks whose processes ended in the same way.

    Args:
        ranks: The ranks.
        code: Exit code; None if a signal ended them or their end was not observed.
        signal: For example ``SIGKILL``; empty when there was none.
        by_launcher: Whether the launcher ended them after another rank had failed.
    """

    ranks: tuple[int, ...]
    code: int | None
    signal: str
    by_launcher: bool


class JobError(Record, frozen=True, kw_only=True):
    """An exception that stopped the Python code of a rank.

    Args:
        rank: The rank.
        kind: Name of the exception's class.
        message: Its text.
        step: Last step completed; None before the first.
        is_peer_loss: Whether it only reports that another rank was lost or did not answer in time.
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
        target: Rank, stage, expert or node, depending on the kind; None for all.
        amount: Factor, milliseconds or share, depending on the kind.
        text: The fault as it was requested.
    """

    kind: str
    target: int | None
    amount: float
    text: str


class ProbeState(Record, frozen=True, kw_only=True):
    """What one probe did, for all ranks on which it did the same.

    Args:
        name: For example ``profiler``.
        state: ``on``, ``off``, ``unavailable``, ``yielded`` or ``failed``.
        reason: One sentence; empty if there is no reason to give.
        ranks: The ranks.
        num_records: Records written on all these ranks together.
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
        ratio: Cost as a share of the step; 0.01 is 1 %.
        low: Lower end of the 95 % confidence interval.
        high: Upper end of the interval.
        num_pairs: Pairs of neighbouring blocks of steps that were compared.
        step_ns: Median step without the probes.
        ranks: Ranks that measured it.
        method: How the cost was measured, one sentence.
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
    """The job that was recorded; ``kind`` is None for bare traces, whose job is unknown.

    Args:
        kind: ``run`` for a reference workload, ``capture`` for a user's program, ``session`` for
            probes in a user's code.
        command: The command line.
        workload: Name of the reference workload; empty for other programs.
        strategy: Parallelism as text; empty if unknown.
        outcome: ``completed``, ``failed``, ``interrupted``; ``running`` if its end was not seen.
        duration_ns: Time from start to end; None if the end was not seen.
        failure: The first cause, if the job failed.
        exits: How the processes of ranks ended; without ranks whose end was not observed.
        errors: Exceptions of ranks in order of time, up to a limit.
        faults: Faults that were injected on purpose.
        coverage: The ranks to trace, as requested.
        probes: What each probe did.
        overhead: Measured cost of the probes.
        git_commit: Commit of the folder in which the command ran; empty if none.
        notes: What a reader should know, one sentence each.
        probe_notes: Notes of probes with their ranks, for example why the cost could not be
            measured.
        config: Configuration of a reference workload: ``section.option`` to its value as text.
        environment: Variables of the job that affect speed, from run.json.
        started_ns: ns since the epoch; None if unknown.
        ended_ns: ns since the epoch; None if the end was not seen.
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
