"""The transformer of all reference runs. It is independent of parallelism.

Parallelism is applied from outside: by wrapping, by sharding parameters by name, by keeping only
some blocks, or by replacing the two places where a block looks beyond its own tokens:
:attr:`Attention.attend` (context parallelism) and :attr:`MixtureOfExperts.exchange` (expert
parallelism).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from distprof_runs.options import ModelOptions

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention of each token to itself and earlier ones; shapes ``(batch, heads, tokens, d)``."""
    grouped = query.shape[1] != key.shape[1]
    return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary position embedding (Su et al. 2021) of ``x``, shape ``(batch, heads, tokens, d)``."""
    half = x.shape[-1] // 2
    frequency = 10000.0 ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = positions[:, None].float() * frequency
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


class Attention(nn.Module):
    """Causal self-attention with rotary positions and grouped key/value heads."""

    def __init__(self, options: ModelOptions) -> None:
        super().__init__()
        self.head_dim = options.hidden // options.heads
        kv = options.kv_heads * self.head_dim
        self.wq = nn.Linear(options.hidden, options.hidden, bias=False)
        self.wk = nn.Linear(options.hidden, kv, bias=False)
        self.wv = nn.Linear(options.hidden, kv, bias=False)
        self.wo = nn.Linear(options.hidden, options.hidden, bias=False)
        self.attend: Attend = causal_attention

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """``x``: ``(batch, tokens, hidden)``; heads are counted from the weights' shapes."""
        query, key, value = (self._heads(w(x)) for w in (self.wq, self.wk, self.wv))
        out = self.attend(rotate(query, positions), rotate(key, positions), value)
        return self.wo(out.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _heads(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        return x.view(batch, tokens, -1, self.head_dim).transpose(1, 2)


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, options: ModelOptions) -> None:
        super().__init__()
        self.w1 = nn.Linear(options.hidden, options.ffn, bias=False)
        self.w2 = nn.Linear(options.ffn, options.hidden, bias=False)
        self.w3 = nn.Linear(options.hidden, options.ffn, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` of any shape ``(..., hidden)``."""
        return self.w2(F.silu(self.w1(x)) * self.w3(x))  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSettings:
    """Routing of tokens: experts, experts per token, capacity factor (0: none), router bias."""

    experts: int
    top_k: int
    capacity_factor: float = 0.0
    skew: float = 0.0  # added to the logit of expert 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Routing of the tokens of one micro-batch, for watchers."""

    tokens_per_expert: Tensor  # int64, shape ``(experts,)``, assignments before drops.
    num_tokens: int  # Tokens routed.
    top_k: int  # Experts per token.
    capacity: int | None  # Maximum number of assignments per expert; None without a limit.
    dropped: Tensor  # int64 scalar tensor, assignments over capacity.
    # Scalar, Switch Transformer's E · Σ f·P, f the share of all picks (1 when uniform).
    aux_loss: Tensor


class Router(nn.Module):
    """Chooses ``top_k`` experts for each token."""

    def __init__(self, options: ModelOptions, settings: MoeSettings) -> None:
        super().__init__()
        self.settings = settings
        self.gate = nn.Linear(options.hidden, settings.experts, bias=False)
        bias = torch.zeros(settings.experts)
        bias[0] = settings.skew
        self.register_buffer("bias", bias, persistent=False)
        self.bias: Tensor

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weights and experts, shapes ``(tokens, top_k)``, and the scalar load-balancing loss."""
        probability = (self.gate(x).float() + self.bias).softmax(-1)
        weights, experts = probability.topk(self.settings.top_k, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        share = torch.bincount(experts.flatten(), minlength=self.settings.experts).float()
        share = share / experts.numel()
        aux_loss = self.settings.experts * (share * probability.mean(0)).sum()
        return weights.to(x.dtype), experts, aux_loss


class Experts(nn.Module):
    """A number of SwiGLU networks, each with its own slice of the weights."""

    def __init__(self, options: ModelOptions, count: int) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.empty(count, options.hidden, options.ffn))
        self.w2 = nn.Parameter(torch.empty(count, options.ffn, options.hidden))
        self.w3 = nn.Parameter(torch.empty(count, options.hidden, options.ffn))
        for weight in (self.w1, self.w2, self.w3):
            nn.init.normal_(weight, std=weight.shape[1] ** -0.5)

    def forward(self, x: Tensor, counts: Sequence[int]) -> Tensor:
        """``x`` holds the tokens of the first expert, then of the second, in numbers ``counts``."""
        out = []
        for index, tokens in enumerate(torch.split(x, list(counts))):
            inner = F.silu(tokens @ self.w1[index]) * (tokens @ self.w3[index])
            out.append(inner @ self.w2[index])
        return torch.cat(out)


class Exchange(Protocol):
    """Brings tokens to the rank of their expert, and back."""

    def dispatch(self, tokens: Tensor, counts: Tensor) -> tuple[Tensor, list[int], object]:
        """Send tokens, sorted by expert.

        Args:
            tokens: Shape ``(assignments, hidden)``, sorted by global expert.
            counts: int64, shape ``(experts,)``, assignments to each.

        Returns:
            Tokens sorted by local expert, how many each local expert got, and what ``combine``
            needs.
        """
        ...

    def combine(self, out: Tensor, ticket: object) -> Tensor:
        """Bring results back in the order of the tokens given to ``dispatch``."""
        ...


class LocalExchange:
    """The exchange of a rank that holds all experts."""

    def dispatch(self, tokens: Tensor, counts: Tensor) -> tuple[Tensor, list[int], object]:
        """Nothing to send."""
        return tokens, counts.tolist(), None

    def combine(self, out: Tensor, ticket: object) -> Tensor:  # noqa: ARG002  # as in Exchange
        """Nothing to bring back."""
        return out


class MixtureOfExperts(nn.Module):
    """A feed-forward layer of many experts. ``watchers`` are called with each Routing."""

    def __init__(self, options: ModelOptions, settings: MoeSettings) -> None:
        super().__init__()
        self.settings = settings
        self.router = Router(options, settings)
        self.experts = Experts(options, settings.experts)
        self.exchange: Exchange = LocalExchange()
        self.watchers: list[Callable[[Routing], None]] = []
        self.aux_loss: Tensor | None = None  # of the last forward; the trainer adds it to the loss

    def forward(self, x: Tensor) -> Tensor:
        """``x`` of any shape ``(..., hidden)``."""
        tokens = x.reshape(-1, x.shape[-1])
        weights, experts, self.aux_loss = self.router(tokens)
        chosen = experts.flatten()
        kept, capacity = self._within_capacity(chosen, len(tokens))
        order = torch.argsort(chosen[kept], stable=True)
        picks = kept[order]  # assignment numbers, sorted by expert
        counts = torch.bincount(chosen[kept], minlength=self.settings.experts)
        self._tell(chosen, kept, len(tokens), capacity)
        sent, local_counts, ticket = self.exchange.dispatch(
            tokens[picks // self.settings.top_k], counts
        )
        back = self.exchange.combine(self.experts(sent, local_counts), ticket)
        weighted = back * weights.flatten()[picks].unsqueeze(-1)
        out = torch.zeros_like(tokens).index_add(0, picks // self.settings.top_k, weighted)
        return out.view_as(x)

    def _within_capacity(self, chosen: Tensor, num_tokens: int) -> tuple[Tensor, int | None]:
        """Numbers of the assignments that fit, first come first served, and the capacity."""
        every = torch.arange(len(chosen), device=chosen.device)
        factor = self.settings.capacity_factor
        if not factor:
            return every, None
        even = self.settings.top_k * num_tokens / self.settings.experts
        capacity = -int(-factor * even // 1)  # rounded up
        place = F.one_hot(chosen, self.settings.experts).cumsum(0).gather(1, chosen[:, None])
        return every[place.squeeze(1) <= capacity], capacity

    def _tell(self, chosen: Tensor, kept: Tensor, num_tokens: int, capacity: int | None) -> None:
        if not self.watchers or self.aux_loss is None:
            return
        routing = Routing(
            tokens_per_expert=torch.bincount(chosen, minlength=self.settings.experts),
            num_tokens=num_tokens,
            top_k=self.settings.top_k,
            capacity=capacity,
            dropped=torch.tensor(len(chosen) - len(kept)),
            aux_loss=self.aux_loss.detach(),
        )
        for watcher in self.watchers:
            watcher(routing)


class Block(nn.Module):
    """Attention and feed-forward layer (dense, or a mixture of experts), each with its norm."""

    def __init__(self, options: ModelOptions, moe: MoeSettings | None = None) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(options.hidden)
        self.attention = Attention(options)
        self.ffn_norm = nn.RMSNorm(options.hidden)
        self.feed_forward = MixtureOfExperts(options, moe) if moe else FeedForward(options)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """``x`` of shape ``(batch, tokens, hidden)``."""
        x = x + self.attention(self.attention_norm(x), positions)
        return x + self.feed_forward(self.ffn_norm(x))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Embedding, blocks, norm, output. A pipeline stage keeps a part: the others are None.

    Args:
        options: Resolved sizes.
        moe: Routing of mixture-of-experts blocks; None for dense ones.
        first: Index of the first block to have.
        count: Number of blocks; None for all remaining ones.
    """

    def __init__(
        self,
        options: ModelOptions,
        moe: MoeSettings | None = None,
        *,
        first: int = 0,
        count: int | None = None,
    ) -> None:
        super().__init__()
        end = options.layers if count is None else first + count
        self.options = options
        self.embedding = nn.Embedding(options.vocabulary, options.hidden) if first == 0 else None
        self.blocks = nn.ModuleDict({str(i): Block(options, moe) for i in range(first, end)})
        is_last = end == options.layers
        self.norm = nn.RMSNorm(options.hidden) if is_last else None
        self.output = nn.Linear(options.hidden, options.vocabulary, bias=False) if is_last else None

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """Tokens (int64, ``(batch, tokens)``) or hidden states in, hidden states or logits out.

        Args:
            x: Tokens where the part has the embedding, else ``(batch, tokens, hidden)``.
            positions: int64, shape ``(tokens,)``; None for 0, 1, 2, …
        """
        if positions is None:
            positions = torch.arange(x.shape[1], device=x.device)
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks.values():
            x = block(x, positions)
        if self.norm is not None and self.output is not None:
            x = self.output(self.norm(x))
        return x


def initialise(module: nn.Module, seed: int, prefix: str = "") -> None:
    """Draw every parameter on the CPU from a separate generator, seeded by its name.

    So a weight is the same on each rank and device, for any parts of the model that are built
    there, in any order: normal with standard deviation fan-in^-1/2, norms one.

    Args:
        module: Materialised; parameters may be on any device, plain or DTensor.
        seed: Of the job.
        prefix: Prefix of the names if ``module`` is a part of the model, for example ``blocks.3.``.
    """
    with torch.no_grad():
        for name, parameter in module.named_parameters(prefix.rstrip(".")):
            _assign(parameter, _drawn(parameter.shape, seed, name))


def _drawn(shape: torch.Size, seed: int, name: str) -> Tensor:
    if len(shape) < 2:
        return torch.ones(shape)
    # 32 bits: a CPU generator ignores the others
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    return torch.randn(shape, generator=generator).mul_(shape[1] ** -0.5)


def _assign(parameter: Tensor, full: Tensor) -> None:
    if isinstance(parameter, DTensor):  # every rank has drawn the whole weight: nothing to send
        full = distribute_tensor(
            full.to(parameter.device),
            parameter.device_mesh,
            parameter.placements,
            src_data_rank=None,
        )
    parameter.copy_(full)


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy over all tokens."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
