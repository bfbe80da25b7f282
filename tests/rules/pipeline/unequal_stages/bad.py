"""Stage 1 works 1.3 ms on each of 16 micro-batches, stage 0 only 1 ms."""

from distprof.sections.pipeline.result import PipelineResult
from tests.rules.samples import MS, US, Results, healthy, pipeline, position


def results() -> Results:
    busy = position(
        1,
        work_ns_per_step=16 * 1_300 * US,
        work_ns_per_micro_batch=1_300 * US,
        excess_ratio=0.3,
        chance=1e-6,
    )
    uneven = pipeline(
        positions=(position(0, excess_ratio=-0.23), busy),
        max_over_mean=1.13,
        lost_ns_per_step=15 * 150 * US,
        step_ns=25 * MS,
    )
    return {**healthy(), PipelineResult: uneven}
