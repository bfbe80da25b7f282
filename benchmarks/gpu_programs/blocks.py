"""Blocks of two trainings in turns, so that drift of the machine hits both alike."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.gpu_programs.train import Training

__all__ = ["in_turns"]


def in_turns(trainings: Sequence[Training], blocks: int, steps: int) -> dict[str, list[float]]:
    """Milliseconds of a step in each block, in the order A B, B A, A B."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(2 * blocks):
        place = (number + number // 2) % 2
        times[place].append(trainings[place].block_ms(steps))
    return {"healthy_ms": times[0], "faulty_ms": times[1]}
