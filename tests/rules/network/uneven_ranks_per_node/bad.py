"""Five ranks on one node and three on the other."""

from distprof.sections.placement.result import PlacedNode, PlacementResult
from tests.rules.samples import Results, healthy, placement


def results() -> Results:
    nodes = (
        PlacedNode(node="node-1", ranks=(0, 1, 2, 3, 4), domains=("node-1",)),
        PlacedNode(node="node-2", ranks=(5, 6, 7), domains=("node-2",)),
    )
    return {**healthy(), PlacementResult: placement(nodes=nodes)}
