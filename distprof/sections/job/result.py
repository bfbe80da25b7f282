"""What was run, how it ended, and what was watching: run.json, folded over ranks."""

from __future__ import annotations

import msgspec

from distprof.schema import Record
from distprof.sections.base import Result

__all__ = [
    "NO_RUN_DIRECTORY",
    "JobError",
    "JobExit",
    "JobFailure",
    "JobFault",
    "JobResult",
    "ProbeOverhead",
    "ProbeState",
]

NO_RUN_DIRECTORY = "the traces come without a run directory (run.json)"


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
