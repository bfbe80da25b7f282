"""The least ready rank waits a tenth of the time, as much as may be."""

from distprof.sections.summaries.result import InputReadinessResult
from tests.rules.samples import Results, healthy


def results() -> Results:
    ready = InputReadinessResult(num_samples=100, job_ratio=0.9)
    return {**healthy(), InputReadinessResult: ready}
