"""Context parallelism: every rank holds all weights and a share of each sequence.

Only attention looks beyond a rank's own tokens: keys and values travel around a ring, or heads are
exchanged for tokens (:mod:`distprof_runs.workloads.sequence_attention`). DistributedDataParallel
averages the gradients over the ranks, because each minimises the mean loss of its own tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from distprof_runs.model_parallel_options import CpOptions
from distprof_runs.options import ModelOptions, TrainingOptions, WorkloadOptions
from distprof_runs.workloads.model import Attend, Attention, Transformer, initialise, loss_of
from distprof_runs.workloads.sequence_attention import (
    RingAttention,
    UlyssesAttention,
    local_positions,
)
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


class CpTrainer:
    """One context-parallel rank."""

    data_index = 0  # all ranks share the same sequences
    num_data_parts = 1

    def __init__(
        self, job: Job, model: ModelOptions, training: TrainingOptions, options: CpOptions
    ) -> None:
        self._job, self._training = job, training
        group = job.mesh.get_group("cp")
        zigzag = options.method == "ring" and options.zigzag
        self._positions = local_positions(
            model.sequence, group.rank(), group.size(), zigzag=zigzag
        ).to(job.device)
        self._model = Transformer(model)
        initialise(self._model, training.seed)
        self._model.to(job.device)
        attend: Attend = (
            UlyssesAttention(group)
            if options.method == "ulysses"
            else RingAttention(group, zigzag=zigzag)
        )
        for module in self._model.modules():
            if isinstance(module, Attention):
                module.attend = attend
        add_sleep(self._model, training)
        if training.checkpoint_activations:
            checkpoint_blocks(self._model)
        self._replicated = DistributedDataParallel(
            self._model, process_group=group, gradient_as_bucket_view=True
        )
        self._optimizer = make_optimizer(self._model.parameters(), training, job.device)

    @property
    def modules(self) -> Sequence[nn.Module]:
        """The model."""
        return [self._model]

    def train_step(self, micro_batches: Sequence[Batch], phases: Phases) -> Tensor | None:
        """Forward and backward of each micro-batch, then the update. The loss is of own tokens."""
        loss = accumulate(micro_batches, phases, self._losses, self._replicated.no_sync)
        with phases.phase("optimizer"):
            clip_gradients(self._model.parameters(), self._training.clip_grad_norm)
            self._optimizer.step()
            self._optimizer.zero_grad()
        return loss

    def _losses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        here = to_device(batch, self._job.device)
        tokens, targets = (x.index_select(1, self._positions) for x in (here.tokens, here.targets))
        with autocast(self._job):
            loss = loss_of(self._replicated(tokens, self._positions), targets)
        return loss, loss


def build(
    job: Job, model: ModelOptions, training: TrainingOptions, options: WorkloadOptions
) -> CpTrainer:
    """The trainer of ``cp``; see :func:`distprof_runs.workloads.workload.build`."""
    if not isinstance(options, CpOptions):
        raise TypeError(f"options of cp are needed, not {type(options).__name__}")
    return CpTrainer(job, model, training, options)
