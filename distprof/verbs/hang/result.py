"""What is known about a hang: the form in which it is written and shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from distprof.run.records import FlightDump
from distprof.terms import Confidence

__all__ = [
    "HANG_SCHEMA",
    "Cadence",
    "GroupProgress",
    "HangEvidence",
    "HangKind",
    "HangReport",
    "HangState",
    "LogLine",
    "RankPosition",
    "StackOfRanks",
    "StuckOperation",
]


class LogLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of a rank's log that tells of trouble.

    Args:
        rank: Whose, None when unknown.
        file: File it is from.
        line: Number in it, from 1.
        about: ``timeout``, ``nccl``, ``device``, ``peer`` (another rank was lost) or ``error``.
        text: The line, cut.
    """

    rank: int | None
    file: str
    line: int
    about: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HangEvidence:
    """All that was found.

    Args:
        source: As the user named it.
        dumps: One per rank, by rank.
        world_size: Of the job, None when unknown.
        hosts: Rank to its host, where known.
        log_lines: By rank and line.
        stacks: Rank to the calls of its training thread, innermost first.
        failed: Rank to why its own code stopped, losing a peer not counted.
        has_ended_well: Whether the job is known to have completed.
        notes: What was damaged or left out, one sentence each.
    """

    source: str
    dumps: tuple[FlightDump, ...]
    world_size: int | None = None
    hosts: dict[int, str] = field(default_factory=dict)
    log_lines: tuple[LogLine, ...] = ()
    stacks: dict[int, tuple[str, ...]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    has_ended_well: bool = False
    notes: tuple[str, ...] = ()


# What is known about a hang: the form in which it is written and shown ---------------------------

HANG_SCHEMA = "distprof.hang/1"


class HangState(StrEnum):
    """What the dumps say of the job."""

    STUCK = "stuck"
    IN_FLIGHT = (
        "in_flight"  # operations under way that all ranks launched: running, or just stopped
    )
    NO_HANG = "no_hang"


class HangKind(StrEnum):
    """How the first divergent operation diverges."""

    NEVER_LAUNCHED = "never_launched"
    LAUNCHED_NOT_STARTED = "launched_not_started"
    STARTED_NOT_FINISHED = "started_not_finished"
    LAUNCHED_NOT_FINISHED = "launched_not_finished"  # timing is off: started or not is unknown
    KIND_MISMATCH = "kind_mismatch"
    SIZE_MISMATCH = "size_mismatch"
    DTYPE_MISMATCH = "dtype_mismatch"
    MUTUAL_WAIT = "mutual_wait"


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times are int ns since the epoch; None means not known and is never 0."""


class StuckOperation(_Record, frozen=True, kw_only=True):
    """The first operation in which ranks diverge.

    Args:
        group: Name of its process group.
        description: What the group's maker calls it, empty when nothing.
        group_ranks: All members of the group.
        seq: Sequence number in the group; None for messages.
        name: Upstream's name, for example ``nccl:all_to_all``; empty when no ring holds it.
        kind: Normalised kind, for example ``all_to_all``.
        shape: Sizes of its inputs on one of the ranks that launched it.
        dtype: Data type of its inputs.
        launched: Ranks that launched it.
        missing: Ranks that did not, or did something else.
        unknown: Members that left no dump.
        launched_ns: When the first rank launched it, on that rank's clock.
        timeout_ms: Timeout of the group.
        frame: The call that launched it, where stacks were recorded.
        others: What the missing ranks launched instead, one sentence each.
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


class GroupProgress(_Record, frozen=True, kw_only=True):
    """How far the members of one group came.

    Args:
        group: Name.
        description: What its maker calls it.
        ranks: All members.
        lowest_seq: Smallest number of the latest collective launched, over members.
        highest_seq: Largest.
        behind: Members that have not launched what others have.
        unknown: Members that left no dump.
        pending: Operations under way on some member.
        waits_on: Name of the operation that the group waits in, empty when in none.
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
    """Where one rank is.

    Args:
        rank: Global rank.
        host: Empty when unknown.
        source: File of its dump.
        entries: Operations in it.
        last_name: Latest operation launched.
        last_group: Its group.
        last_seq: Its sequence number.
        last_ns: When, on the rank's clock.
        waits_for: Ranks it waits for; empty when for none.
        call: Where its Python code is, from a stack or from the latest operation.
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
    """Ranks whose Python code stands in the same calls.

    Args:
        ranks: Which.
        calls: Innermost first, ``function (file:line)``.
    """

    ranks: tuple[int, ...]
    calls: tuple[str, ...]


class Cadence(_Record, frozen=True, kw_only=True):
    """How often equal collectives of a group come, over all ranks that dumped.

    Args:
        group: Name.
        description: What its maker calls it.
        name: Of the operation.
        shape: Sizes of its inputs.
        count: How many there are.
        period_ns: Median time from one to the next.
        longest_ns: Longest such time.
    """

    group: str
    description: str
    name: str
    shape: str
    count: int
    period_ns: int
    longest_ns: int


class HangReport(_Record, frozen=True, kw_only=True):
    """Whether a job hangs, in what, and because of whom.

    Args:
        schema: Of this document.
        distprof_version: Version that wrote it.
        source: What was read, as the user named it.
        state: ``stuck``, ``in_flight`` or ``no_hang``.
        verdict: One sentence.
        kind: How the first divergent operation diverges; None when nothing does.
        confidence: Measured where a log, an exit or a stack agrees with the dumps, else inferred.
        operation: The first divergent operation.
        culprits: Ranks that the others wait for, and that wait for nobody.
        hosts: Their hosts, where known.
        why: Evidence, one sentence each.
        alternatives: What else would look like this.
        next_steps: What to do, most useful first.
        dumps: Ranks whose dumps were read.
        missing_dumps: Ranks that must exist and left none.
        groups: Progress per group, those that wait first.
        ranks: Position of each rank.
        log_lines: Trouble in logs beside the dumps, by rank and line.
        stacks: Python stacks, rarest first.
        cadence: How often equal collectives come, per group.
        notes: What was damaged or left out.
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
    hosts: tuple[str, ...] = ()
    why: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()
    dumps: tuple[int, ...] = ()
    missing_dumps: tuple[int, ...] = ()
    groups: tuple[GroupProgress, ...] = ()
    ranks: tuple[RankPosition, ...] = ()
    log_lines: tuple[LogLine, ...] = ()
    stacks: tuple[StackOfRanks, ...] = ()
    cadence: tuple[Cadence, ...] = ()
    notes: tuple[str, ...] = ()
