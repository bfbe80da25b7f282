"""Four micro-batches, each with its own gathers and reduce-scatters."""

from distprof.sections.sharding.result import ShardingResult
from tests.rules.samples import US, Results, changed, healthy, sharded_axis


def results() -> Results:
    axis = sharded_axis(
        gathers_per_step=136.0,
        gather_passes=8.0,
        scatters_per_step=68.0,
        scatter_passes=4,
        gather_exposed_ns_per_step=900 * US,
        scatter_exposed_ns_per_step=600 * US,
    )
    return changed(healthy(), ShardingResult, axes=(axis,))
