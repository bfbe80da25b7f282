"""How often ``distprof watch`` raises a false alarm, and how soon it reports a straggler.

::

    python benchmarks/watch_alarms.py
    python benchmarks/watch_alarms.py --weeks 4 --seed 100 --trials 2000
    python benchmarks/watch_alarms.py --buckets 4

Healthy training at 1,024 ranks and one step per second is simulated week after week, and the rules
of ``distprof/verbs/watch`` decide. Healthy training includes ranks that differ by 1 % permanently,
drift by 0.7 % for minutes, and vary by 2 % from step to step with heavy tails (Student's t, 4
degrees of freedom), garbage collections of single ranks, nodes that are disturbed for up to 15
steps once a day, steps that are slow for all ranks, and a checkpoint every 500 steps, which takes
rank 0 longest. A straggler is then one rank whose own time is 10 % above that of its peers, with
the same noise. The limit is less than one false alarm in a week, and a straggler reported within 50
steps.

With ``--buckets`` ranks work on GPUs, and the rules see only the times of their collectives:
gradients are reduced in this number of parts during the last two thirds of a rank's work.

No training runs here, and no clock is read: the figures depend only on the seed.
"""

from __future__ import annotations

import argparse
import time
from collections import deque

import numpy as np
from measuring import print_table

from distprof.join.gpu_waits import Rests, StepWaits, arrivals, lateness_of, mean_without_longest
from distprof.verbs.watch import WINDOW, JobSpeed, SlowRanks

RANKS = 1_024
PER_NODE = 8
STEPS_PER_WEEK = 7 * 24 * 3600
STEPS_PER_DAY = 24 * 3600
MEMORY = 300  # steps over which drifts are correlated
OWN_MS = 800.0
OTHER_MS = 200.0
BLOCK = 1_000


class Training:
    """Own times of healthy ranks, step after step.

    Args:
        seed: Of the random numbers.
        noise: Standard deviation from step to step.
        drift: Standard deviation of slow drifts of single ranks.
        straggler: Excess of rank 7 over its peers from the start; None for no straggler.
    """

    def __init__(
        self, seed: int, *, noise: float = 0.02, drift: float = 0.007, straggler: float = 0.0
    ) -> None:
        self._random = np.random.default_rng(seed)
        self._noise, self._drift_size = noise, drift
        self._lasting = 0.01 * self._random.standard_normal(RANKS)
        if straggler:
            self._lasting[7] = straggler
        self._drift = drift * self._random.standard_normal(RANKS)
        self._common = 0.02 * self._random.standard_normal()
        self._disturbed_until = np.zeros(RANKS // PER_NODE, dtype=np.int64)
        self._step = 0

    def block(self, steps: int) -> np.ndarray:
        """Own times in ms, shape (steps, ranks)."""
        random = self._random
        varied = self._noise / np.sqrt(2) * random.standard_t(4, (steps, RANKS))
        own = OWN_MS * (1 + self._lasting + varied)
        for row in own:
            self._one_step(row)
        collections = random.random((steps, RANKS)) < 1 / 200
        own[collections] *= random.uniform(1.2, 1.6, int(collections.sum()))
        own_ms: np.ndarray = np.maximum(own, 1.0)
        return own_ms

    def _one_step(self, own: np.ndarray) -> None:
        random, keep = self._random, np.exp(-1 / MEMORY)
        renew = np.sqrt(1 - keep**2)
        if self._step % 10 == 0:  # drifts are slow: a tenth of the numbers gives the same process
            keep10, renew10 = keep**10, np.sqrt(1 - keep**20)
            self._drift = keep10 * self._drift + renew10 * self._drift_size * (
                random.standard_normal(RANKS)
            )
        self._common = keep * self._common + renew * 0.02 * random.standard_normal()
        own *= (1 + self._drift) * (1 + self._common) * np.exp(0.05 * random.standard_normal())
        if random.random() < 1 / 300:
            own *= random.uniform(1.5, 4)
        self._disturb(own)
        if self._step % 500 == 499:
            own += 2_000
            own[0] += 6_000
        self._step += 1

    def _disturb(self, own: np.ndarray) -> None:
        random = self._random
        struck = random.random() < len(self._disturbed_until) / STEPS_PER_DAY
        if struck:
            node = random.integers(len(self._disturbed_until))
            self._disturbed_until[node] = self._step + random.integers(3, 16)
        if self._disturbed_until.max() > self._step:
            nodes = np.repeat(self._disturbed_until > self._step, PER_NODE)
            own[nodes] *= 1.3


class Seen:
    """Own times as seen by the watcher: exactly, or from the collectives of GPUs.

    Args:
        buckets: Parts in which gradients are reduced; 0 on CPU ranks.
    """

    def __init__(self, buckets: int) -> None:
        self._shares = np.linspace(1 / 3, 1, buckets + 1)[1:]
        self._slow = SlowRanks(0.10, RANKS)
        self._groups = np.zeros(RANKS, dtype=np.int64)
        self._steps_ms: deque[float] = deque(maxlen=WINDOW)
        self._rests = Rests(WINDOW)

    @property
    def is_slow(self) -> np.ndarray:
        """Flags of the slow ranks."""
        return self._slow.state.is_on

    def observe(self, own: np.ndarray) -> None:
        """Take a step."""
        if not len(self._shares):
            self._slow.observe(own, own.max() + OTHER_MS, self._groups)
            return
        waits: list[np.ndarray] = []
        free_ms = 0.0
        takes_ms = OTHER_MS / len(self._shares)
        for share in self._shares:
            started = np.maximum(share * own, free_ms)
            waits.append(started.max() - started)
            free_ms = started.max() + takes_ms
        self._steps_ms.append(free_ms)
        step_ms = float(mean_without_longest(np.array(self._steps_ms)))
        single = np.array(waits).T
        late = arrivals(single, single)
        took = single + takes_ms
        shares = late / self._rests.peers_until("world", took, took, step_ms)
        longest, latest, share = (each.max(axis=1) for each in (single, late, shares))
        found = StepWaits(0, longest, single.sum(axis=1), latest, share)
        bounds = lateness_of(found, step_ms, self._groups)
        self._slow.observe_bounds(bounds, step_ms, self._groups)


def alarms_of(seed: int, steps: int, buckets: int) -> tuple[int, int]:
    """False alarms of a healthy job: on single ranks, and on the job's speed."""
    training, seen, speed = Training(seed), Seen(buckets), JobSpeed(0.20)
    before, was_slow = np.zeros(RANKS, dtype=bool), False
    of_ranks = of_job = 0
    for _ in range(0, steps, BLOCK):
        for own in training.block(BLOCK):
            step_ms = own.max() + OTHER_MS
            seen.observe(own)
            of_ranks += int((seen.is_slow & ~before).sum())
            before = seen.is_slow
            speed.observe(int(step_ms * 1e6))
            of_job += speed.state.is_on and not was_slow
            was_slow = speed.state.is_on
    return of_ranks, of_job


def delay_of(seed: int, *, excess: float, noise: float, drift: float, buckets: int) -> int | None:
    """Steps from the first slow one to the alarm; None if there is none within 200."""
    healthy = Training(seed, noise=noise, drift=drift)
    seen = Seen(buckets)
    for own in healthy.block(100):
        seen.observe(own)
    struck = Training(seed + 1, noise=noise, drift=drift, straggler=excess)
    for number, own in enumerate(struck.block(200), 1):
        seen.observe(own)
        if seen.is_slow[7]:
            return number
    return None


def upper_bound(count: int) -> float:
    """Largest mean of a Poisson variable that yields at most ``count`` with 5 % probability."""
    low, high = 0.0, 10.0 + 5 * count
    for _ in range(60):
        mean = (low + high) / 2
        terms = np.cumsum(np.log(np.maximum(np.arange(count + 1), 1)))
        at_most = np.exp(-mean + np.arange(count + 1) * np.log(mean) - terms).sum()
        low, high = (mean, high) if at_most > 0.05 else (low, mean)
    return high


def main() -> None:
    """Simulate healthy weeks, then stragglers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weeks", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--buckets", type=int, default=0)
    options = parser.parse_args()
    steps = int(options.weeks * STEPS_PER_WEEK)
    began = time.process_time()
    of_ranks, of_job = alarms_of(options.seed, steps, options.buckets)
    print(f"{steps:,} steps of {RANKS:,} healthy ranks, seed {options.seed}")
    rows = [
        (kind, str(count), f"{upper_bound(count) / options.weeks:.2f}")
        for kind, count in (("slow-rank=10%", of_ranks), ("slow-job=20%", of_job))
    ]
    print_table(("alert", "false alarms", "at most per week, 95 %"), rows)
    print_table(
        ("straggler", "noise", "drift", "within 50 steps", "median steps", "99 %"),
        [
            _delays(options, excess, noise, drift)
            for excess in (0.10, 0.15, 0.30)
            for noise, drift in ((0.02, 0.007), (0.04, 0.007), (0.02, 0.015))
        ],
    )
    print(f"{time.process_time() - began:.0f} s of CPU time")


def _delays(
    options: argparse.Namespace, excess: float, noise: float, drift: float
) -> tuple[str, ...]:
    seeds = range(options.seed + 1_000_000, options.seed + 1_000_000 + 2 * options.trials, 2)
    delays = [
        delay_of(seed, excess=excess, noise=noise, drift=drift, buckets=options.buckets)
        for seed in seeds
    ]
    told = np.array([np.inf if delay is None else delay for delay in delays])
    within = float((told <= 50).mean())
    quantile = np.quantile(told, 0.99, method="higher")
    return (
        f"{excess:.0%}",
        f"{noise:.0%}",
        f"{drift:.1%}",
        f"{within:.1%}",
        f"{np.median(told):g}",
        f"{quantile:g}",
    )


if __name__ == "__main__":
    main()
