"""With 32 micro-batches the last stage computes for nine tenths of an iteration: just enough."""

from distprof.sections.pipeline.result import PipelineResult
from distprof.sections.training_log.result import TrainingLogResult
from tests.rules.samples import Results, healthy, training_log


def results() -> Results:
    log = training_log(compute_ratio=0.9, ideal_bubble_ratio=3 / 35, num_micro_batches=32)
    return {**healthy(), PipelineResult: PipelineResult(), TrainingLogResult: log}
