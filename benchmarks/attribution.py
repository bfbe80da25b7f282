"""Time and memory from ranks to stragglers: matching, alignment, class table, blame.

::

    python -m benchmarks.attribution                          # 64 ranks x 4,000 collectives
    python -m benchmarks.attribution --ranks 1024 --collectives 10000

The recording is that of ``benchmarks.cross_rank``. Measurements of single ranks are synthetic: a
tenth of all waiting overlaps, and steps last 60 collectives. Times are CPU seconds.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.cross_rank import STEP_LENGTH, make_ranks
from distprof.ingest.assemble import assemble_run
from distprof.join.waits import last_start_on_own_clock
from distprof.run.run import Rank, Run
from distprof.schema import ABSENT, Int64Array
from distprof.sections.collectives.measure import analyze_collectives
from distprof.sections.context import ExposedRows, RankAnalyses, RankAnalysis
from distprof.sections.overlap import RankOverlap
from distprof.sections.stragglers.measure import analyze_stragglers
from distprof.sections.time import RankWaterfall, StepBreakdown, StepTimeResult
from distprof.terms import IdleCause, StepSource

STEP_NS = 60_000_000


def made_up(rank: Rank, wait_end: Int64Array, num_steps: int) -> RankAnalysis:
    """An analysis whose per-row arrays have the right shapes and plausible numbers."""
    table = rank.collectives
    start, duration = table["start_ns"], table["end_ns"] - table["start_ns"]
    wait = np.where(wait_end == ABSENT, ABSENT, np.clip((wait_end - start) * 9 // 10, 0, duration))
    # Collectives are numbered from the end, because windows start at different ones.
    step = num_steps - 1 - np.arange(len(table))[::-1] // STEP_LENGTH
    zeros = np.zeros(num_steps, dtype=np.int64)
    times = dict.fromkeys(RankWaterfall.__struct_fields__, 0)
    split = {"computation_ns": 0, "exposed_comm_ns": 0, "exposed_copy_ns": 0, "idle_ns": 0}
    return RankAnalysis(
        rank=rank.rank,
        steps=tuple(
            StepBreakdown(rank=rank.rank, step=i, span_ns=STEP_NS, **split)
            for i in range(num_steps)
        ),
        overlap=RankOverlap(
            rank=rank.rank,
            computation_ns=0,
            communication_ns=0,
            overlapped_ns=0,
            exposed_comm_ns=0,
            overlap_ratio=None,
        ),
        axes=(),
        idle=None,
        cpu_pauses=(),
        waterfall=RankWaterfall(**{**times, "rank": rank.rank}),
        kernels=(),
        exposed=ExposedRows(duration, wait.astype(np.int64)),
        collective_step=step.astype(np.int64),
        computation_ns=zeros,
        idle_ns=dict.fromkeys(IdleCause, zeros),
    )


def measure(ranks: list[Rank], num_collectives: int) -> dict[str, Any]:
    """CPU seconds of each stage."""
    seconds: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        begin = time.process_time()
        result = work()
        seconds[name] = round(time.process_time() - begin, 3)
        return result

    num_steps = max(num_collectives // STEP_LENGTH, 1)
    run: Run = timed("assemble", lambda: assemble_run("made up", ranks))
    waits = timed("waits", lambda: last_start_on_own_clock(run.matches, run.clock, run.ranks))
    analyses = RankAnalyses(
        by_rank={r.rank: made_up(r, waits[r.rank], num_steps) for r in run.ranks}, wait_ends=waits
    )
    step_time = StepTimeResult(
        num_steps=num_steps,
        median_ns=STEP_NS,
        p95_ns=STEP_NS,
        cv=0.0,
        source=StepSource.PROFILER_STEP,
        note="",
    )
    classes = timed("collectives", lambda: analyze_collectives(run, analyses))
    blame = timed("stragglers", lambda: analyze_stragglers(run, analyses, step_time))
    return {
        "rows": sum(len(rank.collectives) for rank in run.ranks),
        "instances": run.matches.count,
        "classes": len(classes.classes),
        "judged": blame.num_judged,
        "below_residual": blame.num_below_residual,
        "pattern": blame.pattern.value,
        "cpu_seconds": seconds,
        "total_cpu_seconds": round(sum(seconds.values()), 3),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--collectives", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    ranks = make_ranks(options.ranks, options.collectives, with_seq=True, seed=options.seed)
    json.dump(measure(ranks, options.collectives), sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
