"""Warm-up and drain take 28 ms of 100 ms."""

from distprof.sections.pipeline.result import PipelineResult
from tests.rules.samples import Results, healthy, pipeline, pipeline_group


def results() -> Results:
    return {**healthy(), PipelineResult: pipeline(groups=(pipeline_group(warm_up_drain=28),))}
