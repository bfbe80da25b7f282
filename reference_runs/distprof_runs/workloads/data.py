"""Synthetic tokens, the same for a given seed, step and part, for any split of the job."""

from __future__ import annotations

import torch

from distprof_runs.options import ModelOptions
from distprof_runs.workloads.workload import Batch

_STRIDE = 1_000_003  # prime: neighbouring steps and parts get unrelated seeds


def make_batch(
    model: ModelOptions, *, batch: int, seed: int, step: int, part: int, micro_batch: int
) -> Batch:
    """One micro-batch on the CPU, of one part of the global batch."""
    # 32 bits: a CPU generator ignores the others
    generator = torch.Generator().manual_seed(
        ((seed * _STRIDE + step) * _STRIDE + part) * _STRIDE + micro_batch & 0xFFFF_FFFF
    )
    drawn = torch.randint(
        model.vocabulary, (batch, model.sequence + 1), generator=generator, dtype=torch.int64
    )
    return Batch(tokens=drawn[:, :-1].contiguous(), targets=drawn[:, 1:].contiguous())
