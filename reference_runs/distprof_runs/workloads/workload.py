"""The interface of a workload: a function that builds one rank's share of a parallel training."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from distprof_runs.options import ModelOptions, TrainingOptions, WorkloadOptions
from distprof_runs.registry import WORKLOADS


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One micro-batch of this rank."""

    tokens: Tensor  # int64, shape ``(batch, sequence)``.
    targets: Tensor  # int64, shape ``(batch, sequence)``: the next token of each.


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A rank's job."""

    rank: int  # Global rank.
    world_size: int  # Ranks of the job.
    local_rank: int  # Index on this node.
    device: torch.device  # Device on which this rank computes.
    dtype: torch.dtype  # Of computation; weights and optimizer state stay float32.
    timeout: timedelta  # Timeout of collectives; groups that are made later also need it.
    # Device mesh with the axes of ``options.mesh(world_size)``; also for one rank.
    mesh: DeviceMesh

    def axis(self, name: str) -> int:
        """This rank's index along a mesh axis; 0 if the mesh lacks it."""
        names = self.mesh.mesh_dim_names or ()
        return self.mesh.get_local_rank(name) if name in names else 0


class Phases(Protocol):
    """Marks parts of a step, as :class:`distprof_probes.Session` does."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Time inside belongs to ``input``, ``forward``, ``backward`` or ``optimizer``."""
        ...


class Trainer(Protocol):
    """One rank's share of a parallel training."""

    @property
    def modules(self) -> Sequence[nn.Module]:
        """The parts of the model on this rank, in which faults and probes find the blocks."""
        ...

    @property
    def data_index(self) -> int:
        """Index of the part of the global batch that this rank trains on."""
        ...

    @property
    def num_data_parts(self) -> int:
        """Number of parts of the global batch (data-parallel size)."""
        ...

    def train_step(self, micro_batches: Sequence[Batch], phases: Phases) -> Tensor | None:
        """One optimizer update.

        Returns:
            Mean loss over this rank's own tokens, detached; None if this rank has no loss (a
            pipeline's other stages). It needs no collective.
        """
        ...


def build(
    job: Job, model: ModelOptions, training: TrainingOptions, options: WorkloadOptions
) -> Trainer:
    """The trainer of the workload that ``options`` belong to."""
    module = importlib.import_module(WORKLOADS[options.name].module)
    trainer: Trainer = module.build(job, model, training, options)
    return trainer
