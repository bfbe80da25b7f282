"""A model and its training configuration: required and computed FLOP per token."""

from __future__ import annotations

from typing import Literal

import msgspec

from distprof.costs.transformer import Recomputation, Transformer, training_flop_per_token

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
        return self._blocks + self._attention + self._head

    @property
    def computed_flop_per_token(self) -> float:
        """The same including recomputation: the numerator of HFU.

        Full recomputation repeats the forward of each block, selective recomputation that of
        attention.
        """
        again_blocks = 4 / 3 if self.recomputation == "full" else 1.0
        again_attention = 1.0 if self.recomputation == "none" else 4 / 3
        return self._blocks * again_blocks + self._attention * again_attention + self._head

    @property
    def _head(self) -> float:
        return 6.0 * self.shape.head_parameters if self.shape else 0.0

    @property
    def _blocks(self) -> float:
        if self.shape is None:
            return training_flop_per_token(self.active_parameters)
        return training_flop_per_token(self.shape.layers * self.shape.block_compute_parameters)

    @property
    def _attention(self) -> float:
        if self.shape is None or self.sequence is None:
            return 0.0
        return self.shape.layers * self.shape.attention_flop_per_token(self.sequence)
