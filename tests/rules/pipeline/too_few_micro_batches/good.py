"""Warm-up and drain take 10 ms of 100 ms, as much as may be."""

from distprof.sections.pipeline.result import PipelineResult
from tests.rules.samples import Results, healthy, pipeline, pipeline_group


def results() -> Results:
    return {**healthy(), PipelineResult: pipeline(groups=(pipeline_group(warm_up_drain=10),))}
