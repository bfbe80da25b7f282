"""The law by which a job is called slower than its own past.

A step counts if it takes longer than usual by more than a limit; usual is the median of the job's
own earlier steps. What lasts for ``ON`` of ``WINDOW`` steps is reported. A job that stays slow
becomes the new usual after half of ``PAST`` steps, and the alarm ends.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np

from distprof.verbs.watch.lateness import LIMIT_SHARE, WINDOW, Persistence

__all__ = ["PAST", "JobSpeed", "Lasting"]

PAST: Final = 1_000

_RENEW_EVERY = 8  # steps


class Lasting:
    """One quantity of a job that lasts above a limit.

    Attributes:
        count: In how many of the last steps it was above.
        is_on: Whether that is too many.
    """

    def __init__(self) -> None:
        self._state = Persistence(1)

    def observe(self, is_above: bool) -> None:
        """Take one step."""
        self._state.observe(np.array([is_above]))

    @property
    def count(self) -> int:
        """In how many of the last steps it was above."""
        return int(self._state.counts[0])

    @property
    def is_on(self) -> bool:
        """Whether that is too many."""
        return bool(self._state.is_on[0])


class JobSpeed:
    """Whether a job is slower than it was.

    Args:
        level: Of the usual step time, to be told about.

    Attributes:
        state: In how many steps it was slower.
        usual_ns: Median of the steps before the last ``WINDOW``; None while there are too few.
    """

    def __init__(self, level: float) -> None:
        self.state = Lasting()
        self.usual_ns: float | None = None
        self._level = level
        self._recent: deque[int] = deque(maxlen=WINDOW)
        self._past: deque[int] = deque(maxlen=PAST)
        self._num_steps = 0

    def observe(self, step_ns: int) -> None:
        """Take one step: how long it took."""
        if len(self._recent) == WINDOW:
            self._past.append(self._recent[0])
        self._recent.append(step_ns)
        if len(self._past) >= WINDOW and self._num_steps % _RENEW_EVERY == 0:
            self.usual_ns = float(np.median(self._past))
        self._num_steps += 1
        limit = None if self.usual_ns is None else (1 + LIMIT_SHARE * self._level) * self.usual_ns
        self.state.observe(limit is not None and step_ns > limit)
