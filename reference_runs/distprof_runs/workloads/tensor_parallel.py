"""Tensor parallelism of the transformer's dense blocks, applied from outside.

Plain: heads and inner feed-forward units are split. Each block makes two all-reduces of its
activation forward (after ``wo`` and ``w2``) and two backward (before the queries, keys and values,
and before ``w1`` and ``w3``, whose input gradients are first added on each rank): four per block
and micro-batch, as in Shoeybi et al. 2019, "Megatron-LM". Embedding and output are whole on every
rank. Recomputed activations add one more: recomputation stops before the last.

Sequence parallel (Korthikanti et al. 2022): norms and residuals keep a share of the sequence, and
each all-reduce becomes an all-gather and a reduce-scatter. Outside the blocks, the embedding's
gradient is gathered once and the output's input once.

Loss parallel: the output is split along the vocabulary. Three small all-reduces replace logits in
full; the output's input gradient is summed over the ranks (all-reduce; with sequence parallelism a
reduce-scatter).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from distprof_runs.model_parallel_options import ThreeDOptions
from distprof_runs.options import ModelOptions, TrainingOptions
from distprof_runs.workloads.expert_exchange import apply_expert_parallel, expert_parameters
from distprof_runs.workloads.model import FeedForward, MoeSettings, Transformer, initialise
from distprof_runs.workloads.pipeline_stages import widen_inputs
from distprof_runs.workloads.sleep import add_sleep, make_blocks_sleep
from distprof_runs.workloads.trainer_parts import checkpoint_blocks
from distprof_runs.workloads.workload import Job


def apply_tensor_parallel(
    model: Transformer,
    mesh: DeviceMesh,
    *,
    sequence_parallel: bool = False,
    loss_parallel: bool = False,
) -> None:
    """Split the blocks (mixtures of experts stay whole), in place.

    Args:
        model: The whole transformer or a pipeline stage of it.
        mesh: One axis, whose size divides heads, key/value heads and the inner feed-forward size.
        sequence_parallel: See the module.
        loss_parallel: See the module; logits come out as a DTensor.
    """
    for block in model.blocks.values():
        parallelize_module(block, mesh, _block_plan(block, sequence_parallel))
    if sequence_parallel:
        parallelize_module(model, mesh, _ends_of_sequence(model))
    if loss_parallel and model.output is not None:
        layout = Shard(1) if sequence_parallel else Replicate()
        style = ColwiseParallel(
            input_layouts=layout, output_layouts=Shard(-1), use_local_output=False
        )
        parallelize_module(model.output, mesh, style)
    elif sequence_parallel and model.output is not None:
        whole = PrepareModuleInput(
            input_layouts=Shard(1), desired_input_layouts=Replicate(), use_local_output=True
        )
        parallelize_module(model.output, mesh, whole)


def _block_plan(block: nn.Module, sequence_parallel: bool) -> dict[str, ParallelStyle]:
    """One redistribution at the input of each half, so that its gradients are summed once."""
    outside = Shard(1) if sequence_parallel else Replicate()
    plan: dict[str, ParallelStyle] = {
        "attention": PrepareModuleInput(
            input_layouts=(outside, None), desired_input_layouts=(Replicate(), None)
        ),
        "attention.wq": ColwiseParallel(),
        "attention.wk": ColwiseParallel(),
        "attention.wv": ColwiseParallel(),
        "attention.wo": RowwiseParallel(output_layouts=outside),
    }
    if isinstance(block.feed_forward, FeedForward):
        plan |= {
            "feed_forward": PrepareModuleInput(
                input_layouts=(outside,), desired_input_layouts=(Replicate(),)
            ),
            "feed_forward.w1": ColwiseParallel(),
            "feed_forward.w3": ColwiseParallel(),
            "feed_forward.w2": RowwiseParallel(output_layouts=outside),
        }
    if sequence_parallel:
        plan |= {"attention_norm": SequenceParallel(), "ffn_norm": SequenceParallel()}
    return plan


def _ends_of_sequence(model: Transformer) -> dict[str, ParallelStyle]:
    """Start and end of the split along the sequence."""
    plan: dict[str, ParallelStyle] = {}
    if model.embedding is not None:
        plan["embedding"] = PrepareModuleOutput(
            output_layouts=Replicate(), desired_output_layouts=Shard(1)
        )
    if model.norm is not None:
        plan["norm"] = SequenceParallel()
    return plan


def reduce_partial_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Sum gradients that each rank has for its share of tokens, in one all-reduce.

    With sequence parallelism a norm sees a share of the tokens. Otherwise, its gradients would be
    reduced inside the optimizer, each of them several times.
    """
    found: list[tuple[nn.Parameter, Tensor, DeviceMesh]] = []
    for weight in parameters:
        gradient = weight.grad
        if isinstance(gradient, DTensor) and any(
            isinstance(placement, Partial) for placement in gradient.placements
        ):
            found.append((weight, gradient.to_local(), gradient.device_mesh))
    if not found:
        return
    flat = torch.cat([local.flatten() for _, local, _ in found])
    dist.all_reduce(flat, group=found[0][2].get_group())
    pieces = torch.split(flat, [local.numel() for _, local, _ in found])
    for (weight, local, mesh), piece in zip(found, pieces, strict=True):
        whole = DTensor.from_local(piece.view_as(local), mesh, [Replicate()], run_check=False)
        weight.grad = whole


# A part of the transformer, split and sharded over the axes of a mesh ----------------------------


class MeshPart:
    """Makes this rank's share of consecutive blocks."""

    def __init__(
        self, job: Job, model: ModelOptions, training: TrainingOptions, options: ThreeDOptions
    ) -> None:
        self._job, self._model, self._training, self._options = job, model, training, options
        names = job.mesh.mesh_dim_names or ()
        self._sizes = dict(zip(names, job.mesh.shape, strict=True))
        # Parameters that are spread over ranks but not sharded, in the same order on each rank.
        self.own_experts: list[nn.Parameter] = []

    def size(self, axis: str) -> int:
        """Ranks along a mesh axis; 1 if the mesh lacks it."""
        return self._sizes.get(axis, 1)

    def make(self, first: int, count: int) -> Transformer:
        """The part with ``count`` blocks, from block ``first`` of the model on."""
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
