"""Rank 3 waits 2 ms of each step of 20 ms for its input, the others 0.2 ms."""

from distprof.sections.step_log.result import StepLogResult
from tests.rules.samples import MS, Results, healthy, step_log


def results() -> Results:
    return {**healthy(), StepLogResult: step_log(input_ns={3: 2 * MS})}
