"""Gathered once in forward and once in backward, reduced once; as much is exposed."""

from distprof.sections.sharding.result import ShardingResult
from tests.rules.samples import US, Results, changed, healthy, sharded_axis


def results() -> Results:
    axis = sharded_axis(gather_exposed_ns_per_step=900 * US, scatter_exposed_ns_per_step=600 * US)
    return changed(healthy(), ShardingResult, axes=(axis,))
