"""A model and its training configuration: required and computed FLOP per token."""

from __future__ import annotations

from typing import Literal

import msgspec

from distprof.costs.transformer import Recomputation, Transformer, training_flop_per_token

Precision = Literal["bf16", "fp16", "fp8", "fp32"]


class TrainedModel(msgspec.Struct, frozen=True, kw_only=True):
    """The model and how it is trained; None means unknown.

    Args:
        name: Display name of the model.
        source: Source of the information: ``run.json`` or the configuration file.
        parameters: N, all parameters.
        active_parameters: Parameters that process a token.
        shape: Layers and widths; None if only parameters are known.
        sequence: S, tokens per sequence.
        tokens_per_step: Tokens of all ranks together, if the configuration says so.
        precision: Precision of matrix products.
        recomputation: Recomputation of activations in the backward.
        zero_stage: 0 to 3 (FSDP); None if unknown.
        shards: Ranks that share the state.
    """

    name: str
    source: str
    parameters: float
    active_parameters: float
    shape: Transformer | None = None
    sequence: int | None = None
    tokens_per_step: int | None = None
    precision: Precision = "bf16"
    recomputation: Recomputation = "none"
    zero_stage: int | None = None
    shards: int | None = None

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
