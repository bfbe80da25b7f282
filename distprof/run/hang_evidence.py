"""What a folder of Flight Recorder dumps and the logs beside them tell of a job that may hang."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from distprof.run.flight import FlightDump

__all__ = ["HangEvidence", "LogLine"]


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
