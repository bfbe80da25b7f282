"""Injects the faults that :mod:`distprof_runs.faults.orders` describes into one rank."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import prod

from torch import nn

from distprof.artefacts.run_file import Fault
from distprof_runs.faults.slowdown import Slowdown
from distprof_runs.workloads.model import Block, Router
from distprof_runs.workloads.sleep import SleepBlock, Sleeper
from distprof_runs.workloads.workload import Job, Trainer

GC_EVERY = 3
"""A ``gc-pause`` happens once in this many steps."""


class Injection:
    """The faults of this rank. Without faults, this changes nothing.

    The trainer's modules get the hooks of the faults.
    """

    def __init__(self, faults: Sequence[Fault], job: Job, trainer: Trainer) -> None:
        self._mine = [fault for fault in faults if _strikes(fault, job)]
        self._step = 0
        blocks = _blocks(trainer.modules)
        self._slow_down(blocks)
        self._delay_blocks(blocks)
        for fault in self._of("routing-skew"):
            _skew_routers(trainer.modules, fault)

    def input_begins(self) -> None:
        """The data loader is about to deliver."""
        _pause(self._amount("late-input"))

    def training_begins(self, step: int) -> None:
        """The input has arrived, and the forward pass is about to start."""
        self._step = step
        _pause(self._amount("sleep-rank"))
        if any(fault.amount == step for fault in self._of("dead-rank")):
            os.kill(os.getpid(), signal.SIGKILL)
        if any(fault.amount == step for fault in self._of("hang-rank")):
            hang_on_purpose()

    def slowing(self) -> AbstractContextManager[object]:
        """Context of a step's computation."""
        return nullcontext() if self._slowdown is None else self._slowdown

    def _of(self, *kinds: str) -> list[Fault]:
        return [fault for fault in self._mine if fault.kind in kinds]

    def _amount(self, kind: str) -> float:
        return sum(fault.amount for fault in self._of(kind))

    def _slow_down(self, blocks: Sequence[nn.Module]) -> None:
        factor, work = (
            prod(fault.amount for fault in self._of(kind)) for kind in ("slow-rank", "stage-skew")
        )
        self._slowdown = Slowdown(factor, work=work) if factor > 1 or work > 1 else None
        for block in blocks:
            sleeper = getattr(block, "sleeper", None)
            if isinstance(sleeper, Sleeper):
                sleeper.slowdown *= factor * work

    def _delay_blocks(self, blocks: Sequence[nn.Module]) -> None:
        delay_ms, collection_ms = self._amount("slow-host"), self._amount("gc-pause")
        if delay_ms:
            for block in blocks:
                block.register_forward_pre_hook(_before(lambda: _pause(delay_ms)))
        if collection_ms and blocks:
            gc.collect()
            gc.freeze()  # so that torch's modules do not add to the time of a collection
            block = blocks[len(blocks) // 2]
            block.register_forward_pre_hook(_before(lambda: self._collect(collection_ms)))

    def _collect(self, milliseconds: float) -> None:
        if self._step % GC_EVERY == GC_EVERY - 1:
            Garbage(milliseconds)
            gc.collect()


class Garbage:
    """Refers to itself, so that only the collector frees it, and is slow to delete."""

    def __init__(self, milliseconds: float) -> None:
        self._seconds = milliseconds / 1e3
        self._itself = self

    def __del__(self) -> None:
        end = time.perf_counter() + self._seconds
        while time.perf_counter() < end:
            pass


def hang_on_purpose() -> None:
    """Never return. The name explains the hang to readers of the stack."""
    while True:
        time.sleep(3600)


def _strikes(fault: Fault, job: Job) -> bool:
    if fault.kind == "stage-skew":
        return fault.target in (None, job.axis("pp"))
    if fault.kind == "routing-skew":
        return True
    return fault.target in (None, job.rank)


def _blocks(modules: Sequence[nn.Module]) -> list[nn.Module]:
    return [
        child
        for module in modules
        for child in module.modules()
        if isinstance(child, Block | SleepBlock)
    ]


def _skew_routers(modules: Sequence[nn.Module], fault: Fault) -> None:
    for module in modules:
        for router in module.modules():
            if isinstance(router, Router) and fault.target is not None:
                router.bias[fault.target] += fault.amount


def _before(action: Callable[[], None]) -> Callable[[nn.Module, object], None]:
    """A forward pre-hook that calls ``action``."""

    def hook(module: nn.Module, inputs: object) -> None:  # noqa: ARG001  # as torch wants it
        action()

    return hook


def _pause(milliseconds: float) -> None:
    if milliseconds:
        time.sleep(milliseconds / 1e3)
