"""The last GPU sends through the first card, on the other socket, though it has one of its own."""

from distprof.sections.placement.result import CardPath, PlacementResult
from tests.rules.samples import Results, healthy, placement


def results() -> Results:
    cards = tuple(
        CardPath(
            host="node-1",
            gpu=f"GPU{gpu}",
            path="PIX",
            nearest=(f"mlx5_{gpu}",),
            num_sharing=1,
            used=("mlx5_0" if gpu == 3 else f"mlx5_{gpu}",),
            used_path="SYS" if gpu == 3 else "PIX",
            rank=gpu,
        )
        for gpu in range(4)
    )
    return {**healthy(), PlacementResult: placement(cards=cards)}
