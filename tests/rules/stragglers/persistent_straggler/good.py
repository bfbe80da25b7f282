"""Rank 5 is last most often, but by so little that it cannot be told from chance."""

from distprof.sections.stragglers.result import StragglersResult
from tests.rules.samples import US, Results, healthy, straggler, stragglers


def results() -> Results:
    late = straggler(5, lost_ns_per_step=60 * US, share_of_step_ratio=0.003, late_ratio=0.3)
    return {**healthy(), StragglersResult: stragglers(late)}
