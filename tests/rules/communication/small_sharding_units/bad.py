"""A pass of 120 gathers of 1 MB, 0.8 ms of which are exposed."""

from distprof.sections.sharding.result import ShardingResult
from tests.rules.samples import US, Results, changed, healthy, sharded_axis


def results() -> Results:
    axis = sharded_axis(
        gathers_per_step=240.0,
        gather_bytes_per_step=251_658_240,
        gather_bytes_median=1_048_576,
        scatters_per_step=120.0,
        num_units=120,
        gather_exposed_ns_per_step=900 * US,
    )
    return changed(healthy(), ShardingResult, axes=(axis,))
