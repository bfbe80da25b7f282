"""Does distprof name the hot expert and its cost? Simulated expert-parallel jobs, some healthy.

::

    python -m benchmarks.expert_accuracy --first 10000 --seeds 150

Two to sixteen ranks in one or two groups, two to four layers, up to three micro-batches, with and
without checkpoints; clocks are off by up to 10 ms and the time of dense layers varies from rank to
rank. Each job goes through matching, clock alignment and the rules on experts. The true cost of a
hot expert is known, because the same job is simulated with even expert times. Seeds below 1,000 are
for tuning, those from 10,000 on for judging.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import numpy as np

from distprof.ingest.assemble import assemble_run
from distprof.rules import find_rule
from distprof.rules.base import Finding
from distprof.rules.engine import run_rules
from distprof.sections.measure_run import measure_run
from distprof.sections.moe.calls import combine_routing, measure_routing
from distprof.sections.moe.measure import with_exchanges
from tests.rules.samples import collectives
from tests.sections.moe.moe_job import MoeJob, Simulated, balanced, hot, simulate_moe, step_ns

RULES = ("MOE101", "MOE102", "MOE103", "MOE104", "MOE105")
NEAR = 0.1


def job_of(seed: int) -> MoeJob:
    """A job with even routing."""
    random = np.random.default_rng(seed)
    size, number = int(random.choice([2, 4, 8])), int(random.choice([1, 2]))
    groups = tuple(tuple(range(first, size * number, number)) for first in range(number))
    dense = int(random.integers(20_000, 120_000))
    return MoeJob(
        groups=groups,
        layers=int(random.integers(2, 5)),
        micro_batches=int(random.integers(1, 4)),
        steps=4,
        experts=16,
        tokens=int(random.choice([512, 1_024, 4_096])),
        ns_per_token=int(random.integers(300, 3_000)),
        fixed_ns=int(random.integers(0, 100_000)),
        jitter_ns=dense,
        recompute=bool(random.integers(2)),
        offset_ns=tuple(random.integers(-10_000_000, 10_000_000, size * number).tolist()),
        seed=seed,
    )


def findings_of(simulated: Simulated) -> tuple[Finding, ...]:
    """Findings of the rules on experts."""
    ranks = []
    for number, builder in sorted(simulated.builders.items()):
        builder.groups = [group for group in simulated.groups if number in group.ranks]
        ranks.append(builder.rank(host=f"node{number}"))
    run = assemble_run("simulated", ranks, ())
    logs = [measure_routing(simulated.records(rank)) for rank in sorted(simulated.builders)]
    routing = [log for log in logs if log is not None]
    logged = combine_routing(routing, {})
    moe = with_exchanges(run, measure_run(run), logged, routing)
    return run_rules([moe, collectives()], rules=[find_rule(code) for code in RULES]).findings


def hot_trial(seed: int) -> tuple[bool, float | None]:
    """Whether the expert is named in all layers, and the relative error of its cost."""
    random = np.random.default_rng(seed + 1_000_000)
    job, expert = job_of(seed), int(random.integers(16))
    job = replace(job, share=hot(job.layers, 16, expert, float(random.uniform(2.3, 5.0))))
    named = [f for f in findings_of(simulate_moe(job)) if f.code == "MOE101"]
    text = named[0].message if len(named) == 1 else ""
    right = text.startswith(f"Expert {expert} ") and f"{job.layers} of {job.layers} layers" in text
    if not right or named[0].cost_ns_per_step is None:
        return right, None
    truth = step_ns(job) - step_ns(balanced(job))
    return right, named[0].cost_ns_per_step / truth - 1


def main() -> None:
    """Print two lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seeds", type=int, default=30, help="jobs of each kind")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    started = time.perf_counter()
    trials = [hot_trial(seed) for seed in seeds]
    wrong = [seed for seed, (right, _) in zip(seeds, trials, strict=True) if not right]
    errors = sorted(abs(error) for _, error in trials if error is not None)
    near = sum(error <= NEAR for error in errors)
    print(
        f"hot expert  named {len(trials) - len(wrong)}/{len(trials)}  cost within 10 % {near}/"
        f"{len(errors)}, median {errors[len(errors) // 2] if errors else float('nan'):.1%}, "
        f"worst {errors[-1] if errors else float('nan'):.1%}  wrong {wrong[:12]}"
    )
    accused = {seed: [f.code for f in findings_of(simulate_moe(job_of(seed)))] for seed in seeds}
    accused = {seed: codes for seed, codes in accused.items() if codes}
    took = time.perf_counter() - started
    print(f"healthy     blamed {len(accused)}/{len(seeds)} {accused or ''}  {took:.1f} s")


if __name__ == "__main__":
    main()
