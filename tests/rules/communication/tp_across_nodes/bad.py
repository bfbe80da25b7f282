"""Tensor parallelism of eight ranks on nodes of four; 1.5 ms of its transfer are exposed."""

from distprof.sections.placement.result import PlacementResult
from tests.rules.samples import Results, healthy, placed_axis, placement


def results() -> Results:
    tp = placed_axis(size=8, num_groups=1, most_on_node=4, least_on_node=4, stride=1)
    return {**healthy(exposed_transfer=1.5), PlacementResult: placement(tp)}
