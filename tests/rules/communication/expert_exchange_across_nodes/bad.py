"""Eight ranks on two nodes exchange tokens, each with each; 2.5 ms of it are exposed."""

from distprof.sections.placement.result import PlacementResult
from tests.rules.samples import Results, healthy, placed_axis, placement


def results() -> Results:
    ep = placed_axis(
        axis="ep",
        size=8,
        num_groups=1,
        most_on_node=4,
        least_on_node=4,
        stride=1,
        exchange_ns_per_step=2_500_000,
    )
    return {**healthy(exposed_transfer=2.5, communication_ms=16.0), PlacementResult: placement(ep)}
