"""Evidence for a hang, and the report on its diagnosis."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from distprof.formats import Displayed
from distprof.run.job_output import JobOutput
from distprof.run.records import FlightDump
from distprof.terms import Confidence
from distprof.verbs.hang.progress import Stop


class LogLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of a rank's log that reports trouble.

    Args:
        rank: Rank that wrote it; None if unknown.
        file: Log file.
        line: Line number, from 1.
        about: ``timeout``, ``nccl``, ``device``, ``peer`` (another rank was lost), ``error``, or
            ``ras`` for a rank in trouble according to ncclras.
        text: The line, truncated.
    """

    rank: int | None
    file: str
    line: int
    about: str
    text: str


class HangEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """All evidence about a job that may hang.

    Args:
        source: The input, as the user named it.
        dumps: One dump per rank, by rank.
        world_size: World size of the job; None if unknown.
        hosts: Host of each rank, if known.
        log_lines: Trouble in logs, by rank and line.
        stacks: Calls of each rank's training thread, innermost first.
        failed: Why each failed rank's own code stopped; losing a peer does not count.
        has_ended_well: Whether the job is known to have completed.
        stop: The stop of the job's steps; None if steps continued, or are unknown.
        notes: Damaged or omitted input, one sentence each.
        num_other_dumps: Older dumps of the same ranks, left out.
        output: What the job printed.
    """

    source: str
    dumps: tuple[FlightDump, ...]
    world_size: int | None = None
    hosts: dict[int, str] = msgspec.field(default_factory=dict)
    log_lines: tuple[LogLine, ...] = ()
    stacks: dict[int, tuple[str, ...]] = msgspec.field(default_factory=dict)
    failed: dict[int, str] = msgspec.field(default_factory=dict)
    has_ended_well: bool = False
    stop: Stop | None = None
    notes: tuple[str, ...] = ()
    num_other_dumps: int = 0
    output: JobOutput = JobOutput()


# The hang report ----------------------------------------------------------------------------------

HANG_SCHEMA = "distprof.hang/1"


class HangState(StrEnum):
    """State of the job according to the dumps, or to what it printed."""

    STUCK = "stuck"
    FAILED = "failed"  # the job ended: a rank failed, or was ended from outside
    UNDECIDED = "undecided"  # only output that reports neither
    IN_FLIGHT = "in_flight"  # all ranks launched the operations in flight: running, or just stopped
    NO_HANG = "no_hang"


class HangKind(StrEnum):
    """How the first divergent operation diverges."""

    NEVER_LAUNCHED = "never_launched"
    LAUNCHED_NOT_STARTED = "launched_not_started"
    STARTED_NOT_FINISHED = "started_not_finished"
    LAUNCHED_NOT_FINISHED = (
        "launched_not_finished"  # timing is off, so whether it started is unknown
    )
    KIND_MISMATCH = "kind_mismatch"
    SIZE_MISMATCH = "size_mismatch"
    DTYPE_MISMATCH = "dtype_mismatch"
    MUTUAL_WAIT = "mutual_wait"


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times are int ns since the epoch; None means unknown and is never 0."""


class StuckOperation(_Record, frozen=True, kw_only=True):
    """The first operation in which ranks diverge.

    Args:
        group: Name of its process group.
        description: Description given by the program; empty if it gave none.
        group_ranks: All members of the group.
        seq: Sequence number in the group; None for messages.
        name: Recorded name, for example ``nccl:all_to_all``; empty if no ring holds it.
        kind: Normalised kind, for example ``all_to_all``.
        shape: Sizes of its inputs on one of the ranks that launched it.
        dtype: Data type of its inputs.
        launched: Ranks that launched it.
        missing: Ranks that did not launch it, or launched a different operation.
        unknown: Members that left no dump.
        launched_ns: When the first rank launched it, on that rank's clock.
        timeout_ms: Timeout of the group.
        frame: The call that launched it; empty if no stacks were recorded.
        others: Operations that the missing ranks launched instead, one sentence each.
    """

    group: str
    description: str
    group_ranks: tuple[int, ...]
    seq: int | None
    name: str
    kind: str
    shape: str
    dtype: str
    launched: tuple[int, ...]
    missing: tuple[int, ...]
    unknown: tuple[int, ...]
    launched_ns: int | None
    timeout_ms: int | None
    frame: str = ""
    others: tuple[str, ...] = ()


class HangRoot(_Record, frozen=True, kw_only=True):
    """One independent cause: ranks that others wait for, and the operation in which they wait.

    Args:
        kind: How the operation diverges.
        ranks: The ranks at fault; empty if the operation itself does not finish.
        hosts: Their hosts, if known.
        operation: The first operation in which others wait for them.
        has_dump: Whether the ranks left dumps; without dumps they are suspected, not proven.
        sentence: The root in one sentence.
    """

    kind: HangKind
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    operation: StuckOperation
    has_dump: bool
    sentence: str


class GroupProgress(_Record, frozen=True, kw_only=True):
    """Progress of the members of one group.

    Args:
        group: Name of the group.
        description: Description given by the program.
        ranks: All members.
        lowest_seq: Latest collective launched by the member furthest behind.
        highest_seq: Latest collective launched by the member furthest ahead.
        behind: Members that have not launched a collective that others have.
        unknown: Members that left no dump.
        pending: Number of operations in flight, summed over the members.
        waits_on: Name of the operation that the group waits in; empty if there is none.
        waits_seq: Its sequence number.
    """

    group: str
    description: str
    ranks: tuple[int, ...]
    lowest_seq: int | None
    highest_seq: int | None
    behind: tuple[int, ...]
    unknown: tuple[int, ...]
    pending: int
    waits_on: str = ""
    waits_seq: int | None = None


class RankPosition(_Record, frozen=True, kw_only=True):
    """Position of one rank.

    Args:
        rank: Global rank.
        host: Host of the rank; empty if unknown.
        source: File of its dump.
        entries: Number of operations in the dump.
        last_name: Latest operation launched.
        last_group: Its group.
        last_seq: Its sequence number.
        last_ns: Time of its launch, on the rank's clock.
        waits_for: Ranks it waits for; empty if there are none.
        call: Where its Python code is, from its stack or else from the latest operation.
    """

    rank: int
    host: str
    source: str
    entries: int
    last_name: str
    last_group: str
    last_seq: int | None
    last_ns: int | None
    waits_for: tuple[int, ...]
    call: str = ""


class StackOfRanks(_Record, frozen=True, kw_only=True):
    """Ranks with the same Python stack.

    Args:
        ranks: The ranks.
        calls: Calls, innermost first: ``function (file:line)``.
    """

    ranks: tuple[int, ...]
    calls: tuple[str, ...]


class Cadence(_Record, frozen=True, kw_only=True):
    """How often the same collective of a group recurs, over all ranks that dumped.

    Args:
        group: Name of the group.
        description: Description given by the program.
        name: Name of the operation.
        shape: Sizes of its inputs.
        count: Number of occurrences.
        period_ns: Median time from one launch to the next.
        longest_ns: Longest time from one launch to the next.
    """

    group: str
    description: str
    name: str
    shape: str
    count: int
    period_ns: int
    longest_ns: int


class HangReport(Displayed, _Record, frozen=True, kw_only=True):
    """Whether a job hangs, in which operation, and because of which ranks.

    Args:
        schema: Schema id of this document.
        distprof_version: Version of distprof that wrote it.
        source: The input, as the user named it.
        state: ``stuck``, ``in_flight`` or ``no_hang``; from output alone, ``stuck``, ``failed``
            or ``undecided``.
        verdict: The verdict in words.
        kind: How the first divergent operation diverges; None if no operation diverges.
        confidence: Measured if a log, an exit or a stack agrees with the dumps, else inferred.
        operation: The first divergent operation.
        culprits: Ranks that others wait for and that wait for no rank, of all roots.
        roots: Every independent cause, earliest first; ``operation`` is that of the first.
        suspects: Further ranks that left no dump, so no evidence can clear them.
        hosts: Hosts of the culprits, if known.
        why: Evidence, one sentence each.
        alternatives: Other causes with the same symptoms.
        next_steps: Next steps, most useful first.
        dumps: Ranks whose dumps were read.
        missing_dumps: Ranks that exist but left no dump.
        num_other_dumps: Dumps that were left out because the same ranks left newer ones. They may
            be those of another job.
        groups: Progress per group, waiting groups first.
        ranks: Position of each rank.
        log_lines: Trouble in logs next to the dumps, by rank and line.
        stacks: Python stacks, rarest first.
        cadence: How often the same collective recurs, per group.
        notes: Damaged or omitted input.
    """

    schema: str = HANG_SCHEMA
    distprof_version: str
    source: str
    state: HangState
    verdict: str
    kind: HangKind | None = None
    confidence: Confidence | None = None
    operation: StuckOperation | None = None
    culprits: tuple[int, ...] = ()
    roots: tuple[HangRoot, ...] = ()
    suspects: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    why: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()
    dumps: tuple[int, ...] = ()
    missing_dumps: tuple[int, ...] = ()
    num_other_dumps: int = 0
    groups: tuple[GroupProgress, ...] = ()
    ranks: tuple[RankPosition, ...] = ()
    log_lines: tuple[LogLine, ...] = ()
    stacks: tuple[StackOfRanks, ...] = ()
    cadence: tuple[Cadence, ...] = ()
    notes: tuple[str, ...] = ()
