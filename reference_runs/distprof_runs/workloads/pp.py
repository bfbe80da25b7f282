"""Pipeline parallelism: each rank has some of the blocks; micro-batches flow through the ranks.

Traffic is small (:mod:`distprof_runs.workloads.pipeline_stages`). The cost is waiting, because the
pipeline fills and drains once per step. ``--compute sleep`` shows the exact bubble of each
schedule.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from distprof_runs.model_parallel_options import PpOptions
from distprof_runs.options import ModelOptions, TrainingOptions, WorkloadOptions
from distprof_runs.workloads.model import Transformer, initialise
from distprof_runs.workloads.pipeline_stages import Pipeline, widen_inputs
from distprof_runs.workloads.sleep import make_blocks_sleep
from distprof_runs.workloads.trainer_parts import checkpoint_blocks, clip_gradients, make_optimizer
from distprof_runs.workloads.workload import Batch, Job, Phases


class PpTrainer:
    """One pipeline rank."""

    data_index = 0  # the same micro-batches pass through all ranks
    num_data_parts = 1

    def __init__(
        self, job: Job, model: ModelOptions, training: TrainingOptions, options: PpOptions
    ) -> None:
        self._training = training
        self._group = job.mesh.get_group("pp")
        plan = options.plan(model, training, self._group.size())

        def make_part(first: int, count: int) -> Transformer:
            part = Transformer(model, first=first, count=count)
            make_blocks_sleep(part, training)
            initialise(part, training.seed)
            if training.checkpoint_activations:
                checkpoint_blocks(part)
            widen_inputs(part)
            return part.to(job.device)

        self._pipeline = Pipeline(job, model, training, plan, self._group, make_part)
        self._optimizer = make_optimizer(self._pipeline.parameters(), training, job.device)

    @property
    def modules(self) -> Sequence[nn.Module]:
        """The stages of this rank."""
        return self._pipeline.parts

    def train_step(self, micro_batches: Sequence[Batch], phases: Phases) -> Tensor | None:
        """All micro-batches through the pipeline, then the update.

        The rank with the last stage has the loss. Forward and backward alternate within the phase
        ``pipeline``.
        """
        with phases.phase("pipeline"):
            loss = self._pipeline.step(micro_batches)
        with phases.phase("optimizer"):
            clip_gradients(
                self._pipeline.parameters(),
                self._training.clip_grad_norm,
                group=self._group,
                parts=lambda _: self._group.size(),  # each rank has its own weights
            )
            self._optimizer.step()
            self._optimizer.zero_grad()
        return loss


def build(
    job: Job, model: ModelOptions, training: TrainingOptions, options: WorkloadOptions
) -> PpTrainer:
    """The trainer of ``pp``; see :func:`distprof_runs.workloads.workload.build`."""
    if not isinstance(options, PpOptions):
        raise TypeError(f"options of pp are needed, not {type(options).__name__}")
    return PpTrainer(job, model, training, options)
