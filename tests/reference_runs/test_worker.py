"""What a rank reports about its training, and how it exits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from distprof_runs.configuration import Configuration
from distprof_runs.faults.injection import Injection
from distprof_runs.launching.worker import train
from distprof_runs.options import DdpOptions, ModelOptions, TrainingOptions
from distprof_runs.workloads.workload import Batch, Job, Phases
from torch import Tensor, nn

CONFIGURATION = Configuration(
    workload=DdpOptions(),
    model=ModelOptions(sequence=5).resolved(),
    training=TrainingOptions(steps=2, batch=3, micro_batches=2),
)


class Diary:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.told.append(name)
        yield

    def step(
        self,
        *,
        loss: Tensor | float | None = None,
        tokens: int | None = None,
        samples: int | None = None,
    ) -> None:
        self.told.append((loss, tokens, samples))


class Half:
    """One of two ranks that share each part of the batch; there are ``num_data_parts`` parts."""

    modules: Sequence[nn.Module] = ()
    data_index = 0

    def __init__(self, num_data_parts: int) -> None:
        self.num_data_parts = num_data_parts
        self.batches: list[Batch] = []

    def train_step(self, micro_batches: Sequence[Batch], phases: Phases) -> Tensor | None:
        self.batches += micro_batches
        with phases.phase("forward"):
            return torch.tensor(2.5)


def job(rank: int, world_size: int) -> Job:
    mesh = SimpleNamespace(mesh_dim_names=(), get_local_rank=lambda axis: 0)
    return Job(
        rank=rank,
        world_size=world_size,
        local_rank=rank,
        device=torch.device("cpu"),
        dtype=torch.float32,
        timeout=timedelta(seconds=60),
        mesh=cast("Any", mesh),
    )


def told(rank: int, world_size: int, num_data_parts: int) -> list[object]:
    diary, trainer, here = Diary(), Half(num_data_parts), job(rank, world_size)
    train(here, trainer, CONFIGURATION, diary, Injection([], here, trainer))
    return diary.told


def test_each_step_is_told_with_its_phases() -> None:
    step = ["input", "forward", (torch.tensor(2.5), 2 * 3 * 5, 2 * 3)]
    assert told(0, 1, 1) == step + step


def test_each_micro_batch_has_data_of_its_own() -> None:
    trainer, here = Half(1), job(0, 1)
    train(here, trainer, CONFIGURATION, Diary(), Injection([], here, trainer))
    assert len({batch.tokens.numpy().tobytes() for batch in trainer.batches}) == 4


@pytest.mark.parametrize(("world_size", "parts"), [(1, 1), (2, 2), (4, 2), (4, 1), (8, 1)])
def test_tokens_and_samples_of_all_ranks_are_those_of_the_global_batch(
    world_size: int, parts: int
) -> None:
    last = [told(rank, world_size, parts)[-1] for rank in range(world_size)]
    tokens = [step[1] for step in last if isinstance(step, tuple)]
    samples = [step[2] for step in last if isinstance(step, tuple)]
    assert sum(tokens) == parts * 30
    assert sum(samples) == parts * 6
    assert max(tokens) - min(tokens) <= 1
