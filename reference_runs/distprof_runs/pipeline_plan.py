"""Assigns blocks to pipeline stages, and stages to ranks. Does not import torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from distprof.errors import UsageError

SCHEDULES: dict[str, tuple[int, int | None]] = {
    "gpipe": (1, 1),
    "1f1b": (1, 1),
    "looped-bfs": (2, None),
    "interleaved-1f1b": (2, None),
    "interleaved-zb": (2, None),
    "zbv": (2, 2),
    "dualpipev": (2, 2),
}
"""Fewest and most stages per rank of each schedule; None: no limit."""

_V_SHAPED = ("zbv", "dualpipev")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePlan:
    """A pipeline."""

    schedule: str  # One of :data:`SCHEDULES`.
    ranks: int  # Of the pipeline.
    blocks: tuple[int, ...]  # Number of transformer blocks of each stage.

    @property
    def num_stages(self) -> int:
        """Stages of the whole pipeline."""
        return len(self.blocks)

    def rank_of(self, stage: int) -> int:
        """The rank of a stage, by rounds. In V-shaped schedules the second round is reversed."""
        place = stage % self.ranks
        goes_back = self.schedule in _V_SHAPED and stage // self.ranks % 2
        return self.ranks - 1 - place if goes_back else place

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Stages that a rank runs, in order."""
        return tuple(s for s in range(self.num_stages) if self.rank_of(s) == rank)

    def first_block(self, stage: int) -> int:
        """Index of a stage's first block in the model."""
        return sum(self.blocks[:stage])

    def crossings(self) -> Iterator[tuple[int, int]]:
        """Pairs of ranks at the boundaries between stages, without boundaries inside a rank."""
        places = [self.rank_of(stage) for stage in range(self.num_stages)]
        return ((left, right) for left, right in pairwise(places) if left != right)


def plan_pipeline(
    schedule: str,
    *,
    ranks: int,
    layers: int,
    micro_batches: int,
    virtual_stages: int = 0,
    split: str = "",
) -> PipelinePlan:
    """A plan that torch's schedule accepts.

    Args:
        schedule: One of :data:`SCHEDULES`.
        ranks: Of the pipeline.
        layers: Transformer blocks of the model.
        micro_batches: Per step.
        virtual_stages: Stages per rank; 0: the fewest that the schedule allows.
        split: Blocks per stage, separated by commas; empty: as even as possible.

    Raises:
        UsageError: If the schedule cannot run this way, with a fix.
    """
    if ranks < 2:
        raise UsageError("a pipeline needs at least 2 ranks: use --ranks 2")
    fewest, most = SCHEDULES[schedule]
    per_rank = virtual_stages or fewest
    if per_rank < fewest or (most is not None and per_rank > most):
        limits = f"exactly {fewest}" if fewest == most else f"{fewest} or more"
        raise UsageError(
            f"schedule {schedule} needs {limits} stages per rank, not {per_rank}: remove"
            " --virtual-stages"
        )
    stages = ranks * per_rank
    _check_micro_batches(schedule, ranks, stages, micro_batches)
    blocks = _parse_split(split, stages, layers) if split else _even_split(stages, layers)
    return PipelinePlan(schedule=schedule, ranks=ranks, blocks=blocks)


def _check_micro_batches(schedule: str, ranks: int, stages: int, micro_batches: int) -> None:
    if schedule in ("1f1b", "dualpipev") and micro_batches < stages:
        raise UsageError(
            f"schedule {schedule} needs as many micro-batches as stages, {stages}, not"
            f" {micro_batches}: use --micro-batches {stages} or more, or --schedule gpipe"
        )
    rounds = max(1, micro_batches // ranks)
    if schedule in ("interleaved-1f1b", "interleaved-zb") and micro_batches % rounds:
        raise UsageError(
            f"schedule {schedule} cannot divide {micro_batches} micro-batches evenly among {rounds}"
            f" rounds: use --micro-batches {rounds * ranks}"
        )


def _even_split(stages: int, layers: int) -> tuple[int, ...]:
    """Stages in the middle get the remainder: those at the ends also have embedding and output."""
    if layers < stages:
        raise UsageError(
            f"{layers} blocks do not fill {stages} stages: use --layers {stages} or fewer ranks"
        )
    each, rest = divmod(layers, stages)
    first = (stages - rest) // 2
    return tuple(each + (first <= stage < first + rest) for stage in range(stages))


def _parse_split(split: str, stages: int, layers: int) -> tuple[int, ...]:
    parts = [part.strip() for part in split.split(",")]
    blocks = tuple(int(part) for part in parts if part.isdecimal())
    if len(blocks) != len(parts) or len(blocks) != stages or min(blocks) < 1:
        example = ",".join(str(count) for count in _even_split(stages, max(layers, stages)))
        raise UsageError(
            f"--split {split}: give the blocks of each of the {stages} stages, for example"
            f" {example}"
        )
    if sum(blocks) != layers:
        raise UsageError(f"--split {split} has {sum(blocks)} blocks, the model {layers}")
    return blocks
