"""Runs that vary as runs do, with a change that is known.

A repeat is one run of a program of which the median step is kept. Its logarithm is the truth plus

- drift: slow and shared by runs at about the same time (temperature, clocks, neighbours, placement
  of a session): a stationary process with correlation exp(-1/60) from one run to the next, which
  starts anew in each session;
- the run's own: placement of memory, order of threads, hash seeds; independent from run to run;
- outliers: three runs in a hundred are longer by 15 % in the mean, exponentially.

``noise`` is the standard deviation of drift and own part together; ``own`` the own part's share of
its variance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distprof.verbs.gate import ALPHA, EARLY_ALPHA, Decision, decide, mann_whitney

Floats = NDArray[np.float64]
DRIFT_RUNS = 60
OUTLIER_RATIO, OUTLIER_SIZE = 0.03, 0.15


@dataclass(frozen=True, kw_only=True)
class Noise:
    """How runs vary."""

    noise: float = 0.05
    own: float = 0.1
    outliers: bool = True

    def session(self, count: int, random: np.random.Generator) -> Floats:
        """Logarithms of ``count`` runs in a row."""
        keep = np.exp(-1 / DRIFT_RUNS)
        kicks = random.standard_normal(count)
        drift = np.empty(count)
        drift[0] = kicks[0]
        for i in range(1, count):
            drift[i] = keep * drift[i - 1] + np.sqrt(1 - keep**2) * kicks[i]
        drift *= self.noise * np.sqrt(1 - self.own)
        own = self.noise * np.sqrt(self.own) * random.standard_normal(count)
        struck = random.random(count) < OUTLIER_RATIO * self.outliers
        return drift + own + struck * random.exponential(OUTLIER_SIZE, count)

    def pairs(self, count: int, loss: float, random: np.random.Generator) -> tuple[Floats, Floats]:
        """Times of baseline and candidate side by side, in turns A B B A A B B A."""
        runs = self.session(2 * count, random)
        index = np.arange(count)
        first = 2 * index + index % 2
        second = 2 * index + 1 - index % 2
        return np.exp(runs[first]), (1 + loss) * np.exp(runs[second])

    def apart(
        self, sessions: int, count: int, loss: float, random: np.random.Generator
    ) -> tuple[Floats, Floats]:
        """A baseline of sessions with ``count`` runs each, and a candidate's session."""
        stored = np.concatenate([self.session(count, random) for _ in range(sessions)])
        return np.exp(stored), (1 + loss) * np.exp(self.session(count, random))


def paired_gate(
    noise: Noise, loss: float, seed: int, *, tolerance: float = 0.01, pairs: int = 10
) -> Decision:
    """What the gate says of pairs, looking at eight already, which may only pass."""
    before, after = noise.pairs(pairs, loss, np.random.default_rng(seed))
    early = decide(before[:8], after[:8], tolerance=tolerance, is_paired=True)
    if early.state == "passed":
        return early
    return decide(before, after, tolerance=tolerance, is_paired=True)


def stored_gate(
    noise: Noise,
    loss: float,
    seed: int,
    *,
    tolerance: float = 0.02,
    sessions: int = 1,
    session_noise: float | None = None,
) -> Decision:
    """The gate's decision with a stored baseline of this many sessions of ten runs each."""
    before, after = noise.apart(sessions, 10, loss, np.random.default_rng(seed))
    labels = np.repeat(np.arange(sessions), 10).tolist()
    return decide(before, after, tolerance=tolerance, sessions=labels, session_noise=session_noise)


def looking_gate(
    noise: Noise,
    loss: float,
    seed: int,
    *,
    tolerance: float = 0.0,
    repeats: tuple[int, int] = (5, 16),
    early_alpha: float = EARLY_ALPHA,
) -> Decision:
    """What the gate says by a stored session of ten, sessions being alike, adding runs as it asks.

    Args:
        noise: Noise without drift, as sessions are assumed to be equal.
        loss: True loss.
        seed: Of the runs.
        tolerance: None is the hardest.
        repeats: Of the candidate at the first look, and at most.
        early_alpha: Level of all looks but the last.
    """
    before, after = noise.apart(1, max(10, repeats[1]), loss, np.random.default_rng(seed))
    count, most = repeats
    while True:
        look = decide(
            before[:10],
            after[:count],
            tolerance=tolerance,
            session_noise=0.0,
            can_repeat_baseline=False,
            alpha=early_alpha if count < most else ALPHA,
        )
        if count == most or not look.needed_repeats:
            return look
        count = min(count + look.needed_repeats, most)


def single_point(noise: Noise, loss: float, seed: int) -> bool:
    """Whether one run is more than 10 % slower than one run of before."""
    before, after = noise.apart(1, 1, loss, np.random.default_rng(seed))
    return bool(after[0] > 1.1 * before[0])


def asv_rule(noise: Noise, loss: float, seed: int, *, factor: float = 1.1) -> bool:
    """``asv continuous``: median beyond the factor, and different by its test; ten runs, in turns.

    asv 0.6, ``asv/commands/compare.py`` (factor 1.1 by default) and ``asv/statistics.py:
    is_different`` (two-sided Mann-Whitney below 0.002).
    """
    before, after = noise.pairs(10, loss, np.random.default_rng(seed))
    p = 2 * min(mann_whitney(before, after), mann_whitney(after, before))
    return bool(p < 0.002 and np.median(after) > factor * np.median(before))
