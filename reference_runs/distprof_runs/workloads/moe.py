"""Expert parallelism: every rank has its own tokens and its own experts of each layer.

Tokens go to their experts and back by all-to-all (:mod:`distprof_runs.workloads.expert_exchange`).
All other weights are the same on every rank and DistributedDataParallel averages their gradients;
the experts' gradients stay on their rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from distprof_runs.model_parallel_options import MoeOptions
from distprof_runs.options import ModelOptions, TrainingOptions, WorkloadOptions
from distprof_runs.workloads.expert_exchange import (
    apply_expert_parallel,
    expert_parameters,
    moe_layers,
)
from distprof_runs.workloads.model import MoeSettings, Transformer, initialise, loss_of
from distprof_runs.workloads.sleep import add_sleep
from distprof_runs.workloads.trainer_parts import (
    accumulate,
    autocast,
    checkpoint_blocks,
    clip_gradients,
    make_optimizer,
    to_device,
)
from distprof_runs.workloads.workload import Batch, Job, Phases


class MoeTrainer:
    """One expert-parallel rank."""

    def __init__(
        self, job: Job, model: ModelOptions, training: TrainingOptions, options: MoeOptions
    ) -> None:
        self._job, self._training, self._options = job, training, options
        self._group = job.mesh.get_group("ep")
        whole = Transformer(model, _settings(options))
        initialise(whole, training.seed)
        apply_expert_parallel(whole, self._group, job.dtype)
        self._model = whole.to(job.device)
        add_sleep(self._model, training)
        if training.checkpoint_activations:
            checkpoint_blocks(self._model)
        self._experts = set(expert_parameters(self._model))
        self._replicated = self._replicate()
        self._optimizer = make_optimizer(self._model.parameters(), training, job.device)

    @property
    def modules(self) -> Sequence[nn.Module]:
        """The model with this rank's experts."""
        return [self._model]

    @property
    def data_index(self) -> int:
        """Each rank has its own tokens."""
        return self._job.rank

    @property
    def num_data_parts(self) -> int:
        """Number of ranks."""
        return self._job.world_size

    def train_step(self, micro_batches: Sequence[Batch], phases: Phases) -> Tensor | None:
        """Forward and backward of each micro-batch, then the update."""
        loss = accumulate(micro_batches, phases, self._losses, self._replicated.no_sync)
        with phases.phase("optimizer"):
            self._average_expert_gradients()
            clip_gradients(
                self._model.parameters(),
                self._training.clip_grad_norm,
                group=self._group,
                parts=self._parts,
            )
            self._optimizer.step()
            self._optimizer.zero_grad()
        return loss

    def _losses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        here = to_device(batch, self._job.device)
        with autocast(self._job):
            loss = loss_of(self._replicated(here.tokens), here.targets)
        auxiliary = [layer.aux_loss for layer in moe_layers(self._model)]
        total = torch.stack([value for value in auxiliary if value is not None]).sum()
        return loss + self._options.aux_loss_weight * total, loss

    def _replicate(self) -> DistributedDataParallel:
        """DDP over all parameters but those of experts and the router's constant bias."""
        own = [name for name, weight in self._model.named_parameters() if weight in self._experts]
        own += [name for name, _ in self._model.named_buffers()]
        leave_out = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
        leave_out(self._model, own)  # type: ignore[no-untyped-call]
        return DistributedDataParallel(
            self._model, process_group=self._group, gradient_as_bucket_view=True
        )

    def _average_expert_gradients(self) -> None:
        """An expert's gradient is the sum over all ranks' tokens; the loss is their mean."""
        for weight in self._experts:
            if weight.grad is not None:
                weight.grad /= self._group.size()

    def _parts(self, weight: nn.Parameter) -> int:
        return self._group.size() if weight in self._experts else 1


def _settings(options: MoeOptions) -> MoeSettings:
    return MoeSettings(
        experts=options.experts,
        top_k=options.top_k,
        capacity_factor=options.capacity_factor,
        skew=options.skew,
    )


def build(
    job: Job, model: ModelOptions, training: TrainingOptions, options: WorkloadOptions
) -> MoeTrainer:
    """The trainer of ``moe``; see :func:`distprof_runs.workloads.workload.build`."""
    if not isinstance(options, MoeOptions):
        raise TypeError(f"options of moe are needed, not {type(options).__name__}")
    return MoeTrainer(job, model, training, options)
