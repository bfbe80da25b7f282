"""Several kinds of parallelism at once on a mesh: PP × DP × FSDP × TP, experts over FSDP ranks.

Each axis works as in its own workload: blocks are split by tensor parallelism first, then sharded
(fully_shard; with replicas, hybrid sharding), then assigned to pipeline stages. Replicas without
sharding average their gradients once per step. Weights stay gathered during a step (ZeRO-2),
because a pipeline would otherwise gather them for every micro-batch.

With ``--ep`` the experts of a layer are spread over the sharding ranks instead of being sharded.
Tensor-parallel ranks each have a rank's experts whole and give them the same tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from distprof_runs.model_parallel_options import ThreeDOptions
from distprof_runs.options import ModelOptions, TrainingOptions, WorkloadOptions
from distprof_runs.workloads.model import loss_of
from distprof_runs.workloads.pipeline_stages import Pipeline
from distprof_runs.workloads.tensor_parallel import MeshPart
from distprof_runs.workloads.trainer_parts import (
    accumulate,
    autocast,
    average_gradients,
    clip_gradients,
    local_part,
    make_optimizer,
    shards_of,
    to_device,
)
from distprof_runs.workloads.workload import Batch, Job, Phases


class ThreeDTrainer:
    """One rank of the mesh."""

    def __init__(
        self, job: Job, model: ModelOptions, training: TrainingOptions, options: ThreeDOptions
    ) -> None:
        self._job, self._training, self._options = job, training, options
        self._maker = MeshPart(job, model, training, options)
        self._pipeline: Pipeline | None = None
        if options.pp > 1:
            plan = options.plan(model, training)
            group = job.mesh.get_group("pp")
            self._pipeline = Pipeline(job, model, training, plan, group, self._maker.make)
            self._parts = self._pipeline.parts
        else:
            self._parts = [self._maker.make(0, model.layers)]
        self._parameters = [weight for part in self._parts for weight in part.parameters()]
        self._optimizer = make_optimizer(self._parameters, training, job.device)

    @property
    def modules(self) -> Sequence[nn.Module]:
        """The stages of this rank, or the model."""
        return self._parts

    @property
    def data_index(self) -> int:
        """Replica and shard of this rank; stages and tensor-parallel ranks share tokens."""
        shards = self._maker.size("dp_shard")
        return self._job.axis("dp_replicate") * shards + self._job.axis("dp_shard")

    @property
    def num_data_parts(self) -> int:
        """Replicas times shards."""
        return self._maker.size("dp_replicate") * self._maker.size("dp_shard")

    def train_step(self, micro_batches: Sequence[Batch], phases: Phases) -> Tensor | None:
        """All micro-batches, then the update. Ranks with the last stage have the loss."""
        if self._pipeline is not None:
            with phases.phase("pipeline"):
                loss = self._pipeline.step(micro_batches)
        else:
            loss = accumulate(micro_batches, phases, self._losses, self._unsynchronised)
        with phases.phase("optimizer"):
            self._average_what_is_left()
            clip_gradients(
                self._parameters,
                self._training.clip_grad_norm,
                group=dist.group.WORLD,
                parts=self._spread,
            )
            self._optimizer.step()
            self._optimizer.zero_grad()
        return loss

    def _losses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        here = to_device(batch, self._job.device)
        with autocast(self._job):
            loss = loss_of(self._parts[0](here.tokens), here.targets)
        return loss, loss

    @contextmanager
    def _unsynchronised(self) -> Iterator[None]:
        """Keep gradients and gathered weights for the next micro-batch."""
        sharded = [part for part in self._parts if isinstance(part, FSDPModule)]
        for part in sharded:
            part.set_requires_gradient_sync(False)
            part.set_reshard_after_backward(False)
        try:
            yield
        finally:
            for part in sharded:
                part.set_requires_gradient_sync(True)
                part.set_reshard_after_backward(True)

    def _average_what_is_left(self) -> None:
        """Average gradients that fully_shard does not reduce: all without it, else the experts'."""
        own_experts = self._maker.own_experts
        left = own_experts if self._options.fsdp > 1 else self._parameters
        if self._options.dp > 1:
            average_gradients(left, self._job.mesh.get_group("dp_replicate"))
        for weight in own_experts:
            if weight.grad is not None:  # a sum over the tokens of all sharding ranks
                local_part(weight.grad).div_(self._maker.size("dp_shard"))

    def _spread(self, weight: nn.Parameter) -> int:
        is_own = any(weight is expert for expert in self._maker.own_experts)
        own = self._maker.size("dp_shard") if is_own else 1
        return self._options.pp * own * shards_of(weight)


def build(
    job: Job, model: ModelOptions, training: TrainingOptions, options: WorkloadOptions
) -> ThreeDTrainer:
    """The trainer of ``3d``; see :func:`distprof_runs.workloads.workload.build`."""
    if not isinstance(options, ThreeDOptions):
        raise TypeError(f"options of 3d are needed, not {type(options).__name__}")
    return ThreeDTrainer(job, model, training, options)
