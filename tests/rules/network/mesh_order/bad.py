"""Replicas lie between neighbouring ranks, and tensor parallelism between nodes."""

from distprof.sections.placement.result import PlacementResult
from tests.rules.samples import Results, healthy, inside, placed_axis, placement


def results() -> Results:
    axes = (placed_axis(), inside("dp", 2))
    return {
        **healthy(exposed_transfer=1.5),
        PlacementResult: placement(*axes),
    }
