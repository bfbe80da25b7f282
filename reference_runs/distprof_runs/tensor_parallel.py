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

from distprof_runs.model import FeedForward, Transformer

__all__ = ["apply_tensor_parallel", "reduce_partial_gradients"]


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
    """One redistribution at the entrance of each half, so that its gradients are summed once."""
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
    """Where the split of the sequence starts and ends."""
    plan: dict[str, ParallelStyle] = {}
    if model.embedding is not None:
        plan["embedding"] = PrepareModuleOutput(
            output_layouts=Replicate(), desired_output_layouts=Shard(1)
        )
    if model.norm is not None:
        plan["norm"] = SequenceParallel()
    return plan


def reduce_partial_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Sum gradients of which each rank has its share of tokens: one all-reduce for all of them.

    With sequence parallelism a norm sees a share of the tokens. Left as they are, its gradients
    would be reduced inside the optimizer, each of them several times.
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
