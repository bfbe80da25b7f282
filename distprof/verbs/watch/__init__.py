"""Watches a job while it runs: late ranks, lost ranks, and alerts.

Here are the two rules that decide what is slow: a rank against its peers, and a job against itself.
In each step, a rank's own time is compared with the median of its peers, which are all other ranks
of its pipeline stage. A rank becomes slow when this excess is above a limit in at least ``ON`` of
the last ``WINDOW`` steps, and stops being slow when it is in at most ``OFF`` of them.

If steps were independent and a healthy rank exceeded the limit with probability p, a window would
alarm with probability P(Binomial(WINDOW, p) >= ON), which is below 1e-17 for p = 5 %. The remaining
cause of false alarms is a rank that drifts for a whole window. The limit is therefore at least
six times the usual spread among peers, if there are enough peers to estimate it.

A step of the job counts if it exceeds the median of its earlier steps by more than a limit. On GPU
ranks, whose CPUs run ahead, the mean of the last ``SMOOTHED`` steps takes the place of each step.
``benchmarks/watch_alarms.py`` simulates the error rates of both rules.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from distprof.artefacts.records import CollectivesRecord, GroupTimes, StepRecord
from distprof.join.gpu_waits import (
    Lateness,
    bounded_groups,
    excess_of_peers,
    likely_excess,
    usual_difference,
)
from distprof.schema import Floats
from distprof.units import NS_PER_S

WINDOW: Final = 40
ON: Final = 26
OFF: Final = 8
LIMIT_SHARE: Final = 0.75
"""Limit as a share of the requested level. With noise, a rank that is 10 % slow is below 10 % half
of the time, but above 7.5 % in most steps."""
LEAST_OF_STEP: Final = 0.01
"""Minimum excess as a share of the step: smaller losses are not reported."""
_SPREAD_EVERY = 8  # steps: the spread changes slowly, and medians over many ranks take time
_CLIP = 0.25


class Persistence:
    """Hysteresis: on when ``ON`` of the last ``WINDOW`` observations are above, off at ``OFF``."""

    def __init__(self, size: int) -> None:
        self._above: NDArray[np.bool_] = np.zeros((WINDOW, size), dtype=np.bool_)
        # How many of the last observations of each series were above the limit.
        self.counts: NDArray[np.int64] = np.zeros(size, dtype=np.int64)
        self.is_on: NDArray[np.bool_] = np.zeros(size, dtype=np.bool_)
        self._next = 0

    def grow(self, size: int) -> None:
        """Observe more series; new ones count as below the limit so far."""
        more = size - len(self.counts)
        if more > 0:
            self._above = np.pad(self._above, ((0, 0), (0, more)))
            self.counts = np.pad(self.counts, (0, more))
            self.is_on = np.pad(self.is_on, (0, more))

    def observe(self, is_above: NDArray[np.bool_]) -> None:
        """Add one observation of each series."""
        oldest = self._above[self._next]
        self.counts += is_above.astype(np.int64) - oldest
        self._above[self._next] = is_above
        self._next = (self._next + 1) % WINDOW
        self.is_on = (self.counts >= ON) | (self.is_on & (self.counts > OFF))


def column_medians(values: Floats) -> Floats:
    """Median of each column; NaN if all of its values are unknown."""
    found = np.full(values.shape[1], np.nan)
    known = np.isfinite(values).any(axis=0)
    if known.any():
        found[known] = np.nanmedian(values[:, known], axis=0)
    return found


class SlowRanks:
    """Which ranks are slow, updated step by step; ``level`` is a share of the peers' own time."""

    def __init__(self, level: float, size: int) -> None:
        self.state = Persistence(size)
        # Excess of each rank above which a step counts.
        self.limits: Floats = np.full(size, LIMIT_SHARE * level)
        self._level = level
        self._usual: Floats = np.zeros(size)
        self._recent: Floats = np.full((WINDOW, size), np.nan)
        self._num_steps = 0

    def typical_excess(self, columns: Sequence[int]) -> Floats:
        """Median excess of some ranks in the last ``WINDOW`` steps; NaN if unknown."""
        return column_medians(self._recent[:, columns])

    def grow(self, size: int) -> None:
        """Observe more ranks."""
        more = size - len(self.limits)
        if more > 0:
            self.state.grow(size)
            self.limits = np.pad(self.limits, (0, more), constant_values=LIMIT_SHARE * self._level)
            self._usual = np.pad(self._usual, (0, more))
            self._recent = np.pad(self._recent, ((0, 0), (0, more)), constant_values=np.nan)

    def observe(self, own: Floats, step: Floats | float, groups: NDArray[np.int64]) -> Floats:
        """Add one step of all ranks; return the excess of each, NaN if unknown.

        ``own`` (shape (ranks,), NaN if unknown) and ``step`` have the same unit. For ``groups`` see
        :func:`excess_of_peers`.
        """
        excess, peers = excess_of_peers(own, groups)
        self._add(excess, excess, own - peers >= LEAST_OF_STEP * step, groups)
        return excess

    def observe_bounds(self, late: Lateness, step: float, groups: NDArray[np.int64]) -> Floats:
        """Add a step (ns) of ranks whose lateness has two bounds; return the lower excess."""
        excess = late.excess
        self._add(excess, likely_excess(late), late.late_ns >= LEAST_OF_STEP * step, groups)
        return excess

    def _add(
        self, excess: Floats, likely: Floats, matters: NDArray[np.bool_], groups: NDArray[np.int64]
    ) -> None:
        known = np.isfinite(excess)
        clipped = np.where(known, np.clip(likely, -_CLIP, _CLIP), self._usual)
        self._usual += (clipped - self._usual) / WINDOW
        if self._num_steps % _SPREAD_EVERY == 0:
            self.limits[:] = LIMIT_SHARE * self._level
            for group in np.unique(groups[known]):
                members = np.flatnonzero(known & (groups == group))
                usual = usual_difference(self._usual[members])
                self.limits[members] = max(LIMIT_SHARE * self._level, usual)
        self._recent[self._num_steps % WINDOW] = excess
        self._num_steps += 1
        self.state.observe(known & matters & (excess > self.limits))


PAST: Final = 1_000
SMOOTHED: Final = 20
"""Fewer than ``ON``, so that a single checkpoint makes no slow job."""
_RENEW_EVERY = 8  # steps


class Lasting:
    """Whether one quantity of a job stays above a limit."""

    def __init__(self) -> None:
        self._state = Persistence(1)

    def observe(self, is_above: bool) -> None:
        """Add one step."""
        self._state.observe(np.array([is_above]))

    @property
    def is_on(self) -> bool:
        """Whether it was above the limit in too many of the last steps."""
        return bool(self._state.is_on[0])


class JobSpeed:
    """Whether a job is slower than it was by ``level``, a share of the usual step time."""

    def __init__(self, level: float) -> None:
        self.state = Lasting()  # In how many steps it was slower.
        # Median of the steps before the last ``WINDOW``; None while there are too few.
        self.usual_ns: float | None = None
        self._level = level
        self._recent: deque[int] = deque(maxlen=WINDOW)
        self._past: deque[int] = deque(maxlen=PAST)
        self._smoothed: deque[int] = deque(maxlen=SMOOTHED)
        self._num_steps = 0

    @property
    def recent_ns(self) -> float:
        """Median of the last ``ON`` steps; NaN before the first."""
        return float(np.median(list(self._recent)[-ON:])) if self._recent else float("nan")

    def observe(self, step_ns: int, *, has_gpus: bool = False) -> None:
        """Add the duration of one step on the CPU, which may run ahead if there are GPUs."""
        if has_gpus:
            self._smoothed.append(step_ns)
            step_ns = sum(self._smoothed) // len(self._smoothed)
        if len(self._recent) == WINDOW:
            self._past.append(self._recent[0])
        self._recent.append(step_ns)
        if len(self._past) >= WINDOW and self._num_steps % _RENEW_EVERY == 0:
            self.usual_ns = float(np.median(self._past))
        self._num_steps += 1
        limit = None if self.usual_ns is None else (1 + LIMIT_SHARE * self._level) * self.usual_ns
        self.state.observe(limit is not None and step_ns > limit)


CAPACITY: Final = 128
"""Number of steps that are kept; ranks that are further behind count as silent.

As many steps at most wait for the collectives of all ranks."""
PATIENCE_NS: Final = 5 * NS_PER_S
"""A step is complete when all living ranks have reported it, or most are this far past it."""

FIELDS: Final = ("step_ns", "cpu_ns", "queue_ns", "asleep_ns", "input_ns", "tokens", "gpu_behind")

INPUT: Final = "input"
_MOST_NS = 1 << 62
_MOST_STEPS = 1 << 53
_MOST_AHEAD = 100_000  # steps: a rank that claims to be further ahead is wrong


class StepTable:
    """A ring buffer of steps, with a column per rank."""

    def __init__(self) -> None:
        self.ranks: list[int] = []  # Global rank of each column.
        # Last step that each column has reported; -1 before the first.
        self.last_step: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        # End of that step on the rank's own clock, ns since the epoch; 0 before the first.
        self.ended_ns: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        # The last steps that were returned as complete.
        self.done: deque[int] = deque(maxlen=WINDOW)
        self._column_of: dict[int, int] = {}
        self._values = {name: np.empty((CAPACITY, 0), dtype=np.float32) for name in FIELDS}
        self._numbers = np.full(CAPACITY, -1, dtype=np.int64)
        self._first_end_ns = np.zeros(CAPACITY, dtype=np.int64)
        self._is_traced = np.zeros(CAPACITY, dtype=np.bool_)
        self._next = 0

    def know(self, ranks: Sequence[int]) -> None:
        """Add columns for new ranks."""
        new = [rank for rank in ranks if rank not in self._column_of]
        if not new:
            return
        self._column_of |= {rank: len(self.ranks) + i for i, rank in enumerate(new)}
        self.ranks += new
        self.last_step = np.append(self.last_step, np.full(len(new), -1))
        self.ended_ns = np.append(self.ended_ns, np.zeros(len(new), dtype=np.int64))
        for name, values in self._values.items():
            self._values[name] = np.pad(values, ((0, 0), (0, len(new))), constant_values=np.nan)

    def column(self, rank: int) -> int:
        """The column of a rank."""
        return self._column_of[rank]

    def add(self, rank: int, record: StepRecord) -> None:
        """Add one step of a rank; steps older than the ring are ignored."""
        column, slot = self.column(rank), record.step % CAPACITY
        duration = record.end_ns - record.start_ns
        most = self._next + _MOST_AHEAD if self._next else _MOST_STEPS
        is_sane = 0 <= record.step < most and 0 < duration <= record.end_ns < _MOST_NS
        if not is_sane or record.step < self._numbers[slot]:
            return
        if record.step > self._numbers[slot]:
            for values in self._values.values():
                values[slot] = np.nan
            self._numbers[slot], self._first_end_ns[slot] = record.step, record.end_ns
            self._is_traced[slot] = False
        self.last_step[column] = max(self.last_step[column], record.step)
        self.ended_ns[column] = record.end_ns
        self._is_traced[slot] |= record.is_traced
        row = {
            "step_ns": duration,
            "cpu_ns": record.cpu_ns,
            "queue_ns": record.run_queue_ns,
            "asleep_ns": record.input_asleep_ns or 0,
            "input_ns": sum(p.end_ns - p.start_ns for p in record.phases if p.name == INPUT),
            "tokens": record.tokens,
            "gpu_behind": None if record.gpu_behind is None else int(record.gpu_behind),
        }
        for name, value in row.items():
            if value is not None:
                self._values[name][slot, column] = min(max(value, 0), _MOST_NS)

    def add_input(self, rank: int, step: int, waited_ns: int) -> None:
        """Add a wait for input that is not part of a phase of that step."""
        slot = step % CAPACITY
        if self._numbers[slot] == step and waited_ns > 0:
            self._values["input_ns"][slot, self.column(rank)] += min(waited_ns, _MOST_NS)

    @property
    def usual_end_ns(self) -> int:
        """Median end of the ranks' last steps, ns since the epoch; 0 if there are none."""
        known = self.ended_ns[self.ended_ns > 0]
        return int(np.median(known)) if known.size else 0

    def complete(self, living: NDArray[np.bool_]) -> Iterator[int]:
        """Steps that have become complete, in ascending order, each once."""
        newest, reached_ns = self._newest(int(living.sum())), self.usual_end_ns
        for step in range(max(self._next, newest - CAPACITY + 1), newest + 1):
            slot = step % CAPACITY
            if self._numbers[slot] == step:
                reported = np.isfinite(self._values["step_ns"][slot])
                is_late = reached_ns - self._first_end_ns[slot] > PATIENCE_NS
                if not is_late and not bool((reported | ~living).all()):
                    return
                if 2 * reported.sum() >= living.sum():
                    self.done.append(step)
                    yield step
            self._next = step + 1

    def _newest(self, num_living: int) -> int:
        """Newest step that half of the ranks have reported, or -1: a single rank may be wrong."""
        reported = np.isfinite(self._values["step_ns"]).sum(axis=1)
        known = self._numbers[2 * reported >= max(num_living, 1)]
        return int(known.max(initial=-1))

    def is_traced(self, step: int) -> bool:
        """Whether torch.profiler recorded the step on any rank; False if it is no longer kept."""
        slot = step % CAPACITY
        return bool(self._numbers[slot] == step and self._is_traced[slot])

    def of(self, name: str, steps: Sequence[int]) -> NDArray[np.float64]:
        """One of ``FIELDS`` in these steps, shape (steps, ranks); NaN if unknown."""
        slots = [step % CAPACITY for step in steps]
        return self._values[name][slots].astype(np.float64)

    def own(self, steps: Sequence[int]) -> NDArray[np.float64]:
        """Own time, ns: running on a CPU, waiting for one, or asleep for input; NaN if unknown."""
        cpu, queue = self.of("cpu_ns", steps), self.of("queue_ns", steps)
        return cpu + queue + self.of("asleep_ns", steps)


class WaitTable:
    """Collectives of the steps that not all ranks have reported yet."""

    def __init__(self) -> None:
        self.ranks: set[int] = set()  # Ranks that have reported any step.
        self._steps: dict[int, dict[int, tuple[GroupTimes, ...]]] = {}
        self._last: dict[int, int] = {}
        self._next = 0

    def add(self, rank: int, record: CollectivesRecord) -> None:
        """Add a step of a rank; steps that were already returned are ignored."""
        if not 0 <= record.step < (self._next + _MOST_AHEAD if self._next else _MOST_STEPS):
            return
        self.ranks.add(rank)
        self._last[rank] = max(self._last.get(rank, -1), record.step)
        if record.step >= self._next:
            self._steps.setdefault(record.step, {})[rank] = bounded_groups(record)

    def complete(self, living: set[int]) -> Iterator[tuple[int, dict[int, tuple[GroupTimes, ...]]]]:
        """Steps that have become complete, in ascending order, each once."""
        waiting = [self._last[rank] for rank in self.ranks & living]
        reported = min(waiting, default=max(self._last.values(), default=-1))
        for step in sorted(self._steps):
            if step > reported and len(self._steps) <= CAPACITY:
                return
            self._next = step + 1
            yield step, self._steps.pop(step)
