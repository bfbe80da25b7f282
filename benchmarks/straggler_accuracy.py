"""Does distprof name the right rank, and none in a healthy job? Simulated jobs with known truth.

::

    python -m benchmarks.straggler_accuracy --seeds 200

Each job goes through matching, clock alignment, measurement and straggler analysis. Nodes' clocks
are off by up to 10 ms and drift by 20 ppm against each other, and captures start up to ten
collectives apart. The output shows how often the analysis was right, for each kind of job.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from distprof.ingest.assemble import assemble_run
from distprof.sections.measure_run import measure_run
from distprof.sections.stragglers import StragglersResult
from distprof.sections.stragglers.measure import analyze_stragglers
from distprof.sections.time.measure import analyze_step_time
from distprof.terms import StragglerCause, StragglerPattern
from tests.simulator import (
    Collective,
    Compute,
    LateHost,
    LateInput,
    MoreWork,
    SimulatedJob,
    SlowDevice,
    rotating,
)

MS = 1_000_000
SHAPES = ((1, 2), (2, 2), (2, 4), (4, 4), (4, 8))
PATTERN, CAUSE = StragglerPattern, StragglerCause


@dataclass(frozen=True)
class Case:
    """A job, and the expected result of the analysis. Without a rank, none is responsible."""

    job: SimulatedJob
    rank: int | None = None
    pattern: StragglerPattern = StragglerPattern.NONE
    cause: StragglerCause | None = None


def disturbed(seed: int, *, num_steps: int = 10, noise: float | None = None) -> SimulatedJob:
    """A healthy job, badly recorded."""
    dice = random.Random(seed)
    nodes, per_node = dice.choice(SHAPES)
    return SimulatedJob(
        num_nodes=nodes,
        ranks_per_node=per_node,
        num_steps=num_steps,
        seed=seed,
        compute_noise=dice.choice((0.005, 0.02, 0.05)) if noise is None else noise,
        clock_offset_ns=tuple(dice.randint(-10 * MS, 10 * MS) for _ in range(nodes)),
        clock_drift_ppm=tuple(dice.uniform(-10, 10) for _ in range(nodes)),
        capture_skip={rank: dice.randint(0, 10) for rank in range(nodes * per_node)},
    )


def healthy(seed: int) -> Case:
    """No rank is responsible."""
    return Case(disturbed(seed))


def slow(seed: int) -> Case:
    """A GPU is slower by 8 to 30 %."""
    job, rank = _with_rank(seed)
    factor = random.Random(seed + 1).uniform(1.08, 1.3)
    fault = SlowDevice(rank=rank, factor=factor)
    return Case(replace(job, faults=(fault,)), rank, PATTERN.PERSISTENT, CAUSE.SLOW_DEVICE)


def more_work(seed: int) -> Case:
    """A rank launches half as many kernels again."""
    job, rank = _with_rank(seed)
    fault = MoreWork(rank=rank, factor=1.5)
    return Case(replace(job, faults=(fault,)), rank, PATTERN.PERSISTENT, CAUSE.MORE_WORK)


def late_input(seed: int) -> Case:
    """A rank's data loader takes 3 ms longer."""
    job, rank = _with_rank(seed)
    fault = LateInput(rank=rank, ns=3 * MS)
    return Case(replace(job, faults=(fault,)), rank, PATTERN.PERSISTENT, CAUSE.LATE_INPUT)


def late_host(seed: int) -> Case:
    """A rank's CPU stalls for 3 ms in each step."""
    job, rank = _with_rank(seed)
    fault = LateHost(rank=rank, ns=3 * MS)
    return Case(replace(job, faults=(fault,)), rank, PATTERN.PERSISTENT, CAUSE.LATE_HOST)


def transient(seed: int) -> Case:
    """A rank stalls for 8 ms in one step of twelve."""
    job, rank = _with_rank(seed, num_steps=12, least=4)
    fault = LateHost(rank=rank, ns=8 * MS, steps=(18,))
    return Case(replace(job, faults=(fault,)), rank, PATTERN.TRANSIENT)


def rotates(seed: int) -> Case:
    """In each step a different rank is slower by 40 %."""
    job, _ = _with_rank(seed, num_steps=14, least=4)
    ranks = list(range(job.world_size))
    random.Random(seed).shuffle(ranks)
    return Case(replace(job, faults=rotating(ranks, 1.4, job.steps)), None, PATTERN.ROTATING)


def handed_on(seed: int) -> Case:
    """In a mesh of 4 x 4 a GPU is slower; its group then arrives late in all other groups."""
    dice = random.Random(seed)
    layer = (Compute(ns=MS), Collective(axis="tp", transfer_ns=MS // 10, bytes=1 << 20))
    job = replace(
        disturbed(seed, noise=0.02),
        num_nodes=4,
        ranks_per_node=4,
        clock_offset_ns=tuple(dice.randint(-10 * MS, 10 * MS) for _ in range(4)),
        clock_drift_ppm=tuple(dice.uniform(-10, 10) for _ in range(4)),
        capture_skip={rank: dice.randint(0, 10) for rank in range(16)},
        program=(*layer * 6, Collective(axis="dp", transfer_ns=2 * MS), Compute(ns=MS)),
        axes={
            "tp": tuple(tuple(range(4 * i, 4 * i + 4)) for i in range(4)),
            "dp": tuple(tuple(range(i, 16, 4)) for i in range(4)),
        },
    )
    rank = dice.randrange(16)
    fault = SlowDevice(rank=rank, factor=dice.uniform(1.08, 1.3))
    return Case(replace(job, faults=(fault,)), rank, PATTERN.PERSISTENT, CAUSE.SLOW_DEVICE)


def healthy_mesh(seed: int) -> Case:
    """The same mesh without a slow rank."""
    return Case(replace(handed_on(seed).job, faults=()))


CASES: tuple[Callable[[int], Case], ...] = (
    healthy,
    slow,
    more_work,
    late_input,
    late_host,
    transient,
    rotates,
    handed_on,
    healthy_mesh,
)


def analyse(job: SimulatedJob) -> StragglersResult:
    """Analyse a recording up to stragglers."""
    run = assemble_run("simulated", job.run().to_ranks())
    analyses = measure_run(run)
    return analyze_stragglers(run, analyses, analyze_step_time(run, analyses))


def verdict(case: Case, result: StragglersResult) -> tuple[bool, bool]:
    """Whether the right ranks were named with the right pattern, and the right cause."""
    named = [rank for rank in result.ranks if rank.pattern is not PATTERN.NONE]
    if case.rank is None:
        return result.pattern is case.pattern, True
    right = [rank.rank for rank in named] == [case.rank] and result.pattern is case.pattern
    cause = case.cause is None or (right and named[0].cause is case.cause)
    return right, cause


def main() -> None:
    """Print one line per kind of job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=50)
    seeds = parser.parse_args().seeds
    for build in CASES:
        started = time.perf_counter()
        wrong: list[int] = []
        causes = 0
        for seed in range(seeds):
            case = build(seed)
            right, cause = verdict(case, analyse(case.job))
            wrong += [] if right else [seed]
            causes += cause
        took = time.perf_counter() - started
        print(
            f"{build.__name__:<12} right {seeds - len(wrong)}/{seeds}  cause {causes}/{seeds}  "
            f"{took / seeds * 1e3:.0f} ms each  wrong seeds {wrong[:10]}"
        )


def _with_rank(seed: int, *, num_steps: int = 10, least: int = 2) -> tuple[SimulatedJob, int]:
    """A disturbed job of at least ``least`` ranks and the rank that is to be faulty."""
    job = disturbed(seed, num_steps=num_steps, noise=0.02)
    if job.world_size < least:
        job = replace(
            job,
            num_nodes=2,
            clock_offset_ns=(0, 7 * MS),
            clock_drift_ppm=(0.0, 15.0),
            capture_skip={0: 3},
        )
    return job, random.Random(seed).randrange(job.world_size)


if __name__ == "__main__":
    main()
