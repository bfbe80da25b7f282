"""A part of the transformer, split and sharded over the axes of a mesh."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from distprof_runs.expert_exchange import apply_expert_parallel, expert_parameters
from distprof_runs.model import MoeSettings, Transformer, initialise
from distprof_runs.model_parallel_options import ThreeDOptions
from distprof_runs.options import ModelOptions, TrainingOptions
from distprof_runs.pipeline_stages import widen_inputs
from distprof_runs.sleep import add_sleep, make_blocks_sleep
from distprof_runs.tensor_parallel import apply_tensor_parallel
from distprof_runs.trainer_parts import checkpoint_blocks
from distprof_runs.workload import Job

__all__ = ["MeshPart"]


class MeshPart:
    """Makes this rank's share of consecutive blocks.

    Args:
        job: This rank's place.
        model: Resolved sizes.
        training: Common options.
        options: Of the mesh.
    """

    def __init__(
        self, job: Job, model: ModelOptions, training: TrainingOptions, options: ThreeDOptions
    ) -> None:
        self._job, self._model, self._training, self._options = job, model, training, options
        names = job.mesh.mesh_dim_names or ()
        self._sizes = dict(zip(names, job.mesh.shape, strict=True))
        # Parameters spread over ranks, not sharded; in the same order on each rank.
        self.own_experts: list[nn.Parameter] = []

    def size(self, axis: str) -> int:
        """Ranks along a mesh axis; 1 if the mesh lacks it."""
        return self._sizes.get(axis, 1)

    def make(self, first: int, count: int) -> Transformer:
        """The part with these blocks.

        Args:
            first: Index of the first block in the model.
            count: Number of blocks.
        """
        part = Transformer(self._model, self._moe(), first=first, count=count)
        has_inner_collectives = self._options.tp > 1 or self._options.experts
        if not has_inner_collectives:
            make_blocks_sleep(part, self._training)
        initialise(part, self._training.seed)
        if self._options.ep > 1:
            apply_expert_parallel(part, self._job.mesh.get_group("dp_shard"), self._job.dtype)
            self.own_experts += expert_parameters(part)
        part.to(self._job.device)
        if self._options.tp > 1:
            apply_tensor_parallel(part, self._job.mesh["tp"])
        if has_inner_collectives:
            add_sleep(part, self._training)
        if self._training.checkpoint_activations:
            checkpoint_blocks(part)
        if self.size("dp_shard") > 1:
            self._shard(part)
        else:
            widen_inputs(part)
        return part

    def _moe(self) -> MoeSettings | None:
        if not self._options.experts:
            return None
        return MoeSettings(experts=self._options.experts, top_k=self._options.top_k)

    def _shard(self, part: Transformer) -> None:
        policy = MixedPrecisionPolicy()
        if self._job.dtype != torch.float32:
            policy = MixedPrecisionPolicy(param_dtype=self._job.dtype, reduce_dtype=self._job.dtype)
        for module in (*part.blocks.values(), part):
            fully_shard(
                module,
                mesh=self._data_mesh(),
                reshard_after_forward=False,
                mp_policy=policy,
                ignored_params=set(self.own_experts),
            )

    def _data_mesh(self) -> DeviceMesh:
        if self.size("dp_replicate") > 1:
            return self._job.mesh["dp_replicate", "dp_shard"]
        return self._job.mesh["dp_shard"]
