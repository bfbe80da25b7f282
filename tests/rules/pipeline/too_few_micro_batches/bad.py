"""Warm-up and drain take 28 ms of 100 ms."""

from distprof.analyzers.pipeline.analysis import PipelineResult
from tests.rules.samples import Results, healthy, pipeline, pipeline_group


def results() -> Results:
    return {**healthy(), PipelineResult: pipeline(groups=(pipeline_group(warm_up_drain=28),))}
