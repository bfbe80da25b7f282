"""Messages cost 2 ms of 100 ms."""

from distprof.sections.pipeline.result import PipelineResult
from tests.rules.samples import Results, healthy, pipeline, pipeline_group


def results() -> Results:
    return {**healthy(), PipelineResult: pipeline(groups=(pipeline_group(messages=2),))}
