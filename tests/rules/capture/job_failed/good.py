"""The job was interrupted by its user, which is no failure."""

from distprof.sections.job.result import JobResult
from tests.rules.samples import Results, changed, healthy


def results() -> Results:
    return changed(healthy(), JobResult, outcome="interrupted")
