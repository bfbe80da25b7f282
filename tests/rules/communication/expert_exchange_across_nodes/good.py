"""Experts inside nodes; pairs of ranks, one on each node, pass on what is left."""

from distprof.sections.placement.result import PlacementResult
from tests.rules.samples import Results, healthy, inside, placed_axis, placement


def results() -> Results:
    own = inside("ep", 4, exchange_ns_per_step=700_000, exposed_transfer_ns_per_step=700_000)
    pairs = placed_axis(
        axis="ep",
        size=2,
        num_groups=4,
        most_on_node=1,
        least_on_node=1,
        stride=4,
        exposed_transfer_ns_per_step=100_000,
        exchange_ns_per_step=100_000,
    )
    return {**healthy(), PlacementResult: placement(own, pairs)}
