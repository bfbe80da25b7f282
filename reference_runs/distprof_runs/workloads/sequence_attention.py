"""Causal attention over a sequence that is split among ranks: ring attention and Ulysses.

In a ring, each rank keeps the queries of its own tokens. Key and value blocks make P - 1 hops, so
that every rank meets every block once; the parts are merged exactly through their log-sum-exps.
In backward, the same blocks travel around again and their gradients follow one hop behind, so a
gradient block also makes P - 1 hops and ends on its own rank: forward P - 1 messages per rank,
backward 2 (P - 1), each of 2 · batch · key/value heads · tokens/P · head size elements.

Only the scores of one pair of blocks are held at a time, in float32.

Source: Liu et al. 2023, "Ring Attention with Blockwise Transformers"; the merge and the backward by
blocks are those of Dao 2023, "FlashAttention-2", section 3.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from distprof_runs.workloads.all_to_all import all_to_all
from distprof_runs.workloads.model import Attend, causal_attention

_KEY_VALUE, _GRADIENT = 0, 1  # tags: both kinds of messages are in flight at the same time


def chunk_numbers(rank: int, size: int, *, zigzag: bool) -> tuple[int, ...]:
    """The equal chunks of the sequence that a rank holds, in order.

    Contiguous: one of ``size`` chunks. Zigzag: one from each end of ``2 · size`` chunks, so that
    all ranks have the same number of (query, key) pairs under a causal mask.
    """
    return (rank, 2 * size - 1 - rank) if zigzag else (rank,)


def local_positions(sequence: int, rank: int, size: int, *, zigzag: bool) -> Tensor:
    """Positions of a rank's tokens in the whole sequence, int64, shape ``(sequence / size,)``."""
    chunks = torch.arange(sequence).chunk(2 * size if zigzag else size)
    return torch.cat([chunks[number] for number in chunk_numbers(rank, size, zigzag=zigzag)])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ring:
    group: dist.ProcessGroup
    rank: int
    size: int
    zigzag: bool

    def chunks(self, rank: int) -> tuple[int, ...]:
        return chunk_numbers(rank % self.size, self.size, zigzag=self.zigzag)

    def start_hop(self, block: Tensor, tag: int) -> tuple[Tensor, list[dist.Work]]:
        """Send to the next rank while receiving the previous one's block."""
        incoming = torch.empty_like(block)
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, block, group=self.group, tag=tag, group_peer=after),
                dist.P2POp(dist.irecv, incoming, group=self.group, tag=tag, group_peer=before),
            ]
        )
        return incoming, works

    def blocks(self, block: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Every rank's block with its owner, own first. The next hop runs while a block is used."""
        for hop in range(self.size):
            is_last = hop == self.size - 1
            incoming, works = (block, []) if is_last else self.start_hop(block, _KEY_VALUE)
            yield (self.rank - hop) % self.size, block
            _finish(works)
            block = incoming


def _finish(works: list[dist.Work]) -> None:
    for work in works:
        work.wait()


class RingAttention:
    """Ring attention, used as :attr:`distprof_runs.workloads.model.Attention.attend`.

    Args:
        group: The context-parallel ranks.
        zigzag: Whether the sequence is split in zigzag order, see :func:`chunk_numbers`.
    """

    def __init__(self, group: dist.ProcessGroup, *, zigzag: bool) -> None:
        self._ring = _Ring(group=group, rank=group.rank(), size=group.size(), zigzag=zigzag)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention of this rank's tokens to all earlier tokens.

        Args:
            query: Shape ``(batch, heads, tokens / P, d)``.
            key: Shape ``(batch, key/value heads, tokens / P, d)``.
            value: As ``key``.
        """
        out: Tensor = _RingFunction.apply(query, torch.stack((key, value)), self._ring)  # type: ignore[no-untyped-call]
        return out


class _RingFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key_value: Tensor, ring: _Ring) -> Tensor:
        with torch.autocast(query.device.type, enabled=False):
            result, log_sum = _merge_blocks(query, key_value, ring)
        ctx.save_for_backward(query, key_value, result, log_sum)
        ctx.ring = ring
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        query, key_value, out, log_sum = ctx.saved_tensors
        with torch.autocast(query.device.type, enabled=False):
            of_query, of_block = _pass_gradients(
                query, key_value, out, log_sum, gradients[0], ctx.ring
            )
        return of_query, of_block, None


def _merge_blocks(query: Tensor, key_value: Tensor, ring: _Ring) -> tuple[Tensor, Tensor]:
    """Attention to all ranks' blocks, and the log-sum-exp of all scores."""
    out = torch.zeros_like(query, dtype=torch.float32)
    log_sum = torch.full(query.shape[:-1], -torch.inf, device=query.device)
    for owner, block in ring.blocks(key_value):
        for own, other, causal in _visible_parts(ring, owner, query.shape[2]):
            part, part_log_sum = _attend(query[:, :, own], block[:, :, :, other], causal)
            merged = torch.logaddexp(log_sum[:, :, own], part_log_sum)
            kept = (log_sum[:, :, own] - merged).exp().unsqueeze(-1)
            added = (part_log_sum - merged).exp().unsqueeze(-1)
            out[:, :, own] = out[:, :, own] * kept + part * added
            log_sum[:, :, own] = merged
    return out.to(query.dtype), log_sum


def _pass_gradients(
    query: Tensor, key_value: Tensor, out: Tensor, log_sum: Tensor, gradient: Tensor, ring: _Ring
) -> tuple[Tensor, Tensor]:
    """Gradients of ``query`` and ``key_value``. Those of other ranks' blocks are passed on."""
    gradient = gradient.float()
    saved = (gradient, log_sum, (gradient * out.float()).sum(-1))
    of_query = torch.zeros_like(query, dtype=torch.float32)
    of_own = torch.zeros_like(key_value)
    passing: Tensor | None = None  # gradient so far of the present block
    works: list[dist.Work] = []
    for owner, block in ring.blocks(key_value):
        here = torch.zeros_like(key_value, dtype=torch.float32)
        for own, other, causal in _visible_parts(ring, owner, query.shape[2]):
            rows = tuple(x[:, :, own] for x in saved)
            part = _attend_backward(query[:, :, own], block[:, :, :, other], causal, *rows)
            of_query[:, :, own] += part[0]
            here[:, :, :, other] += part[1]
        if owner == ring.rank:
            of_own = here.to(key_value.dtype)
            continue
        _finish(works)
        total = here if passing is None else passing + here
        passing, works = ring.start_hop(total.to(key_value.dtype), _GRADIENT)
    _finish(works)
    whole = of_own if passing is None else of_own + passing
    return of_query.to(query.dtype), whole


def _visible_parts(ring: _Ring, owner: int, tokens: int) -> Iterator[tuple[slice, slice, bool]]:
    """Pairs of (own queries, owner's keys) left by the mask, and whether the mask cuts them."""
    own_chunks, other_chunks = ring.chunks(ring.rank), ring.chunks(owner)
    length = tokens // len(own_chunks)
    for i, own in enumerate(own_chunks):
        for j, other in enumerate(other_chunks):
            if own >= other:
                yield (
                    slice(i * length, (i + 1) * length),
                    slice(j * length, (j + 1) * length),
                    own == other,
                )


def _scores(query: Tensor, key: Tensor, causal: bool) -> Tensor:
    scores: Tensor = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    if causal:
        tokens = scores.shape[-1]
        later = torch.ones(tokens, tokens, dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return scores


def _attend(query: Tensor, key_value: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Attention to one block in float32, and the log-sum-exp of its scores."""
    key, value = _for_each_query_head(key_value, query.shape[1])
    scores = _scores(query.float(), key, causal)
    log_sum = scores.logsumexp(-1)
    return (scores - log_sum.unsqueeze(-1)).exp() @ value, log_sum


def _attend_backward(
    query: Tensor,
    key_value: Tensor,
    causal: bool,
    gradient: Tensor,
    log_sum: Tensor,
    row_dot: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gradients of queries and of one block; ``log_sum`` and ``row_dot`` are over all blocks."""
    key, value = _for_each_query_head(key_value, query.shape[1])
    query = query.float()
    weights = (_scores(query, key, causal) - log_sum.unsqueeze(-1)).exp()
    of_value = weights.transpose(-1, -2) @ gradient
    of_weights = gradient @ value.transpose(-1, -2)
    of_scores = weights * (of_weights - row_dot.unsqueeze(-1)) * query.shape[-1] ** -0.5
    of_key = of_scores.transpose(-1, -2) @ query
    of_block = torch.stack((of_key, of_value))
    # Several query heads share a key/value head: its gradient is the sum of theirs.
    batch, heads, tokens, size = of_key.shape
    kv_heads = key_value.shape[2]
    shared = of_block.view(2, batch, kv_heads, heads // kv_heads, tokens, size)
    return of_scores @ key, shared.sum(3)


def _for_each_query_head(key_value: Tensor, heads: int) -> Tensor:
    return key_value.float().repeat_interleave(heads // key_value.shape[2], dim=2)


# Ulysses ----------------------------------------------------------------------------------------


class UlyssesAttention:
    """Ulysses: from tokens of all heads to heads of all tokens, and back.

    Four all-to-alls per attention forward (query, key, value, output) and four backward, each of
    this rank's share of that tensor. Used as
    :attr:`distprof_runs.workloads.model.Attention.attend`.

    Source: Jacobs et al. 2023, "DeepSpeed Ulysses".

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
