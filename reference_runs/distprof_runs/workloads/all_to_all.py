"""All-to-all with a gradient, which travels back the same way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def all_to_all(
    x: Tensor,
    group: dist.ProcessGroup,
    sent: Sequence[int] | None = None,
    received: Sequence[int] | None = None,
) -> Tensor:
    """Exchange rows of ``x`` among the ranks of ``group``; autograd sends gradients back.

    Args:
        x: Rows for rank 0, then for rank 1, and so on; equally many unless ``sent`` is given.
        group: The group of ranks that take part.
        sent: Rows for each rank.
        received: Rows from each rank.

    Returns:
        Rows from rank 0, then from rank 1, and so on.
    """
    return _AllToAll.apply(x, group, sent, received)  # type: ignore[no-any-return, no-untyped-call]


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        group: dist.ProcessGroup,
        sent: Sequence[int] | None,
        received: Sequence[int] | None,
    ) -> Tensor:
        ctx.group, ctx.sent, ctx.received = group, sent, received
        return _exchange(x, group, sent, received)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchange(gradients[0], ctx.group, ctx.received, ctx.sent), None, None, None


def _exchange(
    x: Tensor,
    group: dist.ProcessGroup,
    sent: Sequence[int] | None,
    received: Sequence[int] | None,
) -> Tensor:
    rows = x.shape[0] if received is None else sum(received)
    out = x.new_empty(rows, *x.shape[1:])
    dist.all_to_all_single(
        out,
        x.contiguous(),
        None if received is None else list(received),
        None if sent is None else list(sent),
        group=group,
    )
    return out
