"""Quality of the recording: ranks, matches, clocks, windows, damage."""

from __future__ import annotations

from distprof.artefacts.record import Record
from distprof.sections.base import Result

FILTERED = "filtered"
"""Kind of gap: ranks whose traces lost rows after the profiler had written them."""

LEFT_OUT = frozenset(
    {"equal-ranks", "other-units", "unreadable", "clock-jumps", "clock-jumps-back"}
)
"""Kinds of gap whose ranks have a file that cannot be used."""


class NodeClock(Record, frozen=True, kw_only=True):
    """One clock domain: its correction and the uncertainty that remains (None if not measured).

    ``within_ns`` is the smaller uncertainty between ranks of the domain, which share the clock of
    their host.

    Args:
        name: Clock domain: a node, or a rank whose node is unknown.
        ranks: Ranks that share it.
        offset_ns: Subtracted from its times to reach the common clock, at the reference time.
        drift_ppm: How much faster it runs than the reference, parts per million.
        residual_ns: Uncertainty between this clock and the others after alignment; null if not
            measured.
        within_ns: Uncertainty between ranks of this node, smaller because they share its clock;
            null if not measured.
    """

    name: str
    ranks: tuple[int, ...]
    offset_ns: int
    drift_ppm: float
    residual_ns: int | None
    within_ns: int | None = None


class CaptureGap(Record, frozen=True, kw_only=True):
    """Something that was missing or damaged when the recording was read.

    Args:
        what: Kind of gap, for example ``missing-ranks`` or ``unreadable``.
        message: What is missing or damaged, one sentence.
        ranks: Affected ranks; empty if all or unknown.
        num_files: Files that were left out because they belong to another job or recording.
        fact: The same in few words, if shares or causes may be wrong because of it.
        hides_cause: Whether the causes of lateness of these ranks cannot be known.
    """

    what: str
    message: str
    ranks: tuple[int, ...]
    num_files: int = 0
    fact: str = ""
    hides_cause: bool = False


class CaptureResult(Result, frozen=True, kw_only=True):
    """Quality of the recording.

    ``incomplete_ratio`` is the share of matched collectives that lack a member in the recording.
    That member may have arrived last, so apparent transfer may be waiting for it.

    Args:
        world_size: Ranks of the job; null if the recording does not say.
        ranks_present: Ranks with a readable trace, ascending.
        ranks_missing: Ranks of the job without one.
        matched_ratio: Share of collective records that were matched with those of other ranks, 0 to
            1; null without any.
        num_matched: Collective records that were matched.
        incomplete_ratio: Share of matched collectives that lack a member in the recording: that
            member may have arrived last, so apparent transfer may be waiting. Null without matches.
        clocks: Clock domains, each corrected on its own.
        num_causality_checked: Matched symmetric collectives checked for causality after clocks were
            aligned.
        num_causality_violations: Of these, collectives in which a member ends before the last one
            starts, by more than the residual.
        window_overlap_ratio: Time that all ranks recorded over the time that any rank recorded, 0
            to 1; null for fewer than two ranks.
        steps: Numbers of the analysed steps.
        dropped_steps: Reason why a step was not analysed, by step number.
        transient_steps: Steps left out because the profiler was starting.
        start_wait_ns: Waiting in the first collective of an analysed step that the start of the
            profiler may have caused, mean per rank and step. It counts as waiting, but no rank is
            blamed.
        num_events: Events in all traces.
        num_repaired: Events that were invalid JSON and were repaired.
        num_quarantined: Events that could not be read and were left out.
        num_clamped: Events with a negative or absurd duration, kept with duration 0.
        num_unlaunched: GPU activities without a launch record in the trace.
        has_python_stacks: Whether Python stacks were recorded, which slows the CPU by an unknown
            share.
        gaps: What is missing or damaged.
        notes: Remarks on how the recording was read, one sentence each.
    """

    needs_traces = True

    world_size: int | None
    ranks_present: tuple[int, ...]
    ranks_missing: tuple[int, ...]
    matched_ratio: float | None
    num_matched: int
    incomplete_ratio: float | None = None
    clocks: tuple[NodeClock, ...]
    num_causality_checked: int
    num_causality_violations: int
    window_overlap_ratio: float | None
    steps: tuple[int, ...]
    dropped_steps: dict[int, str]
    transient_steps: tuple[int, ...]
    start_wait_ns: int = 0
    num_events: int
    num_repaired: int
    num_quarantined: int
    num_clamped: int
    num_unlaunched: int
    has_python_stacks: bool = False
    gaps: tuple[CaptureGap, ...]
    notes: tuple[str, ...]

    @property
    def filtered_ranks(self) -> tuple[int, ...]:
        """Ranks whose traces lost rows after recording: their idle time is unknown."""
        return next((gap.ranks for gap in self.gaps if gap.what == FILTERED), ())
