"""One short stall: half a percent of the mean step."""

from distprof.sections.stragglers.result import StragglersResult
from distprof.terms import StragglerPattern
from tests.rules.samples import US, Results, healthy, straggler, stragglers


def results() -> Results:
    late = straggler(
        2,
        lost_ns_per_step=100 * US,
        share_of_step_ratio=0.005,
        pattern=StragglerPattern.TRANSIENT,
        confidence=0.8,
    )
    return {**healthy(), StragglersResult: stragglers(late)}
