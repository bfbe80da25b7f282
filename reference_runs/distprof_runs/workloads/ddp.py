"""DistributedDataParallel: each rank has the whole model and its own part of the batch.

Gradients are all-reduced in buckets during backward: 2(P-1)/P · N · bytes per step and rank,
overlapped with backward as far as buckets allow. Weights, and so gradients, stay float32 under bf16
autocast.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from distprof_runs.options import DdpOptions, ModelOptions, TrainingOptions, WorkloadOptions
from distprof_runs.workloads.gradient_hooks import (
    TopKState,
    bf16_hook,
    ordered_powersgd_hook,
    topk_hook,
)
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
from distprof_runs.workloads.workload import Batch, Job, Phases


def replicate(
    job: Job, model: ModelOptions, training: TrainingOptions, options: DdpOptions
) -> DistributedDataParallel:
    """The model, the same on each rank, wrapped.

    The mesh has the axis ``dp_replicate``.
    """
    transformer = Transformer(model)
    make_blocks_sleep(transformer, training)
    initialise(transformer, training.seed)
    transformer.to(job.device)
    if training.checkpoint_activations:
        checkpoint_blocks(transformer)
    return DistributedDataParallel(
        transformer,
        device_ids=[job.device.index] if job.device.type == "cuda" else None,
        process_group=job.mesh.get_group("dp_replicate"),
        bucket_cap_mb=options.bucket_mb,
        gradient_as_bucket_view=True,
        static_graph=options.static_graph,
        find_unused_parameters=options.find_unused,
    )


class DdpTrainer:
    """One replica."""

    def __init__(
        self, job: Job, model: ModelOptions, training: TrainingOptions, options: DdpOptions
    ) -> None:
        self._job, self._training, self._options = job, training, options
        self._ddp = replicate(job, model, training, options)
        _register_hook(self._ddp, job, options)
        self._optimizer = make_optimizer(self._ddp.parameters(), training, job.device)
        # torch learns a static graph in the first step, which therefore has to reduce gradients.
        self._learns_graph = options.static_graph

    @property
    def modules(self) -> Sequence[nn.Module]:
        """The model."""
        return [self._ddp]

    @property
    def data_index(self) -> int:
        """One part for each replica."""
        return self._job.axis("dp_replicate")

    @property
    def num_data_parts(self) -> int:
        """Number of replicas."""
        return self._job.world_size

    def train_step(self, micro_batches: Sequence[Batch], phases: Phases) -> Tensor | None:
        """Forward and backward of each micro-batch, then the update."""
        if self._options.no_sync and not self._learns_graph:
            loss = accumulate(micro_batches, phases, self._losses, self._ddp.no_sync)
        else:
            loss = accumulate(micro_batches, phases, self._losses)
        self._learns_graph = False
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


def _register_hook(ddp: DistributedDataParallel, job: Job, options: DdpOptions) -> None:
    group = job.mesh.get_group("dp_replicate")
    if options.hook == "fp16":
        ddp.register_comm_hook(group, default_hooks.fp16_compress_hook)
    elif options.hook == "bf16":
        ddp.register_comm_hook(group, bf16_hook)
    elif options.hook == "topk":
        ddp.register_comm_hook(TopKState(group, options.topk_ratio), topk_hook)
    elif options.hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(group, start_powerSGD_iter=2)
        is_ordered = dist.get_backend(group) != "gloo"
        hook = powerSGD_hook.powerSGD_hook if is_ordered else ordered_powersgd_hook
        ddp.register_comm_hook(state, hook)


def build(
    job: Job, model: ModelOptions, training: TrainingOptions, options: WorkloadOptions
) -> DdpTrainer:
    """The trainer of this rank."""
    if not isinstance(options, DdpOptions):
        raise TypeError(f"DdpOptions are expected, not {type(options).__name__}")
    return DdpTrainer(job, model, training, options)
