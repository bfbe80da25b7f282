"""Weights are sharded, gathers exposed for 4 % of the step, and the state would fill 60 GB."""

from distprof.analyzers.collectives import CollectivesResult
from distprof.analyzers.efficiency import EfficiencyResult
from tests.rules.samples import US, Results, changed, collective_class, healthy


def results() -> Results:
    gathers = collective_class(
        kind="all_gather", axis="dp_shard", num_nodes=1, exposed_ns_per_step=1_000 * US
    )
    found = changed(healthy(), CollectivesResult, classes=(gathers,))
    return changed(found, EfficiencyResult, zero_stage=3, unsharded_bytes=60_000_000_000)
