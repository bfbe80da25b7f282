"""Weights are sharded, gathers exposed for 4 % of the step, and the state would fill 60 GB."""

from distprof.sections.efficiency.result import EfficiencyResult
from distprof.sections.sharding.result import ShardingResult
from tests.rules.samples import US, Results, changed, healthy, sharded_axis


def results() -> Results:
    axis = sharded_axis(num_nodes=1, gather_exposed_ns_per_step=900 * US)
    found = changed(healthy(), ShardingResult, axes=(axis,))
    return changed(found, EfficiencyResult, zero_stage=3, unsharded_bytes=60_000_000_000)
