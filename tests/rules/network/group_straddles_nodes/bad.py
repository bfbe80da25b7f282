"""Sharding groups of three on nodes of four: every third group lies across two nodes."""

from distprof.sections.placement.result import PlacementResult
from tests.rules.samples import Results, healthy, inside, placement


def results() -> Results:
    shard = inside(
        "dp_shard",
        3,
        num_nodes=2,
        num_domains=2,
        most_on_node=3,
        least_on_node=1,
        nodes_if_blocked=2,
        tier="between domains",
        exposed_transfer_ns_per_step=700_000,
        ranks=(3, 4, 5),
    )
    return {**healthy(), PlacementResult: placement(shard)}
