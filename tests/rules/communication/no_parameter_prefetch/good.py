"""As many gathers, most of them while the unit before is computed."""

from distprof.sections.sharding.result import ShardingResult
from tests.rules.samples import US, Results, changed, healthy, sharded_axis


def results() -> Results:
    axis = sharded_axis(ahead_ratio=0.6, gather_exposed_ns_per_step=900 * US)
    return changed(healthy(), ShardingResult, axes=(axis,))
