"""Faults affect only their target. No test here sleeps or dies."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from distprof_runs.faults import injection
from distprof_runs.faults.injection import GC_EVERY, Injection
from distprof_runs.faults.orders import parse_fault
from distprof_runs.faults.slowdown import Slowdown
from distprof_runs.options import ModelOptions, TrainingOptions
from distprof_runs.workloads.model import MixtureOfExperts, MoeSettings, Transformer, initialise
from distprof_runs.workloads.sleep import SleepBlock, make_blocks_sleep
from distprof_runs.workloads.workload import Batch, Job, Phases
from torch import Tensor, nn

SMALL = ModelOptions(
    layers=2, hidden=16, heads=2, kv_heads=2, ffn=16, sequence=4, vocabulary=8
).resolved()


class Alone:
    """A trainer of which only the model matters."""

    data_index = 0
    num_data_parts = 1

    def __init__(self, model: nn.Module) -> None:
        self.modules: Sequence[nn.Module] = [model]

    def train_step(self, micro_batches: Sequence[Batch], phases: Phases) -> Tensor | None:
        raise NotImplementedError


def job(rank: int = 1, stage: int = 0) -> Job:
    mesh = SimpleNamespace(mesh_dim_names=("pp",), get_local_rank=lambda axis: stage)
    return Job(
        rank=rank,
        world_size=4,
        local_rank=rank,
        device=torch.device("cpu"),
        dtype=torch.float32,
        timeout=timedelta(seconds=60),
        mesh=cast("Any", mesh),
    )


def transformer(moe: MoeSettings | None = None) -> Transformer:
    model = Transformer(SMALL, moe)
    initialise(model, 0)
    return model


def inject(text: str, model: nn.Module | None = None, at: Job | None = None) -> Injection:
    return Injection([parse_fault(text)], at or job(), Alone(model or transformer()))


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seconds: list[float] = []
    monkeypatch.setattr(injection.time, "sleep", seconds.append)
    return seconds


def test_late_input_delays_the_input_phase_of_its_rank(paused: list[float]) -> None:
    struck, other = inject("late-input=1:50"), inject("late-input=2:50")
    struck.input_begins()
    other.input_begins()
    assert paused == [0.05]
    struck.training_begins(0)
    assert paused == [0.05]


def test_a_sleeping_rank_sleeps_once_in_each_step(paused: list[float]) -> None:
    struck = inject("sleep-rank=1:30")
    struck.input_begins()
    for step in range(3):
        struck.training_begins(step)
    assert paused == [0.03] * 3


def test_a_slow_host_delays_every_block(paused: list[float]) -> None:
    model = transformer()
    inject("slow-host=1:5", model)
    model(torch.zeros(1, 4, dtype=torch.int64))
    assert paused == [0.005, 0.005]


def test_a_dead_rank_kills_itself_in_its_step_only(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(injection.os, "kill", lambda *asked: killed.append(asked))
    struck = inject("dead-rank=1:2")
    struck.training_begins(1)
    assert killed == []
    struck.training_begins(2)
    assert killed == [(os.getpid(), signal.SIGKILL)]


def test_a_hanging_rank_hangs_in_its_step_only(monkeypatch: pytest.MonkeyPatch) -> None:
    hung: list[bool] = []
    monkeypatch.setattr(injection, "hang_on_purpose", lambda: hung.append(True))
    struck = inject("hang-rank=1:2")
    struck.training_begins(1)
    assert hung == []
    struck.training_begins(2)
    assert hung == [True]


def test_skewed_routing_favours_the_expert_on_every_rank() -> None:
    model = transformer(MoeSettings(experts=4, top_k=1))
    inject("routing-skew=2:50", model, job(rank=3))
    model(torch.zeros(1, 4, dtype=torch.int64))
    layer = model.blocks["0"].feed_forward
    assert isinstance(layer, MixtureOfExperts)
    assert layer.router.bias.tolist() == [0, 0, 50, 0]


def test_a_slow_rank_slows_its_computation_only() -> None:
    assert isinstance(inject("slow-rank=1:1.5").slowing(), Slowdown)
    assert isinstance(inject("slow-rank=2:1.5").slowing(), nullcontext)


def test_a_skewed_stage_is_found_by_its_place_in_the_mesh() -> None:
    assert isinstance(inject("stage-skew=2:1.5", at=job(stage=2)).slowing(), Slowdown)
    assert isinstance(inject("stage-skew=2:1.5", at=job(stage=1)).slowing(), nullcontext)


def test_blocks_that_sleep_are_slowed_too() -> None:
    model = Transformer(SMALL)
    make_blocks_sleep(model, TrainingOptions(compute="sleep"))
    inject("slow-rank=1:1.5", model)
    found = [item.sleeper.slowdown for item in model.modules() if isinstance(item, SleepBlock)]
    assert found == [1.5, 1.5]


def test_garbage_is_collected_in_every_third_step_for_about_the_time_asked() -> None:
    model = transformer()
    struck = inject("gc-pause=1:20", model)
    pauses: list[float] = []
    begun = 0.0

    def watch(phase: str, info: dict[str, int]) -> None:
        nonlocal begun
        if phase == "start":
            begun = time.perf_counter()
        elif info["generation"] == 2:
            pauses.append(time.perf_counter() - begun)

    gc.callbacks.append(watch)
    try:
        for step in range(2 * GC_EVERY):
            struck.training_begins(step)
            model(torch.zeros(1, 4, dtype=torch.int64))
    finally:
        gc.callbacks.remove(watch)
        gc.unfreeze()
    assert len([pause for pause in pauses if pause >= 0.02]) == 2


def test_without_faults_nothing_is_changed() -> None:
    model = transformer()
    none = Injection([], job(), Alone(model))
    none.input_begins()
    none.training_begins(0)
    assert isinstance(none.slowing(), nullcontext)
    assert not any(item._forward_pre_hooks for item in model.modules())
