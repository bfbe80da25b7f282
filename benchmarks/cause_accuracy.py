"""Does distprof find the cause? Simulated jobs of every parallelism, with faults or none.

::

    python -m benchmarks.cause_accuracy --first 10000 --seeds 20
    python -m benchmarks.cause_accuracy --only two_faults,sane --workloads ddp,1f1b --verbose

Nodes' clocks are off by up to 10 ms and drift, kernel times vary, and captures start and end at
different collectives. Each job goes through matching, clock alignment, every analyzer and every
rule. The true cost of a fault is known, because the same job is simulated without it. A row per
workload and fault counts the jobs in which the right ranks (and no others) are named, with the
right cause, as the first finding of the report, and with a cost within 10 % of the truth. It also
counts the jobs whose plan, with all faults fixed one after another, is within 10 % of their true
cost. Jobs with one plain fault (workload "any") run on 4 to 64 ranks, the others on 4 to 16. Seeds
below 1,000 are for tuning, those from 10,000 on for judging.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial

from tests.simulator.hard_trials import BLAMELESS, HARD_FAULTS, WORKLOADS, hard_trial_of
from tests.simulator.trials import FAULTS, Outcome, Trial, healthy, judge, trial_of

ANY = "any"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A fault in a workload.

    Args:
        fault: Name of the fault.
        workload: Name of the workload; ``any`` if each job draws one.
        make: Returns a trial for a seed.
        is_faulty: False for healthy jobs.
    """

    fault: str
    workload: str
    make: Callable[[int], Trial]
    is_faulty: bool = True


def kinds() -> Iterator[Kind]:
    """All rows of the table, healthy jobs last."""
    for build in FAULTS:
        yield Kind(fault=build.__name__, workload=ANY, make=partial(trial_of, build))
    for hard, workloads in (
        *HARD_FAULTS.items(),
        *((build, tuple(WORKLOADS)) for build in BLAMELESS),
    ):
        for name in workloads:
            yield Kind(
                fault=hard.__name__,
                workload=name,
                make=partial(hard_trial_of, hard, name),
                is_faulty=hard not in BLAMELESS,
            )
    yield Kind(
        fault="healthy", workload=ANY, make=lambda seed: trial_of(healthy, seed), is_faulty=False
    )


@dataclass(kw_only=True)
class Score:
    """Counts for one kind of job, or several."""

    trials: int = 0
    ranks: int = 0
    causes: int = 0
    first: int = 0
    near: int = 0
    priced: int = 0
    planned: int = 0
    plans: int = 0
    blamed: int = 0
    wrong: list[int] = field(default_factory=list)

    def add(self, seed: int, outcome: Outcome) -> None:
        """Count one job."""
        self.trials += 1
        self.ranks += outcome.names_right
        self.causes += outcome.causes_right
        self.first += outcome.is_first
        self.priced += len(outcome.cost_errors)
        self.near += sum(abs(error) <= NEAR for error in outcome.cost_errors)
        if outcome.plan_error is not None:
            self.plans += 1
            self.planned += abs(outcome.plan_error) <= NEAR
        self.blamed += bool(outcome.accusations)
        self.wrong += [] if outcome.causes_right else [seed]


NEAR = 0.1


def lines_of(outcome: Outcome) -> Iterator[str]:
    """The findings of a job, as text."""
    job = outcome.trial.job
    yield (
        f"    world {job.world_size} noise {job.compute_noise} spread {job.device_spread} "
        f"ahead {not job.synchronise} {job.queue_depth} steps {job.steps} faults {job.faults} "
        f"of {outcome.step_ns / 1e6:.1f} ms"
    )
    for truth, ns in zip(outcome.trial.truths, outcome.true_ns, strict=True):
        yield (
            f"    must say {truth.says} of {sorted(truth.ranks)[:16]}: costs "
            f"{ns:.0f} ({ns / outcome.step_ns:.1%})"
        )
    for number, found in enumerate(outcome.findings):
        if found in outcome.accusations or number == 0:
            yield (
                f"      {number} {found.code} {found.ranks} {found.message} "
                f"cost {found.cost_ns_per_step} recovers {found.recoverable_ns}"
            )


def main() -> None:
    """Print one line per kind of job."""
    options = _options()
    scores = {True: Score(), False: Score()}
    print(
        f"{'fault':<17} {'workload':<9} ranks  cause  first  price within 10 %  plan   blames"
        "  seconds"
    )
    for kind in kinds():
        if not _is_wanted(kind.fault, options.only) or not _is_wanted(
            kind.workload, options.workloads
        ):
            continue
        number = options.seeds if kind.is_faulty else options.healthy or 2 * options.seeds
        score, started = Score(), time.perf_counter()
        for seed in range(options.first, options.first + number):
            outcome = judge(kind.make(seed))
            for each in (score, scores[kind.is_faulty]):
                each.add(seed, outcome)
            if options.verbose and _is_wrong(outcome):
                print(f"  {kind.fault} {kind.workload} {seed} {outcome.cost_errors}")
                print("\n".join(lines_of(outcome)))
        print(_line_of(kind.fault, kind.workload, score, time.perf_counter() - started), flush=True)
    print(_line_of("all faulty", "", scores[True], 0.0))
    print(_line_of("all healthy", "", scores[False], 0.0))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seeds", type=int, default=5, help="jobs of each kind")
    parser.add_argument("--healthy", type=int, default=0, help="healthy jobs, else twice as many")
    parser.add_argument("--only", default="", help="faults, by commas")
    parser.add_argument("--workloads", default="", help="workloads, by commas")
    parser.add_argument("--verbose", action="store_true", help="show the findings of wrong jobs")
    return parser.parse_args()


def _is_wanted(name: str, named: str) -> bool:
    chosen: Collection[str] = named.split(",")
    return not named or name in chosen


def _is_wrong(outcome: Outcome) -> bool:
    if not outcome.trial.is_faulty:
        return bool(outcome.accusations)
    return not outcome.causes_right or any(abs(error) > NEAR for error in outcome.cost_errors)


def _line_of(fault: str, workload: str, score: Score, took_s: float) -> str:
    """One row."""
    number = score.trials
    return (
        f"{fault:<17} {workload:<9} {score.ranks:>2}/{number:<3} {score.causes:>2}/{number:<3} "
        f"{score.first:>2}/{number:<3} {score.near:>3}/{score.priced:<13} "
        f"{score.planned:>2}/{score.plans:<4} "
        f"{score.blamed:>2}/{number:<4} {took_s:>6.1f}  {score.wrong[:12]}"
    )


if __name__ == "__main__":
    main()
