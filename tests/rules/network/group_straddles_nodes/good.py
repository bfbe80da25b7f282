"""Replicas of pairs: a group's members are four apart, on one node each, as a mesh has them."""

from distprof.sections.placement.result import PlacementResult
from tests.rules.samples import Results, healthy, inside, placed_axis, placement


def results() -> Results:
    shard = inside("dp_shard", 4)
    replicate = placed_axis(
        axis="dp_replicate",
        size=2,
        num_groups=4,
        most_on_node=1,
        least_on_node=1,
        stride=4,
        sent_bytes_per_step=20_000_000.0,
        exposed_transfer_ns_per_step=700_000,
    )
    return {**healthy(), PlacementResult: placement(shard, replicate)}
