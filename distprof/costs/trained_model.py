"""A model as a job trains it: FLOP of a token, needed and computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from distprof.costs.transformer import Recomputation, Transformer, training_flop_per_token

__all__ = ["Precision", "TrainedModel"]

Precision = Literal["bf16", "fp16", "fp8", "fp32"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """What is known of the model and of how it is trained; None is not known.

    Args:
        name: Of the model, for people.
        source: Who says so: ``run.json`` or the configuration's file.
        parameters: N, all of them.
        active_parameters: Those that a token passes.
        shape: Layers and widths; None where only parameters are known.
        sequence: S, tokens of a sequence.
        tokens_per_step: All ranks together, where the configuration says it.
        precision: Of matrix products.
        recomputation: Of activations in the backward.
        zero_stage: 0 to 3 (FSDP); None where nothing says.
        shards: Ranks among which the state is divided.
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
        """Forward and backward, each product once: the numerator of MFU.

        6 FLOP per parameter that multiplies the token, so none for looking it up; attention is
        causal, and left out where shape or sequence is not known.

        Source:
            Formula sheet, "Computation and communication".
        """
        return self._blocks + self._attention + self._head

    @property
    def computed_flop_per_token(self) -> float:
        """The same with what is recomputed: the numerator of HFU.

        Full recomputation computes the forward of each block twice, selective that of attention.
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
