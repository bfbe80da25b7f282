"""Shapes of transformers: their parameters and FLOP per token.

Source:
    Formula sheet, "Computation and communication"; for parameters, the paper of each model.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Recomputation = Literal["none", "selective", "full"]


class Latent(msgspec.Struct, frozen=True, kw_only=True):
    """Multi-head latent attention: queries, keys and values come from compressed vectors.

    Source:
        DeepSeek-V2 report, section 2.1.
    """

    query_rank: int  # Width of the compressed query.
    kv_rank: int  # Width of the compressed key and value.
    plain_size: int  # Width of a head's query and key without positions.
    rope_size: int  # Width of the part with positions; the key's part is shared by all heads.
    value_size: int  # Width of a head's value.


class Transformer(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of a decoder."""

    name: str = "model"  # Name of the model.
    layers: int  # L, all blocks.
    hidden: int  # H.
    heads: int  # a, query heads.
    kv_heads: int  # Key and value heads.
    ffn: int  # Width of a dense MLP.
    vocabulary: int  # Vocabulary size.
    head_size: int = 0  # Width of one head; 0 for H / a.
    gated: bool = True  # Whether MLPs have a gate (three matrices instead of two).
    tied: bool = False  # Whether input and output embedding are shared.
    biased: bool = False  # Whether there are biases everywhere and norms with a shift, as in GPT.
    learned_positions: int = 0  # Number of positions with a learned embedding.
    dropout: bool = False  # Whether dropout masks are kept for the backward.
    experts: int = 0  # E, routed experts per layer; 0 for a dense model.
    top_k: int = 0  # k, experts per token.
    expert_ffn: int = 0  # Width of one expert.
    shared_experts: int = 0  # Experts that process every token.
    dense_layers: int = 0  # Blocks of a mixture-of-experts model that have a dense MLP.
    router_biased: bool = False  # Whether the router adds a bias per expert.
    latent: Latent | None = None  # Multi-head latent attention; None for standard attention.

    @property
    def size_of_head(self) -> int:
        """Width of one head's query."""
        if self.latent is not None:
            return self.latent.plain_size + self.latent.rope_size
        return self.head_size or self.hidden // self.heads

    @property
    def size_of_value(self) -> int:
        """Width of one head's value."""
        return self.size_of_head if self.latent is None else self.latent.value_size

    @property
    def expert_layers(self) -> int:
        """Blocks with routed experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def attention_parameters(self) -> int:
        """Attention parameters of one block, including norms of compressed vectors."""
        if self.latent is not None:
            return self._latent_parameters(self.latent)
        queries = self.heads * self.size_of_head
        keys = self.kv_heads * self.size_of_head
        weights = self.hidden * (2 * queries + 2 * keys)
        return weights + (queries + 2 * keys + self.hidden if self.biased else 0)

    def _latent_parameters(self, latent: Latent) -> int:
        query = self.hidden * latent.query_rank + latent.query_rank
        query += latent.query_rank * self.heads * (latent.plain_size + latent.rope_size)
        keys = self.hidden * (latent.kv_rank + latent.rope_size) + latent.kv_rank
        keys += latent.kv_rank * self.heads * (latent.plain_size + latent.value_size)
        return query + keys + self.heads * latent.value_size * self.hidden

    def mlp_parameters(self, ffn: int) -> int:
        """Parameters of one MLP of this width."""
        biases = ffn + self.hidden if self.biased else 0
        return (3 if self.gated else 2) * self.hidden * ffn + biases

    @property
    def expert_parameters(self) -> int:
        """Parameters of all routed experts of one block; 0 for a dense model."""
        return self.experts * self.mlp_parameters(self.expert_ffn) if self.experts else 0

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the token and position embeddings."""
        return (self.vocabulary + self.learned_positions) * self.hidden

    @property
    def head_parameters(self) -> int:
        """Parameters of the output matrix, also if it is the token embedding."""
        return self.vocabulary * self.hidden

    @property
    def shared_parameters(self) -> int:
        """Parameters of all blocks without routed experts, and of the last norm."""
        norm = self.hidden * (2 if self.biased else 1)
        dense = (self.layers - self.expert_layers) * self.mlp_parameters(self.ffn)
        router = self.experts * (self.hidden + (1 if self.router_biased else 0))
        always = self.shared_experts * self.mlp_parameters(self.expert_ffn)
        sparse = self.expert_layers * (router + always)
        return self.layers * (self.attention_parameters + 2 * norm) + dense + sparse + norm

    @property
    def parameters(self) -> int:
        """N, all parameters."""
        head = 0 if self.tied else self.head_parameters
        blocks = self.shared_parameters + self.expert_layers * self.expert_parameters
        return blocks + self.embedding_parameters + head

    @property
    def active_parameters(self) -> int:
        """Parameters that process one token."""
        if not self.experts:
            return self.parameters
        idle = self.expert_layers * self.expert_parameters * (self.experts - self.top_k)
        return self.parameters - idle // self.experts

    @property
    def block_compute_parameters(self) -> float:
        """Parameters of a mean block that multiply each token."""
        routed = self.expert_layers * self.expert_parameters
        used = routed * self.top_k / self.experts if self.experts else 0.0
        return (self.shared_parameters + used) / self.layers

    def attention_flop_per_token(self, sequence: int, *, causal: bool = True) -> float:
        """FLOP of scores and values in one block, forward and backward: 12·H·S, half if causal."""
        width = self.heads * (self.size_of_head + self.size_of_value) / 2
        return 12.0 * width * sequence * (0.5 if causal else 1.0)


def training_flop_per_token(
    num_parameters: float,
    *,
    layers: int = 0,
    hidden: int = 0,
    sequence: int = 0,
    causal: bool = False,
    full_recomputation: bool = False,
) -> float:
    """6N + 12·L·H·S FLOP, half of the second when causal; 8N and 16·L·H·S with recomputation.

    Args:
        num_parameters: N, parameters that process a token.
        layers: L; 0 leaves attention out.
        hidden: H.
        sequence: S, tokens.
        causal: Whether a token attends only to earlier ones.
        full_recomputation: Whether the forward is computed twice.

    Source:
        Formula sheet, "Computation and communication".
    """
    attention = 12.0 * layers * hidden * sequence * (0.5 if causal else 1.0)
    return (6.0 * num_parameters + attention) * (4 / 3 if full_recomputation else 1.0)
