"""Tensor parallelism between neighbouring ranks, and replicas between nodes."""

from distprof.sections.placement.result import PlacementResult
from tests.rules.samples import Results, healthy, inside, placed_axis, placement


def results() -> Results:
    dp = placed_axis(
        axis="dp",
        size=2,
        num_groups=4,
        most_on_node=1,
        least_on_node=1,
        stride=4,
        sent_bytes_per_step=50_000_000.0,
        exposed_transfer_ns_per_step=300_000,
    )
    return {**healthy(), PlacementResult: placement(inside("tp", 4), dp)}
