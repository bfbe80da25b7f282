"""Synthetic tokens: the same for everyone who asks for the same part."""

from __future__ import annotations

import itertools

import torch
from distprof_runs.options import ModelOptions
from distprof_runs.workloads.data import make_batch
from distprof_runs.workloads.workload import Batch

MODEL = ModelOptions(sequence=16, vocabulary=50).resolved()


def batch(**changes: int) -> Batch:
    chosen = {"batch": 3, "seed": 0, "step": 0, "part": 0, "micro_batch": 0, **changes}
    return make_batch(MODEL, **chosen)


def test_targets_are_the_next_tokens() -> None:
    made = batch()
    assert made.tokens.shape == made.targets.shape == (3, 16)
    assert torch.equal(made.tokens[:, 1:], made.targets[:, :-1])
    assert made.tokens.dtype == torch.int64
    assert 0 <= made.tokens.min() <= made.tokens.max() < 50


def test_the_same_question_has_the_same_answer() -> None:
    torch.manual_seed(1)
    first = batch(step=4, part=2)
    torch.manual_seed(2)
    assert torch.equal(batch(step=4, part=2).tokens, first.tokens)


def test_steps_parts_micro_batches_and_seeds_all_differ() -> None:
    made = [
        batch(**{name: value}).tokens
        for name in ("seed", "step", "part", "micro_batch")
        for value in (1, 2, 3)
    ]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations([*made, batch().tokens], 2))
