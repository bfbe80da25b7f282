"""The order explains 8 ms of 20 ms idle; most of the rest is the host's."""

from distprof.sections.pipeline.result import PipelineResult
from tests.rules.samples import Results, healthy, pipeline, pipeline_group


def results() -> Results:
    return {
        **healthy(),
        PipelineResult: pipeline(groups=(pipeline_group(warm_up_drain=8, messages=2, host=10),)),
    }
