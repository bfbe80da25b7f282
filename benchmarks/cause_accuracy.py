"""Does distprof find the cause? Simulated jobs of every parallelism, with one fault or none.

::

    python -m benchmarks.cause_accuracy --first 10000 --seeds 20

Jobs run on 4 to 64 ranks; nodes' clocks are off by up to 10 ms and drift, kernel times vary, and
captures start at different collectives. Each job goes through matching, clock alignment, every
analyzer and every rule. What a fault costs is known: the same job is simulated without it. Seeds
below 1,000 are for tuning, those from 10,000 on for judging.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.simulator.trials import FAULTS, Outcome, healthy, judge, trial_of


@dataclass(kw_only=True)
class Score:
    """Counts for one kind of job."""

    trials: int = 0
    right: int = 0
    near: int = 0
    judged: int = 0
    wrong: list[int] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)

    def add(self, seed: int, outcome: Outcome) -> None:
        """Count one job."""
        self.trials += 1
        self.right += outcome.is_right
        self.wrong += [] if outcome.is_right else [seed]
        if outcome.is_right and outcome.cost_error is not None:
            self.errors.append(outcome.cost_error)


def lines_of(outcome: Outcome) -> Iterator[str]:
    """The findings of a job, for people."""
    job = outcome.trial.job
    yield (
        f"    world {job.world_size} noise {job.compute_noise} faults {job.faults} costs "
        f"{outcome.true_ns / outcome.step_ns:.1%} of {outcome.step_ns / 1e6:.1f} ms; "
        f"must say {outcome.trial.says} of {sorted(outcome.trial.ranks)[:8]}"
    )
    for found in outcome.accusations:
        yield (
            f"      {found.code} {found.ranks} {found.message} "
            f"cost {found.cost_ns_per_step} recovers {found.recoverable_ns}"
        )


def main() -> None:
    """Print one line per kind of job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seeds", type=int, default=10, help="jobs of each kind")
    parser.add_argument("--healthy", type=int, default=None, help="healthy jobs, as many as faulty")
    parser.add_argument("--only", default="", help="kinds of job, by commas")
    parser.add_argument("--verbose", action="store_true", help="show what was said wrongly")
    options = parser.parse_args()
    only = options.only.split(",") if options.only else []
    faulty, sound = Score(), Score()
    for build in (*FAULTS, healthy):
        if only and build.__name__ not in only:
            continue
        number = options.seeds
        if build is healthy:
            number = options.seeds * len(FAULTS) if options.healthy is None else options.healthy
        score, started = Score(), time.perf_counter()
        for seed in range(options.first, options.first + number):
            outcome = judge(trial_of(build, seed))
            for each in (score, sound if build is healthy else faulty):
                each.add(seed, outcome)
            far = outcome.cost_error is not None and abs(outcome.cost_error) > 0.1
            if options.verbose and (not outcome.is_right or far):
                print(f"  {build.__name__} {seed} {outcome.cost_error}")
                print("\n".join(lines_of(outcome)))
        print(line_of(build.__name__, score, time.perf_counter() - started), flush=True)
    print(line_of("all faulty", faulty, 0.0))


def line_of(name: str, score: Score, took_s: float) -> str:
    """One row."""
    errors = sorted(abs(error) for error in score.errors)
    near = sum(error <= 0.1 for error in errors)
    median = f"{errors[len(errors) // 2]:.1%}" if errors else "-"
    return (
        f"{name:<15} right {score.right}/{score.trials}  cost within 10 % {near}/{len(errors)} "
        f"median error {median}  {took_s:.1f} s  wrong {score.wrong[:12]}"
    )


if __name__ == "__main__":
    main()
