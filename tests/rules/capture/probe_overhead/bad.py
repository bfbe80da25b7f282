"""Tracing makes steps 12 % longer, surely."""

import msgspec

from distprof.sections.job.result import JobResult
from tests.rules.samples import OVERHEAD, Results, changed, healthy


def results() -> Results:
    measured = msgspec.structs.replace(OVERHEAD, ratio=0.12, low=0.09, high=0.15)
    return changed(healthy(), JobResult, overhead=(measured,))
