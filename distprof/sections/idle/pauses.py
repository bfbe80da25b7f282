"""Time that training threads lost to garbage collection and to waiting for input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from distprof.intervals import Intervals, union
from distprof.run.records import RankRecords
from distprof.run.tables import intervals_of
from distprof.schema import Table
from distprof.sections.context import ProbeRecords
from distprof.sections.idle.result import PausesResult, RankPauses

__all__ = ["HostPauses", "analyze_pauses", "host_pauses", "measure_pauses"]

MAX_STEPS = 4_096
"""Of each rank, the last steps whose pauses are kept one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPauses:
    """What kept one rank's training thread from its model, step by step.

    Args:
        gc_ns: Step to time in garbage collection, None where it was not watched.
        input_ns: Step to time in the phase ``input``, None where phases were not logged.
        tokens: Step to tokens trained on, None where they were not logged.
    """

    gc_ns: Mapping[int, int] | None = None
    input_ns: Mapping[int, int] | None = None
    tokens: Mapping[int, int] | None = None


def measure_pauses(records: RankRecords) -> RankPauses | None:
    """The figures of one rank; None where pauses were not watched or no step was logged."""
    num_steps = max(1, len(records.step_log) - 1)
    if len(records.step_log) == 0 or (len(records.pauses) == 0 and "pauses" not in records.about):
        return None
    gc, num_gc, longest_gc = _of_kind(records, "gc")
    waits, num_waits, longest_wait = _of_kind(records, "input")
    return RankPauses(
        rank=records.rank,
        gc_ns_per_step=gc // num_steps,
        num_gc=num_gc,
        longest_gc_ns=longest_gc,
        input_ns_per_step=waits // num_steps,
        num_input=num_waits,
        longest_input_ns=longest_wait,
    )


def host_pauses(records: RankRecords) -> HostPauses:
    """Pauses of the last steps, one by one."""
    pauses, phases = records.pauses, records.phases
    watched = len(pauses) > 0 or "pauses" in records.about
    collected = pauses.take(pauses.coded("kind").equals("gc"))
    return HostPauses(
        gc_ns=_by_step(collected) if watched else None,
        input_ns=_by_step(phases.take(phases.coded("name").equals("input")))
        if len(phases)
        else None,
        tokens=_tokens(records.step_log),
    )


def _tokens(log: Table) -> dict[int, int] | None:
    """Of the last steps, one by one; None where any of them does not tell."""
    steps, tokens = log["step"][-MAX_STEPS:], log["tokens"][-MAX_STEPS:]
    if len(tokens) == 0 or (tokens < 0).any():
        return None
    return dict(zip(steps.tolist(), tokens.tolist(), strict=True))


def _by_step(rows: Table) -> dict[int, int]:
    """Time of rows by step; those of no step are left out."""
    steps, index = np.unique(rows["step"], return_inverse=True)
    total = np.zeros(len(steps), dtype=np.int64)
    np.add.at(total, index, rows["end_ns"] - rows["start_ns"])
    times = zip(steps.tolist(), total.tolist(), strict=True)
    return dict([(step, ns) for step, ns in times if step >= 0][-MAX_STEPS:])


def analyze_pauses(records: ProbeRecords) -> PausesResult:
    """All ranks whose pauses were watched."""
    ranks = tuple(records.of(RankPauses).values())
    return PausesResult(ranks=ranks, unavailable=records.why("pauses", ranks))


def _of_kind(records: RankRecords, kind: str) -> tuple[int, int, int | None]:
    """Time in pauses of a kind, their number, and the longest."""
    pauses, first = records.pauses, int(records.step_log["step"][0])
    counted = pauses.coded("kind").equals(kind) & (pauses["step"] != first)
    rows = pauses.take(counted if len(records.step_log) > 1 else pauses.coded("kind").equals(kind))
    if len(rows) == 0:
        return 0, 0, None
    start, end = intervals_of(rows)
    busy = union(Intervals(start, end))
    return int((busy.end - busy.start).sum()), len(rows), int(np.max(end - start))
