"""A small model: six units of 1 MB, which leaves none to merge."""

from distprof.sections.sharding.result import ShardingResult
from tests.rules.samples import US, Results, changed, healthy, sharded_axis


def results() -> Results:
    axis = sharded_axis(
        gathers_per_step=12.0,
        gather_bytes_per_step=12_582_912,
        gather_bytes_median=1_048_576,
        scatters_per_step=6.0,
        num_units=6,
        gather_exposed_ns_per_step=900 * US,
    )
    return changed(healthy(), ShardingResult, axes=(axis,))
