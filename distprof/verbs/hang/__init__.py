"""Evidence for a hang, and the report on its diagnosis."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from distprof.run.logs import JobOutput
from distprof.run.records import FlightDump
from distprof.sections.ending import EndingLine
from distprof.terms import Confidence
from distprof.verbs import Displayed


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """A job that no longer completes steps."""

    step: int  # The last step that any rank completed.
    for_ns: int  # Time from its end to the newest evidence.
    usual_ns: int  # Usual length of a step.


class HangEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """All evidence about a job that may hang."""

    source: str  # The input, as the user named it.
    dumps: tuple[FlightDump, ...]  # One dump per rank, by rank.
    world_size: int | None = None  # World size of the job; None if unknown.
    hosts: dict[int, str] = msgspec.field(default_factory=dict)  # Host of each rank, if known.
    log_lines: tuple[EndingLine, ...] = ()  # Trouble in logs, by rank and line.
    # Calls of each rank's training thread, innermost first.
    stacks: dict[int, tuple[str, ...]] = msgspec.field(default_factory=dict)
    # Why each failed rank's own code stopped; losing a peer does not count.
    failed: dict[int, str] = msgspec.field(default_factory=dict)
    has_ended_well: bool = False  # Whether the job is known to have completed.
    # The stop of the job's steps; None if steps continued, or are unknown.
    stop: Stop | None = None
    notes: tuple[str, ...] = ()  # Damaged or omitted input, one sentence each.
    num_other_dumps: int = 0  # Older dumps of the same ranks, left out.
    output: JobOutput = JobOutput()  # What the job printed.


# The hang report ----------------------------------------------------------------------------------


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
    LAUNCHED_NOT_FINISHED = "launched_not_finished"  # timing is off: it may not have started
    KIND_MISMATCH = "kind_mismatch"
    SIZE_MISMATCH = "size_mismatch"
    DTYPE_MISMATCH = "dtype_mismatch"
    MUTUAL_WAIT = "mutual_wait"


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times are int ns since the epoch; None means unknown and is never 0."""


class StuckOperation(_Record, frozen=True, kw_only=True):
    """The first operation in which ranks diverge."""

    group: str  # Name of its process group.
    description: str  # Description given by the program; empty if it gave none.
    group_ranks: tuple[int, ...]  # All members of the group.
    seq: int | None  # Sequence number in the group; None for messages.
    name: str  # Recorded name, for example ``nccl:all_to_all``; empty if no ring holds it.
    kind: str  # Normalised kind, for example ``all_to_all``.
    shape: str  # Sizes of its inputs on one of the ranks that launched it.
    dtype: str  # Data type of its inputs.
    launched: tuple[int, ...]  # Ranks that launched it.
    missing: tuple[int, ...]  # Ranks that did not launch it, or launched a different operation.
    unknown: tuple[int, ...]  # Members that left no dump.
    launched_ns: int | None  # When the first rank launched it, on that rank's clock.
    timeout_ms: int | None  # Timeout of the group.
    frame: str = ""  # The call that launched it; empty if no stacks were recorded.
    # Operations that the missing ranks launched instead, one sentence each.
    others: tuple[str, ...] = ()


class HangRoot(_Record, frozen=True, kw_only=True):
    """One independent cause: ranks that others wait for, and the operation in which they wait."""

    kind: HangKind  # How the operation diverges.
    ranks: tuple[int, ...]  # The ranks at fault; empty if the operation itself does not finish.
    hosts: tuple[str, ...]  # Their hosts, if known.
    operation: StuckOperation  # The first operation in which others wait for them.
    has_dump: bool  # Whether the ranks left dumps; without dumps they are suspected, not proven.
    sentence: str  # The root in one sentence.


class GroupProgress(_Record, frozen=True, kw_only=True):
    """Progress of the members of one group."""

    group: str  # Name of the group.
    description: str  # Description given by the program.
    ranks: tuple[int, ...]  # All members.
    lowest_seq: int | None  # Latest collective launched by the member furthest behind.
    highest_seq: int | None  # Latest collective launched by the member furthest ahead.
    behind: tuple[int, ...]  # Members that have not launched a collective that others have.
    unknown: tuple[int, ...]  # Members that left no dump.
    pending: int  # Number of operations in flight, summed over the members.
    waits_on: str = ""  # Name of the operation that the group waits in; empty if there is none.
    waits_seq: int | None = None  # Its sequence number.


class RankPosition(_Record, frozen=True, kw_only=True):
    """Position of one rank."""

    rank: int  # Global rank.
    host: str  # Host of the rank; empty if unknown.
    source: str  # File of its dump.
    entries: int  # Number of operations in the dump.
    last_name: str  # Latest operation launched.
    last_group: str  # Its group.
    last_seq: int | None  # Its sequence number.
    last_ns: int | None  # Time of its launch, on the rank's clock.
    waits_for: tuple[int, ...]  # Ranks it waits for; empty if there are none.
    call: str = ""  # Where its Python code is, from its stack or else from the latest operation.


class StackOfRanks(_Record, frozen=True, kw_only=True):
    """Ranks with the same Python stack."""

    ranks: tuple[int, ...]  # The ranks.
    calls: tuple[str, ...]  # Calls, innermost first: ``function (file:line)``.


class Cadence(_Record, frozen=True, kw_only=True):
    """How often the same collective of a group recurs, over all ranks that dumped."""

    group: str  # Name of the group.
    description: str  # Description given by the program.
    name: str  # Name of the operation.
    shape: str  # Sizes of its inputs.
    count: int  # Number of occurrences.
    period_ns: int  # Median time from one launch to the next.
    longest_ns: int  # Longest time from one launch to the next.


class HangReport(Displayed, _Record, frozen=True, kw_only=True):
    """Whether a job hangs, in which operation, and because of which ranks."""

    schema: str = "distprof.hang/1"  # Schema id of this document.
    distprof_version: str  # Version of distprof that wrote it.
    source: str  # The input, as the user named it.
    # ``stuck``, ``in_flight`` or ``no_hang``; from output alone, ``stuck``, ``failed`` or
    # ``undecided``.
    state: HangState
    verdict: str  # The verdict in words.
    headline: str = ""  # Its beginning, in at most 80 characters.
    # How the first divergent operation diverges; None if no operation diverges.
    kind: HangKind | None = None
    # Measured if a log, an exit or a stack agrees with the dumps, else inferred.
    confidence: Confidence | None = None
    operation: StuckOperation | None = None  # The first divergent operation.
    # Ranks that others wait for and that wait for no rank, of all roots.
    culprits: tuple[int, ...] = ()
    # Every independent cause, earliest first; ``operation`` is that of the first.
    roots: tuple[HangRoot, ...] = ()
    # Further ranks that left no dump, so no evidence can clear them.
    suspects: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()  # Hosts of the culprits, if known.
    why: tuple[str, ...] = ()  # Evidence, one sentence each.
    alternatives: tuple[str, ...] = ()  # Other causes with the same symptoms.
    next_steps: tuple[str, ...] = ()  # Next steps, most useful first.
    dumps: tuple[int, ...] = ()  # Ranks whose dumps were read.
    missing_dumps: tuple[int, ...] = ()  # Ranks that exist but left no dump.
    # Dumps that were left out because the same ranks left newer ones. They may be those of another
    # job.
    num_other_dumps: int = 0
    groups: tuple[GroupProgress, ...] = ()  # Progress per group, waiting groups first.
    ranks: tuple[RankPosition, ...] = ()  # Position of each rank.
    log_lines: tuple[EndingLine, ...] = ()  # Trouble in logs next to the dumps, by rank and line.
    stacks: tuple[StackOfRanks, ...] = ()  # Python stacks, rarest first.
    cadence: tuple[Cadence, ...] = ()  # How often the same collective recurs, per group.
    notes: tuple[str, ...] = ()  # Damaged or omitted input.
