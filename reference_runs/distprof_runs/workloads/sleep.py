"""Blocks that sleep for given times: exact ground truth with more ranks than cores.

A block's backward has two halves, one for the gradient of its input and one for those of its
weights. They are two autograd Functions, because a schedule that runs the halves separately (zero
bubble) would run a single Function in both. The first pipeline stage has no input gradient, so
there both halves run together.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from distprof_runs.options import TrainingOptions
from distprof_runs.workloads.model import Transformer


class Sleeper:
    """The times of one block, multiplied by ``slowdown``, which faults set.

    Args:
        training: ``forward_ms`` and ``backward_ms``.
    """

    def __init__(self, training: TrainingOptions) -> None:
        self.forward_ms = training.forward_ms
        self.half_backward_ms = training.backward_ms / 2
        self.slowdown = 1.0

    def sleep(self, milliseconds: float, device: torch.device) -> None:
        """Occupy the device for this time: a CPU rank's thread sleeps, a GPU spins."""
        milliseconds *= self.slowdown
        if device.type == "cuda":
            _spin(int(milliseconds * _cycles_per_ms(device)))
        else:
            time.sleep(milliseconds / 1e3)


def _spin(cycles: int) -> None:
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]  # one thread that counts


@cache
def _cycles_per_ms(device: torch.device) -> float:
    """Measured, because the clock under load differs from the nominal one."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    cycles = 20_000_000
    for _ in range(2):  # the first one wakes the device
        start.record()
        _spin(cycles)
        end.record()
        torch.cuda.synchronize(device)
    return float(cycles / start.elapsed_time(end))


class _ForInput(torch.autograd.Function):
    """Sleeps in forward, and for the input's half of backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sleeper: Sleeper) -> Tensor:
        ctx.sleeper = sleeper
        sleeper.sleep(sleeper.forward_ms, x.device)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.sleeper.sleep(ctx.sleeper.half_backward_ms, gradients[0].device)
        return gradients[0], None


class _ForWeight(torch.autograd.Function):
    """Sleeps for the weights' half of backward."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, sleeper: Sleeper) -> Tensor:
        ctx.sleeper = sleeper
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.sleeper.sleep(ctx.sleeper.half_backward_ms, gradients[0].device)
        return gradients[0], None


class SleepBlock(nn.Module):
    """Replaces a Block: sleeps, and has one small weight, so that collectives exist.

    Args:
        hidden: The weight has shape ``(hidden, hidden)``.
        training: Times.
    """

    def __init__(self, hidden: int, training: TrainingOptions) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden, hidden))
        self.sleeper = Sleeper(training)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:  # noqa: ARG002  # as Block
        """``x`` of shape ``(batch, tokens, hidden)``; the result is a fresh tensor, not a view."""
        weight: Tensor = _ForWeight.apply(self.weight, self.sleeper)  # type: ignore[no-untyped-call]
        slept: Tensor = _ForInput.apply(x, self.sleeper)  # type: ignore[no-untyped-call]
        return slept + weight.mean()


def make_blocks_sleep(model: Transformer, training: TrainingOptions) -> None:
    """Replace each block of ``model``, before sharding, if ``--compute sleep`` was given."""
    if training.compute == "sleep":
        for name in model.blocks:
            model.blocks[name] = SleepBlock(model.options.hidden, training)


def add_sleep(model: Transformer, training: TrainingOptions) -> None:
    """Make each block sleep before its own computation, if ``--compute sleep`` was given.

    This is for parallelism inside blocks, whose own collectives stay. Make the model small, so that
    its own computation is negligible. Both halves of backward run together.
    """
    if training.compute != "sleep":
        return
    for block in model.blocks.values():
        block.sleeper = Sleeper(training)  # type: ignore[assignment]
        block.register_forward_pre_hook(_sleep_first)


def _sleep_first(block: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    twice: Tensor = _WholeBackward.apply(inputs[0], block.sleeper)  # type: ignore[no-untyped-call]
    return (twice, *inputs[1:])


class _WholeBackward(_ForInput):
    """Sleeps in forward, and for all of backward."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.sleeper.sleep(2 * ctx.sleeper.half_backward_ms, gradients[0].device)
        return gradients[0], None
