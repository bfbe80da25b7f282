"""Rank 3 waits twice as long for its input as the others, which is 1 % of the step."""

from distprof.sections.step_log.result import StepLogResult
from tests.rules.samples import US, Results, healthy, step_log


def results() -> Results:
    return {**healthy(), StepLogResult: step_log(input_ns={3: 400 * US})}
