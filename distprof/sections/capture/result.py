"""Quality of the recording: ranks, matches, clocks, windows, damage."""

from __future__ import annotations

from distprof.schema import Record
from distprof.sections.base import Result

__all__ = ["CaptureGap", "CaptureResult", "NodeClock"]


class NodeClock(Record, frozen=True, kw_only=True):
    """One clock domain: its correction and the uncertainty that remains (None: not measured).

    ``within_ns`` is the smaller uncertainty between ranks of the domain, which share the clock of
    their host.
    """

    name: str
    ranks: tuple[int, ...]
    offset_ns: int
    drift_ppm: float
    residual_ns: int | None
    within_ns: int | None = None


class CaptureGap(Record, frozen=True, kw_only=True):
    """Something that was missing or damaged when the recording was read."""

    what: str
    message: str
    ranks: tuple[int, ...]


class CaptureResult(Result, frozen=True, kw_only=True):
    """Quality of the recording.

    ``incomplete_ratio`` is the share of matched collectives that lack a member in the recording.
    That member may have arrived last, so apparent transfer may be waiting for it.
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
    num_events: int
    num_repaired: int
    num_quarantined: int
    num_clamped: int
    num_unlaunched: int
    gaps: tuple[CaptureGap, ...]
    notes: tuple[str, ...]
