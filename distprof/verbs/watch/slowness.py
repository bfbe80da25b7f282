"""The two rules that decide what is slow: a rank against its peers, and a job against itself.

In each step, a rank's own time is compared with the median of its peers, which are all other ranks
of its pipeline stage. A slowdown that affects all ranks at once cancels. A rank becomes slow when
this excess is above a limit in at least ``ON`` of the last ``WINDOW`` steps, and stops being slow
when it is above the limit in at most ``OFF`` of them. Single long steps, such as those with a
garbage collection, a checkpoint or a heavy-tailed delay, do not count.

If steps were independent and a healthy rank exceeded the limit with probability p, a window would
alarm with probability P(Binomial(WINDOW, p) >= ON), which is below 1e-17 for p = 5 %. The remaining
cause of false alarms is a rank that drifts for a whole window. The limit is therefore at least
six times the usual spread among peers, if there are enough peers to estimate it.

A step of the job counts if it exceeds the job's usual step time, the median of its earlier steps,
by more than a limit. The job is slow if ``ON`` of the last ``WINDOW`` steps count. If it stays slow
for half of ``PAST`` steps, the slow step time becomes the usual one and the alarm ends.

Steps are measured on the CPU. The CPU of a GPU rank runs ahead and waits for its GPU only now and
then, so most of its steps are too short and a few too long. On GPU ranks, the mean of the last
``SMOOTHED`` steps takes the place of each step.

``benchmarks/watch_alarms.py`` simulates the error rates of both rules.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from distprof.join.gpu_waits import (
    Lateness,
    excess_of_peers,
    likely_excess,
    usual_difference,
)
from distprof.schema import Floats

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


class SlowRanks:
    """Which ranks are slow, updated step by step.

    ``level`` is the excess to report, a share of the peers' own time.
    """

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
        recent = self._recent[:, columns]
        found: Floats = np.full(len(columns), np.nan)
        known = np.isfinite(recent).any(axis=0)
        found[known] = np.nanmedian(recent[:, known], axis=0)
        return found

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
        self,
        excess: Floats,
        likely: Floats,
        matters: NDArray[np.bool_],
        groups: NDArray[np.int64],
    ) -> None:
        known = np.isfinite(excess)
        clipped = np.where(known, np.clip(likely, -_CLIP, _CLIP), self._usual)
        self._usual += (clipped - self._usual) / WINDOW
        if self._num_steps % _SPREAD_EVERY == 0:
            self._renew_limits(groups, known)
        self._recent[self._num_steps % WINDOW] = excess
        self._num_steps += 1
        self.state.observe(known & matters & (excess > self.limits))

    def _renew_limits(self, groups: NDArray[np.int64], known: NDArray[np.bool_]) -> None:
        self.limits[:] = LIMIT_SHARE * self._level
        for group in np.unique(groups[known]):
            members = np.flatnonzero(known & (groups == group))
            usual = usual_difference(self._usual[members])
            self.limits[members] = max(LIMIT_SHARE * self._level, usual)


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
    def count(self) -> int:
        """In how many of the last steps it was above the limit."""
        return int(self._state.counts[0])

    @property
    def is_on(self) -> bool:
        """Whether these are too many."""
        return bool(self._state.is_on[0])


class JobSpeed:
    """Whether a job is slower than it was.

    ``level`` is the excess to report, a share of the usual step time.
    """

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
