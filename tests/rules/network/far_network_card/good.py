"""One card for all GPUs, far from half of them: nothing nearer is there, on any socket."""

from distprof.sections.placement.result import CardPath, PlacementResult
from tests.rules.samples import Results, healthy, placement


def results() -> Results:
    cards = tuple(
        CardPath(
            host="node-1",
            gpu=f"GPU{gpu}",
            path="NODE",
            nearest=("mlx5_0",),
            num_sharing=4,
            used=("mlx5_0",),
            used_path="NODE",
            rank=gpu,
        )
        for gpu in range(4)
    )
    return {**healthy(), PlacementResult: placement(cards=cards)}
