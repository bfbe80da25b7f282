"""Measure the quality of the recording: ranks, matches, clocks, windows, damage."""

from __future__ import annotations

import numpy as np

from distprof.artefacts.record import Gap, grouped
from distprof.run.run import ClockAlignment, Run
from distprof.schema import ABSENT
from distprof.sections.capture import FILTERED, CaptureResult, NodeClock
from distprof.terms import MESSAGES
from distprof.units import format_bytes, format_ratio, name_ranks

NO_DEVICE = "no-device-activity"  # Kind of gap: ranks whose device was not recorded
_TRUNCATED = "truncated"  # Kind of gap: ranks whose traces end early


def analyze_capture(run: Run) -> CaptureResult:
    """Measure what the recording holds and what it lacks."""
    present = tuple(rank.rank for rank in run.ranks)
    qualities = [rank.quality for rank in run.ranks]
    complete = run.matches.complete[~np.isin(run.matches.kind, MESSAGES)]
    # notes of all parts without repetitions; a note of only some ranks names them
    noted = [(n, rank.rank) for rank in run.ranks for n in (*rank.quality.notes, rank.step_note)]
    num_ranks = len(run.ranks)
    per_rank = (
        note if len(ranks) == num_ranks else f"{name_ranks(ranks)}: {note}"
        for note, ranks in grouped(noted).items()
        if note
    )
    lacks = []
    if run.topology.world_size is None:
        lacks.append("no trace holds the world size of the job: missing ranks cannot be identified")
    if len(run.ranks) < 2:
        lacks.append("only one rank: collectives, clocks and windows cannot be compared")
    return CaptureResult(
        world_size=run.topology.world_size,
        ranks_present=present,
        ranks_missing=_missing(run.topology.world_size, present),
        matched_ratio=run.matches.matched_ratio,
        num_matched=run.matches.num_matched,
        incomplete_ratio=float(1 - complete.mean()) if len(complete) else None,
        clocks=_clocks(run.clock),
        num_causality_checked=run.clock.num_checked,
        num_causality_violations=run.clock.num_violations,
        window_overlap_ratio=run.window.overlap_ratio,
        steps=run.window.steps,
        dropped_steps=dict(run.window.dropped),
        transient_steps=run.window.transient_steps,
        start_wait_ns=run.window.start_wait_ns,
        num_events=sum(quality.num_events for quality in qualities),
        num_repaired=sum(quality.num_repaired for quality in qualities),
        num_quarantined=sum(quality.num_quarantined for quality in qualities),
        num_clamped=sum(quality.num_clamped for quality in qualities),
        num_unlaunched=sum(quality.num_unlaunched for quality in qualities),
        has_python_stacks=any(quality.with_stack for quality in qualities),
        gaps=(*_without_device(run), *run.gaps, *_truncated(run), *_filtered(run)),
        notes=tuple(dict.fromkeys((*run.matches.notes, *run.clock.notes, *per_rank))),
        unavailable=tuple(lacks),
    )


def _missing(world_size: int | None, present: tuple[int, ...]) -> tuple[int, ...]:
    if world_size is None:
        return ()
    have = set(present)
    return tuple(rank for rank in range(world_size) if rank not in have)


def _clocks(clock: ClockAlignment) -> tuple[NodeClock, ...]:
    return tuple(
        NodeClock(
            name=name,
            ranks=ranks,
            offset_ns=round(float(clock.offset_ns[i])),
            drift_ppm=float(clock.drift_ratio[i]) * 1e6,
            residual_ns=_known(clock.residual_ns[i]),
            within_ns=None if clock.within_ns is None else _known(clock.within_ns[i]),
        )
        for i, (name, ranks) in enumerate(zip(clock.names, clock.domains, strict=True))
    )


def _known(value: np.int64) -> int | None:
    return None if value == ABSENT else int(value)


def _without_device(run: Run) -> tuple[Gap, ...]:
    """Ranks whose device was not recorded, one gap per reason."""
    reasons = ((rank.quality.no_device, rank.rank) for rank in run.ranks)
    ranks_of = grouped([(why, rank) for why, rank in reasons if why])
    whole = len(run.ranks)
    return tuple(
        Gap(
            what=NO_DEVICE,
            message=why if len(ranks) == whole else f"{name_ranks(ranks).capitalize()}: {why}",
            ranks=tuple(ranks),
            fact="" if len(ranks) == whole else f"{name_ranks(ranks)} without GPU rows",
        )
        for why, ranks in ranks_of.items()
    )


def _truncated(run: Run) -> tuple[Gap, ...]:
    cut = [rank for rank in run.ranks if rank.quality.truncated]
    if not cut:
        return ()
    ranks = tuple(rank.rank for rank in cut)
    traces, end = ("The traces", "end") if len(ranks) > 1 else ("The trace", "ends")
    lost = sum(rank.quality.lost_bytes for rank in cut)
    message = (
        f"{traces} of {name_ranks(ranks)} {end} early: {format_bytes(lost)} after the last "
        "complete event and everything that was never written are lost."
    )
    fact = f"{len(cut):,} {'traces' if len(cut) > 1 else 'trace'} truncated"
    return (Gap(what=_TRUNCATED, message=message, ranks=ranks, fact=fact),)


def _filtered(run: Run) -> tuple[Gap, ...]:
    ratios = {r.rank: r.quality.operator_ratio or 0.0 for r in run.ranks if r.quality.is_filtered}
    if not ratios:
        return ()
    message = (
        f"Rows were removed from the trace{'s' if len(ratios) > 1 else ''} of "
        f"{name_ranks(ratios)}: {format_ratio(max(ratios.values()))} of the operators are there. "
        "Kernels may be missing too, so idle time cannot be judged."
    )
    traces = f"{len(ratios):,} {'traces' if len(ratios) > 1 else 'trace'}"
    fact = f"{traces} filtered: idle time cannot be judged"
    return (Gap(what=FILTERED, message=message, ranks=tuple(ratios), fact=fact),)
