"""Training memory in bytes per GPU: model state under ZeRO, activations.

Mixed precision with Adam. Source of every formula here: formula sheet, "Memory".
"""

from __future__ import annotations

import msgspec

from distprof.costs.transformer import Recomputation, Transformer

_WEIGHT, _GRADIENT, _OPTIMIZER = 2, 2, 12
_ZERO_STAGES = (0, 1, 2, 3)


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

    Args:
        num_parameters: N, the rank's share under tensor and pipeline parallelism.
        zero_stage: 0 shards nothing, 1 the optimizer, 2 also gradients, 3 (FSDP) also weights.
        shards: Ranks that share the state.
        fp32_gradients: Whether gradients are accumulated in fp32: 18N.

    Raises:
        ValueError: If the stage is unknown, or ``shards`` is below 1.

    Source:
        Formula sheet, "Memory"; ZeRO (Rajbhandari et al. 2020), table 1.
    """
    if zero_stage not in _ZERO_STAGES or shards < 1:
        raise ValueError(f"ZeRO stage {zero_stage} on {shards} ranks")
    gradient = _GRADIENT + (2 if fp32_gradients else 0)
    return StateBytes(
        weights=_WEIGHT * num_parameters / (shards if zero_stage >= 3 else 1),
        gradients=gradient * num_parameters / (shards if zero_stage >= 2 else 1),
        optimizer=_OPTIMIZER * num_parameters / (shards if zero_stage >= 1 else 1),
    )


def activation_bytes_per_layer(
    sequence: int,
    batch: int,
    hidden: int,
    heads: int,
    *,
    tensor: int = 1,
    sequence_parallel: bool = False,
    recomputation: Recomputation = "none",
) -> float:
    """Activation bytes that a GPT block keeps per micro-batch for its backward.

    S·B·H(34 + 5aS/H); tensor parallel S·B·H(10 + 24/T + 5aS/(HT)); with sequence parallelism
    S·B·H/T·(34 + 5aS/H). Selective recomputation, or flash attention, drops 5aS/H; full 2·S·B·H.

    Args:
        sequence: S.
        batch: B, sequences of a micro-batch.
        hidden: H.
        heads: a.
        tensor: T.
        sequence_parallel: Whether norms and dropout are also divided by T.
        recomputation: Recomputation of activations.

    Source:
        Formula sheet, "Memory"; Korthikanti et al. 2022.
    """
    scores = 5 * heads * sequence / hidden if recomputation == "none" else 0.0
    size = float(sequence * batch * hidden)
    if recomputation == "full":
        return 2 * size
    if sequence_parallel:
        return size / tensor * (34 + scores)
    return size * (10 + 24 / tensor + scores / tensor)


def activation_bytes_per_token(
    model: Transformer,
    sequence: int,
    *,
    tensor: int = 1,
    sequence_parallel: bool = False,
    recomputation: Recomputation = "none",
) -> float:
    """The same per token for a mean block of any shape; for GPT it equals Korthikanti's formula.

    A block keeps the inputs of both norms, the inputs of attention and MLP, queries, keys, values,
    the output of attention, and the MLP's activation input, output and gate. In a mixture of
    experts each token counts k times, and its dispatched copies are kept.

    Args:
        model: The shape.
        sequence: S; attention scores are kept if nothing is recomputed.
        tensor: T.
        sequence_parallel: Whether parts that tensor parallelism leaves whole are also divided.
        recomputation: ``full`` keeps only the input of each block.
    """
    spread = tensor if sequence_parallel else 1
    if recomputation == "full":
        return 2 * model.hidden / spread
    whole = (10 if model.dropout else 8) * model.hidden
    queries = model.heads * model.size_of_head
    values = model.heads * model.size_of_value
    keys = queries + values if model.latent else 2 * model.kv_heads * model.size_of_head
    divided = 2.0 * (queries + keys + values) + _mlp_bytes(model)
    if recomputation == "none":
        divided += 5 * model.heads * sequence
    copies = 4 * model.hidden * model.top_k * model.expert_layers / model.layers
    return (whole + copies) / spread + divided / tensor


def _mlp_bytes(model: Transformer) -> float:
    """Bytes that the MLPs of a mean block keep per token."""
    each = 6 if model.gated else 4
    dense = (model.layers - model.expert_layers) * model.ffn
    sparse = model.expert_layers * (model.top_k + model.shared_experts) * model.expert_ffn
    return each * (dense + sparse) / model.layers
