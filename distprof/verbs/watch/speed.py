"""The rule that calls a job slower than it was.

A step counts if it exceeds the job's usual step time, the median of its earlier steps, by more than
a limit. The job is slow if ``ON`` of the last ``WINDOW`` steps count. If it stays slow for half of
``PAST`` steps, the slow step time becomes the usual one and the alarm ends.

Steps are measured on the CPU. The CPU of a GPU rank runs ahead and waits for its GPU only now and
then, so most of its steps are too short and a few too long. On GPU ranks, the mean of the last
``SMOOTHED`` steps takes the place of each step.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np

from distprof.verbs.watch.lateness import LIMIT_SHARE, ON, WINDOW, Persistence

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
