"""Quality of the recording: ranks, matches, clocks, windows, damage."""

from __future__ import annotations

from distprof.artefacts.record import Gap, Record
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
    """

    name: str  # Clock domain: a node, or a rank whose node is unknown.
    ranks: tuple[int, ...]  # Ranks that share it.
    offset_ns: int  # Subtracted from its times to reach the common clock, at the reference time.
    drift_ppm: float  # How much faster it runs than the reference, parts per million.
    # Uncertainty between this clock and the others after alignment; null if not measured.
    residual_ns: int | None
    # Uncertainty between ranks of this node, smaller because they share its clock; null if not
    # measured.
    within_ns: int | None = None


class CaptureResult(Result, frozen=True, kw_only=True):
    """Quality of the recording.

    ``incomplete_ratio`` is the share of matched collectives that lack a member in the recording.
    That member may have arrived last, so apparent transfer may be waiting for it.
    """

    needs_traces = True

    world_size: int | None  # Ranks of the job; null if the recording does not say.
    ranks_present: tuple[int, ...]  # Ranks with a readable trace, ascending.
    ranks_missing: tuple[int, ...]  # Ranks of the job without one.
    # Share of collective records that were matched with those of other ranks, 0 to 1; null without
    # any.
    matched_ratio: float | None
    num_matched: int  # Collective records that were matched.
    # Share of matched collectives that lack a member in the recording: that member may have arrived
    # last, so apparent transfer may be waiting. Null without matches.
    incomplete_ratio: float | None = None
    clocks: tuple[NodeClock, ...]  # Clock domains, each corrected on its own.
    # Matched symmetric collectives checked for causality after clocks were aligned.
    num_causality_checked: int
    # Of these, collectives in which a member ends before the last one starts, by more than the
    # residual.
    num_causality_violations: int
    # Time that all ranks recorded over the time that any rank recorded, 0 to 1; null for fewer than
    # two ranks.
    window_overlap_ratio: float | None
    steps: tuple[int, ...]  # Numbers of the analysed steps.
    dropped_steps: dict[int, str]  # Reason why a step was not analysed, by step number.
    transient_steps: tuple[int, ...]  # Steps left out because the profiler was starting.
    # Waiting in the first collective of an analysed step that the start of the profiler may have
    # caused, mean per rank and step. It counts as waiting, but no rank is blamed.
    start_wait_ns: int = 0
    num_events: int  # Events in all traces.
    num_repaired: int  # Events that were invalid JSON and were repaired.
    num_quarantined: int  # Events that could not be read and were left out.
    num_clamped: int  # Events with a negative or absurd duration, kept with duration 0.
    num_unlaunched: int  # GPU activities without a launch record in the trace.
    # Whether Python stacks were recorded, which slows the CPU by an unknown share.
    has_python_stacks: bool = False
    gaps: tuple[Gap, ...]  # What is missing or damaged.
    notes: tuple[str, ...]  # Remarks on how the recording was read, one sentence each.

    @property
    def filtered_ranks(self) -> tuple[int, ...]:
        """Ranks whose traces lost rows after recording: their idle time is unknown."""
        return next((gap.ranks for gap in self.gaps if gap.what == FILTERED), ())
