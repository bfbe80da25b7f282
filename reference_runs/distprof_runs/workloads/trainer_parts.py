"""Parts shared by several trainers: precision, micro-batches, clipping, optimizer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from distprof_runs.options import TrainingOptions
from distprof_runs.workloads.model import MixtureOfExperts, Transformer
from distprof_runs.workloads.workload import Batch, Job, Phases


def autocast(job: Job) -> AbstractContextManager[object]:
    """Context for computation in ``job.dtype``; empty for float32."""
    if job.dtype == torch.float32:
        return nullcontext()
    return torch.autocast(job.device.type, dtype=job.dtype)


def to_device(batch: Batch, device: torch.device) -> Batch:
    """``batch`` on the device of the model."""
    return Batch(
        tokens=batch.tokens.to(device, non_blocking=True),
        targets=batch.targets.to(device, non_blocking=True),
    )


def checkpoint_blocks(model: Transformer) -> None:
    """Recompute each block's activations in backward instead of keeping them."""
    for block in model.blocks.values():
        block.forward = partial(
            checkpoint,
            block.forward,
            use_reentrant=False,
            context_fn=partial(_first_and_second_pass, block),
        )


def _first_and_second_pass(
    block: nn.Module,
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), _Unwatched(block)


class _Unwatched(AbstractContextManager[None]):
    """Disables watchers while activations are recomputed, which routes tokens again.

    It is reentrant, because a backward in two halves recomputes twice.
    """

    def __init__(self, block: nn.Module) -> None:
        self._layers = [part for part in block.modules() if isinstance(part, MixtureOfExperts)]
        self._watchers = [layer.watchers for layer in self._layers]

    def __enter__(self) -> None:
        self._watchers = [layer.watchers for layer in self._layers]
        for layer in self._layers:
            layer.watchers = []

    def __exit__(self, *_: object) -> None:
        for layer, watchers in zip(self._layers, self._watchers, strict=True):
            layer.watchers = watchers


def accumulate(
    micro_batches: Sequence[Batch],
    phases: Phases,
    losses_of: Callable[[Batch], tuple[Tensor, Tensor]],
    unsynchronised: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Tensor:
    """Add up the gradients of the micro-batches' mean loss.

    Args:
        micro_batches: Of one step.
        phases: Notified of each forward and backward.
        losses_of: Forward pass; returns the loss to minimise and the loss to report.
        unsynchronised: Context without gradient reduction, for all micro-batches but the last.

    Returns:
        Mean of the losses to report, detached.
    """
    reported = []
    for index, batch in enumerate(micro_batches):
        is_last = index == len(micro_batches) - 1
        with nullcontext() if is_last else unsynchronised():
            with phases.phase("forward"):
                objective, loss = losses_of(batch)
            with phases.phase("backward"):
                (objective / len(micro_batches)).backward()  # type: ignore[no-untyped-call]
        reported.append(loss.detach())
    return torch.stack(reported).mean()


def average_gradients(
    parameters: Iterable[nn.Parameter], group: dist.ProcessGroup, bucket_bytes: int = 25_000_000
) -> None:
    """Replace gradients by their means over ``group``, a bucket at a time.

    Args:
        parameters: Parameters of one dtype.
        group: Ranks with the same parameters.
        bucket_bytes: Maximum size of a bucket, unless a single gradient is larger.
    """
    gradients = [local_part(p.grad) for p in parameters if p.grad is not None]
    while gradients:
        sizes = itertools.accumulate(gradient.nbytes for gradient in gradients)
        count = max(1, sum(size <= bucket_bytes for size in sizes))
        bucket, gradients = gradients[:count], gradients[count:]
        flat = torch.cat([gradient.flatten() for gradient in bucket])
        dist.all_reduce(flat, group=group)
        flat /= group.size()
        pieces = torch.split(flat, [gradient.numel() for gradient in bucket])
        for gradient, piece in zip(bucket, pieces, strict=True):
            gradient.copy_(piece.view_as(gradient))


def local_part(x: Tensor) -> Tensor:
    """This rank's share of a distributed tensor; any other tensor unchanged."""
    return x.to_local() if isinstance(x, DTensor) else x


def shards_of(weight: Tensor) -> int:
    """Number of different parts of a tensor over the ranks of its own mesh."""
    if not isinstance(weight, DTensor):
        return 1
    sizes = zip(weight.placements, weight.device_mesh.shape, strict=True)
    shards = 1
    for placement, size in sizes:
        shards *= 1 if placement.is_replicate() else size
    return shards


def clip_gradients(
    parameters: Iterable[nn.Parameter],
    max_norm: float,
    *,
    group: dist.ProcessGroup | None = None,
    parts: Callable[[nn.Parameter], int] = shards_of,
) -> None:
    """Scale gradients so that the norm of the whole model's is at most ``max_norm``.

    One all-reduce of one number, for any split of the model, without waiting for the device.

    Args:
        parameters: This rank's.
        max_norm: Maximum norm; 0: do nothing.
        group: All ranks that hold a part of the model; None if each holds all of it.
        parts: Number of different parts of a parameter over ``group``. Each part is held by an
            equal number of ranks.
    """
    if not max_norm:
        return
    gradients = [(p, local_part(p.grad)) for p in parameters if p.grad is not None]
    size = 1 if group is None else group.size()
    squares = [g.float().square().sum() * (parts(p) / size) for p, g in gradients]
    total = torch.stack(squares).sum()
    if group is not None:
        dist.all_reduce(total, group=group)
    factor = (max_norm / (total.sqrt() + 1e-6)).clamp(max=1.0)
    for _, gradient in gradients:
        gradient.mul_(factor.to(gradient.dtype))


def make_optimizer(
    parameters: Iterable[nn.Parameter], training: TrainingOptions, device: torch.device
) -> torch.optim.AdamW:
    """AdamW. Parameters on different meshes are kept in separate groups.

    One call of a multi-tensor kernel takes tensors of one mesh only.
    """
    by_mesh: dict[DeviceMesh | None, list[nn.Parameter]] = {}
    for weight in parameters:
        mesh = weight.device_mesh if isinstance(weight, DTensor) else None
        by_mesh.setdefault(mesh, []).append(weight)
    groups = [{"params": group} for group in by_mesh.values()]
    return torch.optim.AdamW(groups, lr=training.learning_rate, fused=device.type == "cuda")
