"""How a job ended, or why it stands, according to what it printed."""

from __future__ import annotations

from distprof.artefacts.record import Record
from distprof.sections.base import Result

STUCK, FAILED = "stuck", "failed"


class EndingPosition(Record, frozen=True, kw_only=True):
    """Where a rank stood in a process group when its watchdog ended the wait.

    Args:
        rank: Global rank, or the rank in the group if ``is_global`` is false.
        is_global: Whether ``rank`` is the global rank.
        group: Name of the group; empty for the default group, or if the line names none.
        seq: Number of the first collective that timed out; None if unknown.
        op: Its kind as printed, for example ``ALLREDUCE``; empty if unknown.
        size: Elements of its input, or its shape; empty if unknown.
        enqueued: Last collective that the rank launched; None if unknown.
        completed: Last collective that the rank completed; None if unknown.
        waited_ms: How long it had waited; None if unknown.
        timeout_ms: Timeout of the group; None if unknown.
    """

    rank: int
    is_global: bool
    group: str
    seq: int | None
    op: str
    size: str
    enqueued: int | None
    completed: int | None
    waited_ms: int | None
    timeout_ms: int | None


class EndingLine(Record, frozen=True, kw_only=True):
    """A line of the output that matters.

    Args:
        rank: Rank that it is about; None if unknown.
        file: File.
        line: Line number, from 1.
        about: What it is about, for example ``timeout``, ``memory``, ``exit``, ``peer``.
        text: The line, truncated.
    """

    rank: int | None
    file: str
    line: int
    about: str
    text: str


class EndingStack(Record, frozen=True, kw_only=True):
    """Processes with the same Python stack.

    Args:
        ranks: Ranks; empty if unknown.
        count: Number of processes.
        calls: Calls, innermost first.
        activity: What they do: ``collective``, ``data loader``, ``checkpoint``, ``compilation``;
            empty if the calls do not show it.
    """

    ranks: tuple[int, ...]
    count: int
    calls: tuple[str, ...]
    activity: str


class EndingResult(Result, frozen=True, kw_only=True):
    """How the job ended; empty without output that says so.

    Args:
        state: ``stuck`` if ranks waited for others, ``failed`` if the job ended; empty if the
            output reports neither.
        cause: Key of the cause, for example ``behind``, ``mismatch``, ``memory``, ``killed``.
        verdict: The cause in one or two sentences.
        ranks: Ranks at fault; empty if unknown.
        hosts: Their hosts, if the output names them.
        suspects: Ranks that printed nothing about it, although others wait.
        num_followers: Other ranks whose end followed from it.
        why: Evidence, one sentence each.
        alternatives: Other causes with the same symptoms.
        next_steps: Next steps, most useful first.
        positions: Positions of ranks in the group that decides.
        lines: Lines that matter, in the order of the files.
        stacks: Stacks, rarest first.
        world_size: Ranks of the job; None if the output does not say.
        num_lines: Lines read.
    """

    state: str = ""
    cause: str = ""
    verdict: str = ""
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    suspects: tuple[int, ...] = ()
    num_followers: int = 0
    why: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()
    positions: tuple[EndingPosition, ...] = ()
    lines: tuple[EndingLine, ...] = ()
    stacks: tuple[EndingStack, ...] = ()
    world_size: int | None = None
    num_lines: int = 0
