"""Documents differ a little: the busiest rank computes 0.4 of 20 ms more than the mean."""

from msgspec.structs import replace

from distprof.sections.stragglers.result import StragglersResult
from tests.rules.samples import US, Results, healthy, stragglers
from tests.rules.stragglers.sequence_length_imbalance.bad import IMBALANCE


def results() -> Results:
    little = replace(
        IMBALANCE, max_over_mean=1.04, lost_ns_per_step=400 * US, share_of_step_ratio=0.02
    )
    return {**healthy(), StragglersResult: replace(stragglers(), sequences=little)}
