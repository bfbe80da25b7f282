"""Stages differ as before, but the step is only 2 % longer than the ideal one."""

from distprof.sections.whatif.result import WhatIfResult
from tests.rules.samples import Results, healthy
from tests.rules.stragglers.uneven_operations.bad import whatif


def results() -> Results:
    return {**healthy(), WhatIfResult: whatif(slowdown=1.02, stage_gain_ms=0)}
