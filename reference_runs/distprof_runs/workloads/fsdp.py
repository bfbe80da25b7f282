"""Fully sharded data parallelism: each rank keeps its share of weights, gradients and optimizer.

- ZeRO-3: weights are gathered for a block's forward, freed, gathered again for its backward,
  and gradients reduce-scattered: 3(P-1)/P · N · bytes per micro-batch and rank. The root
  (embedding, norm, output) also frees its weights, so the formula holds exactly.
- ZeRO-2: weights stay gathered between forward and backward: 2(P-1)/P · N · bytes.
- HSDP: the same inside each replica, and an all-reduce of the shards across replicas.
- ZeRO-1: DDP with a sharded optimizer; the updated weights are broadcast: 2(P-1)/P · N · 4 bytes
  for gradients, and N · 4 bytes received.

Under bf16 weights and gradients travel in bfloat16 (fully_shard's MixedPrecisionPolicy); the
sharded master weights and the optimizer are float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, distribute_tensor

from distprof_runs.options import (
    DdpOptions,
    FsdpOptions,
    ModelOptions,
    TrainingOptions,
    WorkloadOptions,
)
from distprof_runs.workloads.ddp import replicate
from distprof_runs.workloads.model import Transformer, initialise, loss_of
from distprof_runs.workloads.sleep import make_blocks_sleep
from distprof_runs.workloads.trainer_parts import (
    accumulate,
    autocast,
    checkpoint_blocks,
    clip_gradients,
    make_optimizer,
    to_device,
)
from distprof_runs.workloads.workload import Batch, Job, Phases, Trainer


def shard(
    job: Job, model: ModelOptions, training: TrainingOptions, options: FsdpOptions
) -> Transformer:
    """The model with each block, and the rest, as one sharding group.

    The model is built on torch's meta device and filled block by block, so that no rank ever holds
    the whole model, only a block (and with the first or last block the embedding or output).

    Args:
        job: This rank's place; the mesh has the axis ``dp_shard``, and for HSDP ``dp_replicate``.
        model: Resolved sizes.
        training: Common options.
        options: Of FSDP.
    """
    with torch.device("meta"):
        transformer = Transformer(model)
        make_blocks_sleep(transformer, training)
    if training.checkpoint_activations:
        checkpoint_blocks(transformer)
    policy = MixedPrecisionPolicy()
    if job.dtype != torch.float32:
        policy = MixedPrecisionPolicy(param_dtype=job.dtype, reduce_dtype=job.dtype)
    groups: list[nn.Module] = [] if options.flat else list(transformer.blocks.values())
    for module in [*groups, transformer]:
        fully_shard(
            module, mesh=job.mesh, reshard_after_forward=options.zero == "3", mp_policy=policy
        )
    _plan_prefetch(transformer, groups, options, job)
    transformer.to_empty(device=job.device)
    _fill(transformer, training)
    return transformer


def _plan_prefetch(
    root: nn.Module, blocks: Sequence[nn.Module], options: FsdpOptions, job: Job
) -> None:
    """Choose which weights are gathered early.

    By default fully_shard prefetches in backward. A module that is set to prefetch itself, which is
    already gathered, prefetches nothing.
    """
    order = [module for module in (root, *blocks) if isinstance(module, FSDPModule)]
    for module in order:
        if job.device.type == "cpu":
            # Without streams, gathering overlaps with compute only if it is asynchronous.
            module._set_unshard_async_op(True)
        if not options.prefetch:
            module.set_modules_to_backward_prefetch([module])
    if options.prefetch:
        for module, following in pairwise(order):
            module.set_modules_to_forward_prefetch([following])


def _fill(transformer: Transformer, training: TrainingOptions) -> None:
    """Fill the sharded weights with the values that a single process would use."""
    sharded = dict(transformer.named_parameters())
    for index in range(transformer.options.layers):
        part = Transformer(transformer.options, first=index, count=1)
        make_blocks_sleep(part, training)
        initialise(part, training.seed)
        for name, full in part.named_parameters():
            _assign(sharded[name], full)


def _assign(shards: Tensor, full: Tensor) -> None:
    if not isinstance(shards, DTensor):
        raise TypeError("a weight was not sharded")
    placed = distribute_tensor(
        full.detach().to(shards.device),
        shards.device_mesh,
        shards.placements,
        src_data_rank=None,  # every rank has drawn the whole weight: nothing to send
    )
    with torch.no_grad():
        shards.copy_(placed)


class FsdpTrainer:
    """One rank of ZeRO-2, ZeRO-3 or HSDP."""

    def __init__(
        self, job: Job, model: ModelOptions, training: TrainingOptions, options: FsdpOptions
    ) -> None:
        self._job, self._training, self._options = job, training, options
        self._model = shard(job, model, training, options)
        self._optimizer = make_optimizer(self._model.parameters(), training, job.device)

    @property
    def modules(self) -> Sequence[nn.Module]:
        """The sharded model."""
        return [self._model]

    @property
    def data_index(self) -> int:
        """Each rank has its own part, replica or not."""
        return self._job.rank

    @property
    def num_data_parts(self) -> int:
        """Number of ranks."""
        return self._job.world_size

    def train_step(self, micro_batches: Sequence[Batch], phases: Phases) -> Tensor | None:
        """Forward and backward of each micro-batch, then the update of this rank's shards."""
        if self._options.no_sync:
            loss = accumulate(micro_batches, phases, self._losses, self._unsynchronised)
        else:
            loss = accumulate(micro_batches, phases, self._losses)
        with phases.phase("optimizer"):
            clip_gradients(
                self._model.parameters(),
                self._training.clip_grad_norm,
                group=torch.distributed.group.WORLD,
            )
            self._optimizer.step()
            self._optimizer.zero_grad()
        return loss

    @contextmanager
    def _unsynchronised(self) -> Iterator[None]:
        _root(self._model).set_requires_gradient_sync(False)
        try:
            yield
        finally:
            _root(self._model).set_requires_gradient_sync(True)

    def _losses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        here = to_device(batch, self._job.device)
        loss = loss_of(self._model(here.tokens), here.targets)
        return loss, loss


def _root(model: nn.Module) -> FSDPModule:
    if not isinstance(model, FSDPModule):
        raise TypeError("the model was not sharded")
    return model


class ZeroOneTrainer:
    """One rank of ZeRO-1: whole weights and gradients, a share of the optimizer."""

    def __init__(
        self, job: Job, model: ModelOptions, training: TrainingOptions, options: FsdpOptions
    ) -> None:
        self._job, self._training, self._options = job, training, options
        self._ddp = replicate(job, model, training, DdpOptions())
        self._optimizer = ZeroRedundancyOptimizer(
            self._ddp.parameters(),
            optimizer_class=torch.optim.AdamW,
            process_group=job.mesh.get_group("dp_replicate"),
            parameters_as_bucket_view=True,  # one broadcast per owner, not one per weight
            lr=training.learning_rate,
        )

    @property
    def modules(self) -> Sequence[nn.Module]:
        """The model."""
        return [self._ddp]

    @property
    def data_index(self) -> int:
        """One part for each rank."""
        return self._job.rank

    @property
    def num_data_parts(self) -> int:
        """Number of ranks."""
        return self._job.world_size

    def train_step(self, micro_batches: Sequence[Batch], phases: Phases) -> Tensor | None:
        """Forward and backward of each micro-batch, then the update, shared among ranks."""
        loss = accumulate(micro_batches, phases, self._losses, self._ddp.no_sync)
        with phases.phase("optimizer"):
            clip_gradients(self._ddp.parameters(), self._training.clip_grad_norm)
            self._optimizer.step()
            self._optimizer.zero_grad()
        return loss

    def _losses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        here = to_device(batch, self._job.device)
        with autocast(self._job):
            loss = loss_of(self._ddp(here.tokens), here.targets)
        return loss, loss


def build(
    job: Job, model: ModelOptions, training: TrainingOptions, options: WorkloadOptions
) -> Trainer:
    """The trainer of this rank."""
    if not isinstance(options, FsdpOptions):
        raise TypeError(f"FsdpOptions are expected, not {type(options).__name__}")
    if options.zero == "1":
        return ZeroOneTrainer(job, model, training, options)
    return FsdpTrainer(job, model, training, options)
