"""Stage 1 works 30 % longer on average, in steps that differ more than that: it may be chance."""

from distprof.sections.pipeline.result import PipelineResult
from tests.rules.samples import US, Results, healthy, pipeline, position


def results() -> Results:
    busy = position(1, work_ns_per_micro_batch=1_300 * US, excess_ratio=0.3, chance=0.2)
    uneven = pipeline(positions=(position(0), busy), lost_ns_per_step=15 * 150 * US)
    return {**healthy(), PipelineResult: uneven}
