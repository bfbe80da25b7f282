"""The same training in one process, with which every parallel run must agree.

The global batch is processed part by part, as data-parallel ranks would share it, so that
quantities that depend on a rank's own tokens (a router's load-balancing loss, an expert's capacity)
are the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from distprof_runs.options import ModelOptions, TrainingOptions
from distprof_runs.workloads.data import make_batch
from distprof_runs.workloads.model import (
    MixtureOfExperts,
    MoeSettings,
    Transformer,
    initialise,
    loss_of,
)
from distprof_runs.workloads.trainer_parts import clip_gradients, make_optimizer
from distprof_runs.workloads.workload import Batch


def batches_of(
    model: ModelOptions, training: TrainingOptions, *, step: int, part: int
) -> list[Batch]:
    """The micro-batches of one step for one part of the global batch, on the CPU."""
    return [
        make_batch(
            model,
            batch=training.batch,
            seed=training.seed,
            step=step,
            part=part,
            micro_batch=index,
        )
        for index in range(training.micro_batches)
    ]


def losses_alone(
    model: ModelOptions,
    training: TrainingOptions,
    *,
    num_data_parts: int,
    moe: MoeSettings | None = None,
    aux_loss_weight: float = 0.0,
) -> list[float]:
    """Mean cross-entropy of each step, in float32 on the CPU.

    Args:
        model: Resolved sizes.
        training: Common options; precision and device are not used.
        num_data_parts: The same as for the trainer of the parallel run.
        moe: Routing of mixture-of-experts blocks.
        aux_loss_weight: Weight of the load-balancing loss, which is also minimised but not
            reported.
    """
    transformer = Transformer(model, moe)
    initialise(transformer, training.seed)
    optimizer = make_optimizer(transformer.parameters(), training, torch.device("cpu"))
    losses = []
    for step in range(training.steps):
        batches = [
            batch
            for part in range(num_data_parts)
            for batch in batches_of(model, training, step=step, part=part)
        ]
        losses.append(_accumulate(transformer, batches, aux_loss_weight))
        clip_gradients(transformer.parameters(), training.clip_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
    return losses


def _accumulate(transformer: Transformer, batches: list[Batch], aux_loss_weight: float) -> float:
    total = 0.0
    for batch in batches:
        loss = loss_of(transformer(batch.tokens), batch.targets)
        objective = loss + aux_loss_weight * _aux_loss(transformer)
        (objective / len(batches)).backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    return total / len(batches)


def _aux_loss(transformer: Transformer) -> Tensor:
    losses = [
        layer.aux_loss
        for layer in transformer.modules()
        if isinstance(layer, MixtureOfExperts) and layer.aux_loss is not None
    ]
    return torch.stack(losses).sum() if losses else torch.zeros(())
