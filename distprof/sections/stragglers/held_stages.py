"""Which pipeline stages a rank holds: ranks of unlike stages work unlike amounts by design."""

from __future__ import annotations

from collections.abc import Mapping

from distprof.run.run import Run
from distprof.sections.context import RankAnalysis
from distprof.terms import MeshAxis

__all__ = ["held_stages"]


def held_stages(
    analyses: Mapping[int, RankAnalysis], run: Run | None = None
) -> Mapping[int, tuple[int, ...]]:
    """Rank to the stages that it holds; an empty tuple for all where nothing tells.

    Marks say it; without marks the position of a rank in its group along the pipeline's axis does.

    Args:
        analyses: Of all ranks.
        run: For its process groups; None to go by marks alone.
    """
    marked = {rank: analysis.stage_numbers for rank, analysis in analyses.items()}
    if run is None or any(marked.values()):
        return marked
    positions = {
        rank: (position,)
        for group in run.topology.groups
        if group.axis is MeshAxis.PP and len(group.ranks) > 1
        for position, rank in enumerate(group.ranks)
    }
    return {rank: positions.get(rank, ()) for rank in analyses}
