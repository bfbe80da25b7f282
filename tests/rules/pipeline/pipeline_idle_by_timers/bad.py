"""The last of four stages computes for half of an iteration of 2 s: four micro-batches are few."""

from distprof.sections.pipeline.result import PipelineResult
from distprof.sections.training_log.result import TrainingLogResult
from tests.rules.samples import Results, healthy, training_log


def results() -> Results:
    log = training_log(compute_ratio=0.5, ideal_bubble_ratio=3 / 7, num_micro_batches=4)
    return {**healthy(), PipelineResult: PipelineResult(), TrainingLogResult: log}
