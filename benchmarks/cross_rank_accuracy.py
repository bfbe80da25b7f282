"""Accuracy of matching and clock alignment on simulated jobs with known truth.

    python -m benchmarks.cross_rank_accuracy --seeds 300

Each job has four nodes of two ranks with clocks up to ±10 ms and ±20 ppm off, ends that are known
to ±5 µs, and windows that start and stop up to ten collectives apart. Each is read three times:
with sequence numbers, with step numbers only, and with neither.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable

import numpy as np

from distprof.ingest.assemble import assemble_run
from distprof.run.run import ClockAlignment
from tests.ingest.instances import members_of, true_instances
from tests.simulator import Recording, SimulatedJob
from tests.simulator.tables import EPOCH_NS

MS = 1_000_000
READINGS: dict[str, dict[str, bool]] = {
    "sequence numbers": {},
    "step numbers": {"with_seq": False},
    "neither": {"with_seq": False, "with_steps": False},
}

COUNTS = {
    "jobs": "jobs read",
    "wrong": "jobs with wrongly joined members",
    "silently_incomplete": "jobs that silently lack a collective which every rank recorded",
    "announced": "jobs with ranks reported as ambiguous",
    "whole": "collectives that every rank recorded",
    "whole_found": "those of them that were found",
    "above_residual": "jobs whose clocks are further off than their stated residual",
    "largest_error_ns": "largest error of a clock",
}


def make_job(seed: int) -> SimulatedJob:
    rng = np.random.default_rng(seed)
    return SimulatedJob(
        seed=seed,
        num_nodes=4,
        num_steps=10,
        end_jitter_ns=5_000,
        clock_offset_ns=tuple(int(x) for x in rng.integers(-10 * MS, 10 * MS, 4)),
        clock_drift_ppm=tuple(float(x) for x in rng.uniform(-20, 20, 4)),
        capture_skip={rank: int(rng.integers(0, 11)) for rank in range(8)},
        capture_cut={rank: int(rng.integers(0, 11)) for rank in range(8)},
    )


def clock_error_ns(clock: ClockAlignment, recording: Recording) -> int:
    """Largest difference between domains, on the common clock, inside the common window."""
    captures = [recording.capture(rank) for rank in recording.present]
    window = max(start for start, _ in captures), min(end for _, end in captures)
    worst = 0
    for time in (window[0], sum(window) / 2, window[1]):
        own = {d[0]: EPOCH_NS + recording.job.own_clock(d[0], time) for d in clock.domains}
        common = [int(clock.to_common(r, np.array([t]))[0]) for r, t in own.items()]
        worst = max(worst, max(common) - min(common))
    return worst


def judge(seeds: Iterable[int]) -> dict[str, dict[str, int]]:
    """Counts of errors, by reading."""
    result = {name: dict.fromkeys(COUNTS, 0) for name in READINGS}
    for seed in seeds:
        recording = make_job(seed).run()
        truth = true_instances(recording)
        for name, detail in READINGS.items():
            run = assemble_run("simulated", recording.to_ranks(with_host_rows=False, **detail))
            found = {frozenset(m) for m in members_of(run.matches)}
            whole = {m for m in truth if len(m) == recording.job.world_size}
            announced = bool(run.matches.ambiguous_ranks)
            counts = result[name]
            counts["jobs"] += 1
            counts["wrong"] += not all(any(m <= t for t in truth) for m in found)
            counts["silently_incomplete"] += not whole <= found and not announced
            counts["announced"] += announced
            counts["whole"] += len(whole)
            counts["whole_found"] += len(whole & found)
            if not announced:  # clocks without any relation are not compared
                error = clock_error_ns(run.clock, recording)
                counts["above_residual"] += error > int(run.clock.residual_ns.max()) + 1
                counts["largest_error_ns"] = max(counts["largest_error_ns"], error)
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=300)
    options = parser.parse_args()
    json.dump(judge(range(options.seeds)), sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
