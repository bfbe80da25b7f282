"""Even ranks on one node and odd ones on the other: groups of neighbours span both."""

from distprof.sections.placement.result import PlacementResult
from tests.rules.samples import Results, healthy, placed_axis, placement


def results() -> Results:
    tp = placed_axis(stride=1, nodes_if_blocked=1, could_fit=True)
    return {
        **healthy(exposed_transfer=1.5),
        PlacementResult: placement(tp, order="cyclic"),
    }
