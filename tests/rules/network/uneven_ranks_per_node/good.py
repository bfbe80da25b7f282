"""Traces of four ranks of one node and one of the other: the job itself may be even."""

from distprof.sections.placement.result import PlacedNode, PlacementResult
from tests.rules.samples import Results, healthy, placement


def results() -> Results:
    nodes = (
        PlacedNode(node="node-1", ranks=(0, 1, 2, 3), domains=("node-1",)),
        PlacedNode(node="node-2", ranks=(4,), domains=("node-2",)),
    )
    return {**healthy(), PlacementResult: placement(nodes=nodes, order=None, is_whole=False)}
