"""The same order, and a mesh made for it: the groups that send most have every second rank."""

from distprof.sections.placement.result import PlacementResult
from tests.rules.samples import Results, healthy, inside, placed_axis, placement


def results() -> Results:
    tp = inside("tp", 4, stride=2, nodes_if_blocked=2, sent_bytes_per_step=400_000_000.0)
    dp = placed_axis(
        axis="dp",
        size=2,
        num_groups=4,
        most_on_node=1,
        least_on_node=1,
        stride=1,
        nodes_if_blocked=1,
        could_fit=True,
        sent_bytes_per_step=50_000_000.0,
        exposed_transfer_ns_per_step=700_000,
    )
    return {**healthy(), PlacementResult: placement(tp, dp, order="cyclic")}
