"""Memory of the fullest GPU under a layout."""

from __future__ import annotations

import math
from typing import Any

from distprof.costs.memory import activation_bytes_per_token, model_state_bytes
from distprof.costs.transformer import Transformer
from distprof.verbs.plan.layout import Layout
from distprof.verbs.plan.question import Question
from distprof.verbs.plan.result import MemoryParts

__all__ = ["footprint", "stage_parameters"]

_LOGIT = 6  # fp32, and a gradient in bf16
_WEIGHT = 2


def stage_parameters(model: Transformer, layout: Layout, *, last: bool) -> tuple[float, float]:
    """Dense and expert parameters of one rank of the first or last stage, unsharded.

    Expert parameters are those that remain of all after expert parallelism.
    """
    layers = _layers(model, layout, last=last)
    dense = model.shared_parameters / model.layers * layers
    experts = model.expert_layers * model.expert_parameters / model.layers * layers
    if layout.pp == 1:
        dense += model.embedding_parameters + (0 if model.tied else model.head_parameters)
    else:
        dense += model.head_parameters if last else model.embedding_parameters
    return dense / layout.tp, experts / layout.tp / layout.ep


def footprint(question: Question, layout: Layout) -> MemoryParts:
    """The larger of the first stage's and the last stage's."""
    first = _stage(question, layout, last=layout.pp == 1)
    if layout.pp == 1:
        return first
    return max(first, _stage(question, layout, last=True), key=lambda parts: parts.total_bytes)


def _layers(model: Transformer, layout: Layout, *, last: bool) -> int:
    """Of a rank's stages; where they do not divide, the first stages have one more."""
    if last and layout.pp > 1:
        return model.layers // layout.pp
    return math.ceil(model.layers / layout.pp)


def _stage(question: Question, layout: Layout, *, last: bool) -> MemoryParts:
    model = question.model
    dense, experts = stage_parameters(model, layout, last=last)
    how: dict[str, Any] = {
        "zero_stage": layout.zero_stage,
        "fp32_gradients": question.fp32_gradients,
    }
    shards = layout.num_shards
    ours = model_state_bytes(dense, shards=shards, **how)
    theirs = model_state_bytes(experts, shards=max(1, shards // layout.ep), **how)
    tokens = layout.micro_batch * question.sequence / layout.cp
    logits = tokens * model.vocabulary * _LOGIT / layout.tp if last else 0.0
    return MemoryParts(
        weights_bytes=round(ours.weights + theirs.weights),
        gradients_bytes=round(ours.gradients + theirs.gradients),
        optimizer_bytes=round(ours.optimizer + theirs.optimizer),
        gathered_bytes=round(_gathered(model, layout)),
        activations_bytes=round(tokens * _kept_per_token(question, layout, last=last)),
        logits_bytes=round(logits),
    )


def _gathered(model: Transformer, layout: Layout) -> float:
    """With prefetch two of the largest blocks are whole at once."""
    if layout.zero_stage < 3 or layout.num_shards == 1:
        return 0.0
    block = model.shared_parameters / model.layers
    if model.experts:
        block += model.expert_parameters / layout.ep
    return 2 * _WEIGHT * max(block, model.head_parameters) / layout.tp


def _kept_per_token(question: Question, layout: Layout, *, last: bool) -> float:
    """Activations of all micro-batches in flight, by tokens of one."""
    model = question.model
    how: dict[str, Any] = {"tensor": layout.tp, "sequence_parallel": layout.tp > 1}
    sequence = question.sequence // layout.cp
    kept = activation_bytes_per_token(
        model, sequence, recomputation=layout.recomputation, **how
    ) * _layers(model, layout, last=last)
    held = 1.0 if last else float(min(layout.micro_batches, layout.pp))
    if layout.virtual_stages > 1:
        held += (layout.pp - 1) / layout.virtual_stages
    held = min(held, float(layout.micro_batches))
    if layout.recomputation != "full":
        return kept * held
    return kept * held + activation_bytes_per_token(
        model, sequence, recomputation="selective", **how
    )
