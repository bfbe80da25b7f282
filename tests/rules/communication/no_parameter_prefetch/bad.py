"""Hardly any gather begins beside computation: 0.8 ms of each step wait for them."""

from distprof.sections.sharding.result import ShardingResult
from tests.rules.samples import US, Results, changed, healthy, sharded_axis


def results() -> Results:
    axis = sharded_axis(ahead_ratio=0.02, gather_exposed_ns_per_step=900 * US)
    return changed(healthy(), ShardingResult, axes=(axis,))
