"""Rank 2 stalls for 5 ms once in five steps."""

import msgspec

from distprof.sections.stragglers.result import StepBlame, StragglersResult
from distprof.terms import StragglerPattern
from tests.rules.samples import STEPS, US, Results, healthy, straggler, stragglers


def results() -> Results:
    late = straggler(
        2,
        lost_ns_per_step=1_000 * US,
        share_of_step_ratio=0.05,
        late_ratio=0.2,
        pattern=StragglerPattern.TRANSIENT,
        confidence=0.8,
    )
    results = healthy(exposed_wait=1.1, communication_ms=12.0)
    blame = stragglers(late)
    steps = tuple(
        StepBlame(step=s, lost_ns=5_200 * US, rank=2, rank_lost_ns=5_000 * US)
        if s == 12
        else StepBlame(step=s, lost_ns=200 * US, rank=0, rank_lost_ns=100 * US)
        for s in STEPS
    )
    return {**results, StragglersResult: msgspec.structs.replace(blame, steps=steps)}
