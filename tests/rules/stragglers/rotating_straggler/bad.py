"""In each step another of four ranks stalls, as with unsynchronised garbage collection."""

from distprof.sections.stragglers.result import StragglersResult
from distprof.terms import StragglerPattern
from tests.rules.samples import US, Results, healthy, straggler, stragglers


def results() -> Results:
    late = [
        straggler(
            rank,
            lost_ns_per_step=300 * US,
            share_of_step_ratio=0.015,
            pattern=StragglerPattern.ROTATING,
            confidence=0.7,
        )
        for rank in (0, 3, 4, 6)
    ]
    results = healthy(exposed_wait=1.3, communication_ms=12.0)
    return {**results, StragglersResult: stragglers(*late)}
