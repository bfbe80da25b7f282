"""Transformers and their training: parameters, FLOP per token, memory per GPU, and rooflines.

Sources: formula sheet, "Computation and communication" and "Memory"; for parameters, the paper of
each model. FLOP, bytes, seconds; memory in mixed precision with Adam.
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
        if latent := self.latent:
            query = self.hidden * latent.query_rank + latent.query_rank
            query += latent.query_rank * self.heads * (latent.plain_size + latent.rope_size)
            keys = self.hidden * (latent.kv_rank + latent.rope_size) + latent.kv_rank
            keys += latent.kv_rank * self.heads * (latent.plain_size + latent.value_size)
            return query + keys + self.heads * latent.value_size * self.hidden
        queries = self.heads * self.size_of_head
        keys = self.kv_heads * self.size_of_head
        weights = self.hidden * (2 * queries + 2 * keys)
        return weights + (queries + 2 * keys + self.hidden if self.biased else 0)

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

    def attention_flop_per_token(self, sequence: int) -> float:
        """FLOP of causal scores and values in one block, forward and backward: 12·H·S / 2."""
        return 6.0 * self.heads * (self.size_of_head + self.size_of_value) / 2 * sequence


Precision = Literal["bf16", "fp16", "fp8", "fp32"]


class TrainedModel(msgspec.Struct, frozen=True, kw_only=True):
    """The model and how it is trained; None means unknown."""

    name: str  # Display name of the model.
    source: str  # Source of the information: ``run.json`` or the configuration file.
    parameters: float  # N, all parameters.
    active_parameters: float  # Parameters that process a token.
    shape: Transformer | None = None  # Layers and widths; None if only parameters are known.
    sequence: int | None = None  # S, tokens per sequence.
    # Tokens of all ranks together, if the configuration says so.
    tokens_per_step: int | None = None
    precision: Precision = "bf16"  # Precision of matrix products.
    recomputation: Recomputation = "none"  # Recomputation of activations in the backward.
    zero_stage: int | None = None  # 0 to 3 (FSDP); None if unknown.
    shards: int | None = None  # Ranks that share the state.

    @property
    def flop_per_token(self) -> float:
        """FLOP of forward and backward without recomputation: the numerator of MFU.

        Each parameter that multiplies the token takes 6 FLOP; the embedding lookup takes none.
        Attention is causal, and left out if shape or sequence is unknown.

        Source:
            Formula sheet, "Computation and communication".
        """
        return sum(self._parts)

    @property
    def computed_flop_per_token(self) -> float:
        """The same including recomputation: the numerator of HFU.

        Full recomputation repeats the forward of each block, selective recomputation that of
        attention.
        """
        again_blocks = 4 / 3 if self.recomputation == "full" else 1.0
        again_attention = 1.0 if self.recomputation == "none" else 4 / 3
        blocks, attention, head = self._parts
        return blocks * again_blocks + attention * again_attention + head

    @property
    def _parts(self) -> tuple[float, float, float]:
        """FLOP per token of the blocks' parameters, of attention, and of the output matrix."""
        if self.shape is None:
            return 6.0 * self.active_parameters, 0.0, 0.0
        layers, sequence = self.shape.layers, self.sequence
        blocks = 6.0 * (layers * self.shape.block_compute_parameters)
        attention = (
            0.0 if sequence is None else layers * self.shape.attention_flop_per_token(sequence)
        )
        return blocks, attention, 6.0 * self.shape.head_parameters


_WEIGHT, _GRADIENT, _OPTIMIZER = 2, 2, 12


class StateBytes(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of the model's state on one GPU."""

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        """The sum of all three."""
        return self.weights + self.gradients + self.optimizer


def model_state_bytes(
    num_parameters: float, *, zero_stage: int = 0, shards: int = 1, fp32_gradients: bool = False
) -> StateBytes:
    """16N: 2 for weights, 2 for gradients, 12 for the optimizer; each divided if it is sharded.

    ``num_parameters`` is the rank's share N. ZeRO stage 0 shards nothing among the ``shards``, 1
    the optimizer, 2 also gradients, 3 (FSDP) also weights. With ``fp32_gradients``, gradients are
    accumulated in fp32: 18N. ValueError if the stage is unknown, or ``shards`` is below 1.

    Source: Formula sheet, "Memory"; ZeRO (Rajbhandari et al. 2020), table 1.
    """
    if zero_stage not in (0, 1, 2, 3) or shards < 1:
        raise ValueError(f"ZeRO stage {zero_stage} on {shards} ranks")
    gradient = _GRADIENT + (2 if fp32_gradients else 0)
    return StateBytes(
        weights=_WEIGHT * num_parameters / (shards if zero_stage >= 3 else 1),
        gradients=gradient * num_parameters / (shards if zero_stage >= 2 else 1),
        optimizer=_OPTIMIZER * num_parameters / (shards if zero_stage >= 1 else 1),
    )


def activation_bytes_per_token(
    model: Transformer,
    sequence: int,
    *,
    tensor: int = 1,
    sequence_parallel: bool = False,
    recomputation: Recomputation = "none",
) -> float:
    """Activation bytes per token that a mean block of any shape keeps for its backward.

    For GPT they equal Korthikanti's formula (formula sheet, "Memory"). A block keeps the inputs of
    both norms, of attention and MLP, queries, keys, values, the output of attention, and the MLP's
    activation input, output and gate; scores of the ``sequence`` if nothing is recomputed, with
    ``full`` only its input. In a mixture of experts each token counts k times, and its dispatched
    copies are kept. ``sequence_parallel`` also divides by ``tensor`` what tensor parallelism leaves
    whole.
    """
    spread = tensor if sequence_parallel else 1
    if recomputation == "full":
        return 2 * model.hidden / spread
    whole = (10 if model.dropout else 8) * model.hidden
    queries = model.heads * model.size_of_head
    values = model.heads * model.size_of_value
    keys = queries + values if model.latent else 2 * model.kv_heads * model.size_of_head
    dense = (model.layers - model.expert_layers) * model.ffn
    sparse = model.expert_layers * (model.top_k + model.shared_experts) * model.expert_ffn
    of_mlp = (6 if model.gated else 4) * (dense + sparse) / model.layers
    divided = 2.0 * (queries + keys + values) + of_mlp
    if recomputation == "none":
        divided += 5 * model.heads * sequence
    copies = 4 * model.hidden * model.top_k * model.expert_layers / model.layers
    return (whole + copies) / spread + divided / tensor


Regime = Literal[
    "severely communication-bound", "communication-bound", "near the ridge", "compute-bound"
]


def ridge(peak_flops: float, bandwidth: float) -> float:
    """FLOP per byte at which computation and communication take the same time."""
    return peak_flops / bandwidth


def bound_with_overlap(intensity: float, ridge_intensity: float) -> float:
    """The highest efficiency with perfect overlap: min(1, CCR / CCR*)."""
    return min(1.0, intensity / ridge_intensity)


def regime(intensity: float, ridge_intensity: float) -> Regime:
    """The regime of a step by CCR / CCR*, with boundaries at 0.2, 0.8 and 1.2."""
    position = intensity / ridge_intensity
    if position < 0.2:
        return "severely communication-bound"
    if position < 0.8:
        return "communication-bound"
    return "near the ridge" if position <= 1.2 else "compute-bound"


def critical_batch(batch: float, intensity: float, ridge_intensity: float) -> float:
    """The batch at which a step reaches the ridge: batch · CCR* / CCR."""
    return batch * ridge_intensity / intensity


def flop_utilisation(
    flop_per_step: float, step_s: float, num_gpus: int, peak_flops: float
) -> float:
    """MFU from the model's FLOP, or HFU from all computed FLOP; the peak is dense.

    ValueError if time, number of GPUs or peak is not positive.
    """
    available = step_s * num_gpus * peak_flops
    if available <= 0:
        raise ValueError(f"{num_gpus} GPUs of {peak_flops:g} FLOP/s for {step_s} s")
    return flop_per_step / available
