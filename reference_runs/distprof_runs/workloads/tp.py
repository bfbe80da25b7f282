"""Tensor parallelism: every rank works on the same tokens, with its share of each block's weights.

:mod:`distprof_runs.workloads.tensor_parallel` describes the traffic. All of it is on the critical
path.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor, nn
from torch.distributed.tensor.parallel import loss_parallel

from distprof_runs.model_parallel_options import TpOptions
from distprof_runs.options import ModelOptions, TrainingOptions, WorkloadOptions
from distprof_runs.workloads.model import Transformer, initialise, loss_of
from distprof_runs.workloads.sleep import add_sleep
from distprof_runs.workloads.tensor_parallel import apply_tensor_parallel, reduce_partial_gradients
from distprof_runs.workloads.trainer_parts import (
    accumulate,
    autocast,
    checkpoint_blocks,
    clip_gradients,
    local_part,
    make_optimizer,
    to_device,
)
from distprof_runs.workloads.workload import Batch, Job, Phases


class TpTrainer:
    """One tensor-parallel rank."""

    data_index = 0  # all ranks train on the same tokens
    num_data_parts = 1

    def __init__(
        self, job: Job, model: ModelOptions, training: TrainingOptions, options: TpOptions
    ) -> None:
        self._job, self._training, self._options = job, training, options
        self._mesh = job.mesh["tp"]
        self._model = Transformer(model)
        initialise(self._model, training.seed)
        self._model.to(job.device)
        apply_tensor_parallel(
            self._model,
            self._mesh,
            sequence_parallel=options.sequence_parallel,
            loss_parallel=options.loss_parallel,
        )
        add_sleep(self._model, training)
        if training.checkpoint_activations:
            checkpoint_blocks(self._model)
        self._optimizer = make_optimizer(self._model.parameters(), training, job.device)

    @property
    def modules(self) -> Sequence[nn.Module]:
        """The model."""
        return [self._model]

    def train_step(self, micro_batches: Sequence[Batch], phases: Phases) -> Tensor | None:
        """Forward and backward of each micro-batch, then the update. Every rank has the loss."""
        with self._loss_context():
            loss = accumulate(micro_batches, phases, self._losses)
        with phases.phase("optimizer"):
            if not self._options.partial_norm_gradients:
                reduce_partial_gradients(self._model.parameters())
            clip_gradients(
                self._model.parameters(),
                self._training.clip_grad_norm,
                group=self._mesh.get_group(),
            )
            self._optimizer.step()
            self._optimizer.zero_grad()
        return local_part(loss)

    def _losses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        here = to_device(batch, self._job.device)
        with autocast(self._job):
            loss = loss_of(self._model(here.tokens), here.targets)
        return loss, loss

    def _loss_context(self) -> AbstractContextManager[None]:
        return loss_parallel() if self._options.loss_parallel else nullcontext()


def build(
    job: Job, model: ModelOptions, training: TrainingOptions, options: WorkloadOptions
) -> TpTrainer:
    """The trainer of ``tp``; see :func:`distprof_runs.workloads.workload.build`."""
    if not isinstance(options, TpOptions):
        raise TypeError(f"options of tp are needed, not {type(options).__name__}")
    return TpTrainer(job, model, training, options)
