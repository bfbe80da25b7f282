"""How a job ended, or why it stands, according to what it printed."""

from __future__ import annotations

from distprof.artefacts.record import Record
from distprof.sections.base import Result
from distprof.sections.job import JobFailure

STUCK, FAILED = "stuck", "failed"


class EndingPosition(Record, frozen=True, kw_only=True):
    """Where a rank stood in a process group when its watchdog ended the wait."""

    rank: int  # Global rank, or the rank in the group if ``is_global`` is false.
    is_global: bool  # Whether ``rank`` is the global rank.
    group: str  # Name of the group; empty for the default group, or if the line names none.
    seq: int | None  # Number of the first collective that timed out; None if unknown.
    op: str  # Its kind as printed, for example ``ALLREDUCE``; empty if unknown.
    size: str  # Elements of its input, or its shape; empty if unknown.
    enqueued: int | None  # Last collective that the rank launched; None if unknown.
    completed: int | None  # Last collective that the rank completed; None if unknown.
    waited_ms: int | None  # How long it had waited; None if unknown.
    timeout_ms: int | None  # Timeout of the group; None if unknown.


class EndingLine(Record, frozen=True, kw_only=True):
    """A line of the output that matters."""

    rank: int | None  # Rank that it is about; None if unknown.
    file: str  # File.
    line: int  # Line number, from 1.
    about: str  # What it is about, for example ``timeout``, ``memory``, ``exit``, ``peer``.
    text: str  # The line, truncated.


class EndingStack(Record, frozen=True, kw_only=True):
    """Processes with the same Python stack."""

    ranks: tuple[int, ...]  # Ranks; empty if unknown.
    count: int  # Number of processes.
    calls: tuple[str, ...]  # Calls, innermost first.
    # What they do: ``collective``, ``data loader``, ``checkpoint``, ``compilation``; empty if the
    # calls do not show it.
    activity: str


class EndingResult(Result, frozen=True, kw_only=True):
    """How the job ended; empty without output that says so."""

    # ``stuck`` if ranks waited for others, ``failed`` if the job ended; empty if the output reports
    # neither.
    state: str = ""
    # Key of the cause, for example ``behind``, ``mismatch``, ``memory``, ``killed``.
    cause: str = ""
    verdict: str = ""  # The cause in one or two sentences.
    ranks: tuple[int, ...] = ()  # Ranks at fault; empty if unknown.
    hosts: tuple[str, ...] = ()  # Their hosts, if the output names them.
    suspects: tuple[int, ...] = ()  # Ranks that printed nothing about it, although others wait.
    num_followers: int = 0  # Other ranks whose end followed from it.
    why: tuple[str, ...] = ()  # Evidence, one sentence each.
    alternatives: tuple[str, ...] = ()  # Other causes with the same symptoms.
    next_steps: tuple[str, ...] = ()  # Next steps, most useful first.
    positions: tuple[EndingPosition, ...] = ()  # Positions of ranks in the group that decides.
    lines: tuple[EndingLine, ...] = ()  # Lines that matter, in the order of the files.
    stacks: tuple[EndingStack, ...] = ()  # Stacks, rarest first.
    world_size: int | None = None  # Ranks of the job; None if the output does not say.
    num_lines: int = 0  # Lines read.

    def follows(self, failure: JobFailure | None) -> bool:
        """Whether the launcher saw which rank was killed or hung, and the output what followed."""
        if failure is None or failure.rank is None or failure.rank in self.ranks:
            return False
        if failure.kind == "hung":  # where the others wait differs: in a send, in a receive
            return not self.ranks or self.cause in ("mismatch", "exception")
        return failure.kind == "killed" and self.cause in ("peer", "network", "nccl", "exception")
