"""Attention over a split sequence by all-to-all: from tokens of all heads to heads of all tokens.

Four all-to-alls per attention forward (query, key, value, output) and four backward, each of this
rank's share of that tensor.

Source: Jacobs et al. 2023, "DeepSpeed Ulysses".
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from distprof_runs.all_to_all import all_to_all
from distprof_runs.model import Attend, causal_attention

__all__ = ["UlyssesAttention"]


class UlyssesAttention:
    """What :attr:`distprof_runs.model.Attention.attend` becomes under Ulysses.

    Args:
        group: The context-parallel ranks; their number divides both kinds of heads.
        attend: Attention over whole sequences, of a share of the heads.
    """

    def __init__(self, group: dist.ProcessGroup, attend: Attend = causal_attention) -> None:
        self._group = group
        self._attend = attend

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """All of shape ``(batch, heads, tokens / P, d)``, key and value with their own heads."""
        whole = [self._heads_to_tokens(x) for x in (query, key, value)]
        return self._tokens_to_heads(self._attend(*whole))

    def _heads_to_tokens(self, x: Tensor) -> Tensor:
        """``(batch, heads, tokens / P, d)`` to ``(batch, heads / P, tokens, d)``."""
        batch, heads, tokens, size = x.shape
        ranks = self._group.size()
        by_rank = x.reshape(batch, ranks, heads // ranks, tokens, size).movedim(1, 0)
        return all_to_all(by_rank, self._group).movedim(0, 2).flatten(2, 3)

    def _tokens_to_heads(self, x: Tensor) -> Tensor:
        """``(batch, heads / P, tokens, d)`` to ``(batch, heads, tokens / P, d)``."""
        batch, heads, tokens, size = x.shape
        ranks = self._group.size()
        by_rank = x.reshape(batch, heads, ranks, tokens // ranks, size).movedim(2, 0)
        return all_to_all(by_rank, self._group).movedim(0, 1).flatten(1, 2)
