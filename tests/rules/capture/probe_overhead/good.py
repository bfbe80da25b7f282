"""Tracing may cost 12 %, and may as well cost nothing: the interval holds zero."""

import msgspec

from distprof.sections.job.result import JobResult
from tests.rules.samples import OVERHEAD, Results, changed, healthy


def results() -> Results:
    measured = msgspec.structs.replace(OVERHEAD, ratio=0.12, low=-0.02, high=0.3)
    return changed(healthy(), JobResult, overhead=(measured,))
