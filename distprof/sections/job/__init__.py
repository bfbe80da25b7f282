"""What ran, how it ended, and which probes recorded it: run.json, combined over ranks."""

from __future__ import annotations

import msgspec

from distprof.artefacts.record import Record
from distprof.artefacts.run_file import Fault, Overhead
from distprof.sections.base import Result

NO_RUN_DIRECTORY = "the traces come without a run directory (run.json)"


class JobFailure(Record, frozen=True, kw_only=True):
    """The first cause of a failed job, according to the launcher's evidence."""

    rank: int | None  # Rank that failed first; None if unknown.
    kind: str  # What happened to it.
    message: str  # One sentence: what happened, and the evidence for it.
    step: int | None  # Last step that the rank completed; None if unknown.
    after_ns: int | None  # Time from the start of the job until the launcher noticed.


class JobExit(Record, frozen=True, kw_only=True):
    """Ranks whose processes ended in the same way."""

    ranks: tuple[int, ...]  # The ranks.
    code: int | None  # Exit code; None if a signal ended them or their end was not observed.
    signal: str  # For example ``SIGKILL``; empty when there was none.
    by_launcher: bool  # Whether the launcher ended them after another rank had failed.


class JobError(Record, frozen=True, kw_only=True):
    """An exception that stopped the Python code of a rank."""

    rank: int  # The rank.
    kind: str  # Name of the exception's class.
    message: str  # Its text.
    step: int | None  # Last step completed; None before the first.
    # Whether it only reports that another rank was lost or did not answer in time.
    is_peer_loss: bool


class ProbeState(Record, frozen=True, kw_only=True):
    """What one probe did, for all ranks on which it did the same."""

    name: str  # For example ``profiler``.
    state: str  # ``on``, ``off``, ``unavailable``, ``yielded`` or ``failed``.
    reason: str  # One sentence; empty if there is no reason to give.
    ranks: tuple[int, ...]  # The ranks.
    num_records: int  # Records written on all these ranks together.
    num_dropped: int  # Records lost because the disk was full or too slow.


class ProbeOverhead(Overhead, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same of all ranks: they measure the same steps, and figures are the median rank's."""

    ranks: tuple[int, ...]  # Ranks that measured it.


class JobResult(Result, frozen=True, kw_only=True):
    """The job that was recorded; ``kind`` is None for bare traces, whose job is unknown."""

    # ``run`` for a reference workload, ``capture`` for a user's program, ``session`` for probes in
    # a user's code.
    kind: str | None
    command: tuple[str, ...] = ()  # The command line.
    workload: str = ""  # Name of the reference workload; empty for other programs.
    strategy: str = ""  # Parallelism as text; empty if unknown.
    # ``completed``, ``failed``, ``interrupted``; ``running`` if its end was not seen.
    outcome: str | None = None
    duration_ns: int | None = None  # Time from start to end; None if the end was not seen.
    failure: JobFailure | None = None  # The first cause, if the job failed.
    # How the processes of ranks ended; without ranks whose end was not observed.
    exits: tuple[JobExit, ...] = ()
    errors: tuple[JobError, ...] = ()  # Exceptions of ranks in order of time, up to a limit.
    faults: tuple[Fault, ...] = ()  # Faults that were injected on purpose.
    coverage: str = ""  # The ranks to trace, as requested.
    probes: tuple[ProbeState, ...] = ()  # What each probe did.
    overhead: tuple[ProbeOverhead, ...] = ()  # Measured cost of the probes.
    git_commit: str = ""  # Commit of the folder in which the command ran; empty if none.
    notes: tuple[str, ...] = ()  # What a reader should know, one sentence each.
    # Notes of probes with their ranks, for example why the cost could not be measured.
    probe_notes: tuple[str, ...] = ()
    # Configuration of a reference workload: ``section.option`` to its value as text.
    config: dict[str, str] = msgspec.field(default_factory=dict)
    # Variables of the job that affect speed, from run.json.
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    started_ns: int | None = None  # ns since the epoch; None if unknown.
    ended_ns: int | None = None  # ns since the epoch; None if the end was not seen.
