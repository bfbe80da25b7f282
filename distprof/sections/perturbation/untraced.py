"""Steps without the profiler: how long they take, and what the training thread did in them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.intervals import Intervals, union
from distprof.run.records import RankRecords, untraced_steps
from distprof.run.tables import intervals_of
from distprof.schema import Int64Array, Table

MANY = 12
"""With fewer steps, only the faster half counts: the first steps of a job are often slow."""

LONG_RATIO = 1.5
"""A step that takes this many times the median does something else as well."""


class UntracedSteps(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's steps with and without the profiler."""

    untraced_ns: Int64Array  # int64, durations of steps without it.
    later_ns: Int64Array  # int64, durations of steps after it, which it may still make slower.
    light_ns: Int64Array  # int64, durations of steps in which only the GPU was recorded.
    # Waiting for input or loading it, mean per untraced step; None if not recorded.
    input_ns: float | None
    collection_ns: float | None  # Garbage collection, mean per untraced step; None if not recorded.
    collections: Intervals  # Garbage collections, a set; own clock.
    # Time lost from the step before the first traced one to the one after the last, beyond as many
    # usual steps; None if that is unknown.
    window_cost_ns: float | None = None
    # Share of untraced steps at whose end the GPU was more than a step behind; None if it was not
    # observed.
    behind: float | None = None


def untraced_of(records: RankRecords) -> UntracedSteps | None:
    """Steps of one rank; None without a step log."""
    log = records.step_log
    if len(log) == 0:
        return None
    kept = untraced_steps(log)
    light = log["is_light"]
    behind = log["gpu_behind"][kept]
    behind = behind[behind >= 0]
    duration = log["end_ns"] - log["start_ns"]
    pauses = records.pauses
    numbers = log["step"][kept & log["is_probed"]]  # paused probes record no pauses
    collected = pauses.take(pauses.coded("kind").equals("gc"))
    return UntracedSteps(
        untraced_ns=duration[kept],
        later_ns=duration[_later(log)],
        light_ns=duration[light],
        input_ns=_mean_in(_inputs(records), numbers),
        collection_ns=_mean_in([collected], numbers),
        collections=union(intervals_of(collected)),
        window_cost_ns=_window_cost(log, duration[kept]),
        behind=float(behind.mean()) if len(behind) >= MANY // 3 else None,
    )


def _later(log: Table) -> NDArray[np.bool_]:
    traced = np.flatnonzero(log["is_traced"])
    last = int(traced[-1]) + 2 if len(traced) else len(log)
    result: NDArray[np.bool_] = np.arange(len(log)) >= last
    return result


def _window_cost(log: Table, untraced_ns: Int64Array) -> float | None:
    traced = np.flatnonzero(log["is_traced"])
    usual = typical_ns(untraced_ns)
    if len(traced) == 0 or usual is None:
        return None
    first, last = max(int(traced[0]) - 1, 0), min(int(traced[-1]) + 1, len(log) - 1)
    took = float(log["end_ns"][last] - log["start_ns"][first])
    return max(took - (last - first + 1) * usual[0], 0.0)


def _inputs(records: RankRecords) -> list[Table]:
    """Waits for input and loads: pauses of a data loader, and phases of a loop of one's own."""
    pauses, phases = records.pauses, records.phases
    return [
        pauses.take(pauses.coded("kind").equals("input")),
        phases.take(phases.coded("name").equals("input")),
    ]


def _mean_in(recorded: Sequence[Table], steps: Int64Array) -> float | None:
    """Time in them per step; None without steps, or if no step at all recorded any."""
    if len(steps) == 0 or not any(map(len, recorded)):
        return None
    inside = [intervals_of(one.take(np.isin(one["step"], steps))) for one in recorded]
    busy = union(Intervals(*map(np.concatenate, zip(*inside, strict=True))))
    return float((busy.end - busy.start).sum()) / len(steps)


BEST = 0.1
"""Quantile of steps whose time others might reach, too: what is slower in them may be chance."""


def best_ns(steps: UntracedSteps) -> float | None:
    """Time that a tenth of the steps reach, without the profiler or after it; None without steps.

    Steps after the profiler may be slower, never faster.
    """
    known = [part for part in (steps.untraced_ns, steps.later_ns) if len(part) >= MANY // 2]
    return min((float(np.quantile(part, BEST)) for part in known), default=None)


def typical_ns(durations: Int64Array) -> tuple[float, float, float] | None:
    """Mean of usual steps, and a 95 % confidence interval; None without steps.

    Steps that take much longer than the median are left out: other work is done in them. Of few
    steps, only the faster half counts.
    """
    if len(durations) == 0:
        return None
    usual = np.sort(durations[durations <= LONG_RATIO * np.median(durations)])
    if len(usual) < MANY:
        usual = usual[: (len(usual) + 1) // 2]
    mean = float(usual.mean())
    spread = float(usual.std(ddof=1)) if len(usual) > 1 else 0.1 * mean
    margin = 2 * spread / len(usual) ** 0.5
    return mean, mean - margin, mean + margin
