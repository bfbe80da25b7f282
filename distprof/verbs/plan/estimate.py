"""Estimates the costs of a layout: memory of the fullest GPU, and the time of a step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from distprof.artefacts.record import grouped
from distprof.costs import collectives as volumes
from distprof.costs.collectives import collective_time
from distprof.costs.pipeline import bubble_fraction, bubble_overhead
from distprof.costs.transformer import (
    Transformer,
    activation_bytes_per_token,
    flop_utilisation,
    model_state_bytes,
    regime,
    ridge,
)
from distprof.terms import CollectiveKind
from distprof.verbs.plan import AxisCost, Estimate, MemoryParts, TierPosition
from distprof.verbs.plan.layout import Layout, Path, Question

_LOGIT = 6  # bytes: the logit in fp32, and its gradient in bf16
_WEIGHT = 2  # bytes


def stage_parameters(model: Transformer, layout: Layout, *, last: bool) -> tuple[float, float]:
    """Dense and expert parameters of one rank of the first or last stage, unsharded."""
    layers = _layers(model, layout, last=last)
    dense = model.shared_parameters / model.layers * layers
    experts = model.expert_layers * model.expert_parameters / model.layers * layers
    if layout.pp == 1:
        dense += model.embedding_parameters + (0 if model.tied else model.head_parameters)
    else:
        dense += model.head_parameters if last else model.embedding_parameters
    return dense / layout.tp, experts / layout.tp / layout.ep


def footprint(question: Question, layout: Layout) -> MemoryParts:
    """Memory of the first or the last stage, whichever is larger."""
    first = _stage(question, layout, last=layout.pp == 1)
    if layout.pp == 1:
        return first
    return max(first, _stage(question, layout, last=True), key=lambda parts: parts.total_bytes)


def _layers(model: Transformer, layout: Layout, *, last: bool) -> int:
    """Layers of a rank's stages; if they do not divide evenly, the first stages have one more."""
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
    of_dense = model_state_bytes(dense, shards=shards, **how)
    of_experts = model_state_bytes(experts, shards=max(1, shards // layout.ep), **how)
    tokens = layout.micro_batch * question.sequence / layout.cp
    logits = tokens * model.vocabulary * _LOGIT / layout.tp if last else 0.0
    return MemoryParts(
        weights_bytes=round(of_dense.weights + of_experts.weights),
        gradients_bytes=round(of_dense.gradients + of_experts.gradients),
        optimizer_bytes=round(of_dense.optimizer + of_experts.optimizer),
        gathered_bytes=round(_gathered_bytes(model, layout)),
        activations_bytes=round(tokens * _kept_per_token(question, layout, last=last)),
        logits_bytes=round(logits),
    )


def _gathered_bytes(model: Transformer, layout: Layout) -> float:
    """Weights of the two largest blocks: with prefetching, two are gathered at a time."""
    if layout.zero_stage < 3 or layout.num_shards == 1:
        return 0.0
    block = model.shared_parameters / model.layers
    if model.experts:
        block += model.expert_parameters / layout.ep
    return _WEIGHT * (block + max(block, model.head_parameters)) / layout.tp  # there is one head


def _kept_per_token(question: Question, layout: Layout, *, last: bool) -> float:
    """Activations of all micro-batches in flight, per token of one micro-batch."""
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


_ELEMENT = 2  # bytes
_OPTIMIZER_BYTES = 30
"""Bytes per parameter. Read: gradient 2, master weight 4, moments 8. Written: master weight 4,
moments 8, weight 2. The gradient norm reads the gradient again, 2."""
_NS = 1e9


class _Work(msgspec.Struct, frozen=True, kw_only=True):
    """Computation of one micro-batch on the slowest stage of one rank, in seconds."""

    forward_s: float
    backward_s: float
    attention_s: float
    layers: int

    @property
    def total_s(self) -> float:
        return self.forward_s + self.backward_s


class _Axis(msgspec.Struct, frozen=True):
    """Communication of one axis; ``each`` is per micro-batch, ``once`` per step."""

    axis: str
    ranks: int
    path: Path
    sent: float
    time_s: float
    exposed_each_s: float = 0.0
    exposed_once_s: float = 0.0


def estimate(question: Question, layout: Layout, memory: MemoryParts | None = None) -> Estimate:
    """Estimate the costs of a layout without objections, whose memory may already be computed."""
    work = _work(question, layout)
    axes = tuple(_axes(question, layout, work))
    each = work.total_s + sum(axis.exposed_each_s for axis in axes)
    overhead = bubble_overhead(layout.pp, layout.micro_batches, layout.virtual_stages)
    pipeline = layout.micro_batches * each
    optimizer = _optimizer_s(question, layout)
    bubble = pipeline * overhead
    step = pipeline + bubble + optimizer + sum(axis.exposed_once_s for axis in axes)
    tokens = question.batch * question.sequence
    model = question.model
    blocks = model.layers * _block_flop_per_token(question)
    needed = tokens * (blocks + 6 * model.head_parameters)
    peak, gpus = question.cluster.gpu.bf16_flops, question.cluster.num_gpus
    repeated = 4 / 3 if layout.recomputation == "full" else 1.0
    mfu = flop_utilisation(needed, step, gpus, peak)
    return Estimate(
        layout=layout,
        memory=memory or footprint(question, layout),
        step_ns=round(step * _NS),
        compute_ns=round(layout.micro_batches * work.total_s * _NS),
        bubble_ns=round(bubble * _NS),
        optimizer_ns=round(optimizer * _NS),
        bubble_fraction=bubble_fraction(layout.pp, layout.micro_batches, layout.virtual_stages),
        axes=tuple(_cost(axis, layout) for axis in axes),
        tiers=tuple(_tiers(axes, needed * repeated / gpus, peak)),
        mfu=mfu,
        hfu=mfu * repeated,
        tokens_per_s=tokens / step,
    )


def _block_flop_per_token(question: Question) -> float:
    model = question.model
    attention = model.attention_flop_per_token(question.sequence)
    return 6 * model.block_compute_parameters + attention


def _work(question: Question, layout: Layout) -> _Work:
    """Work of the first stage or of the last stage with its logits, whichever takes longer."""
    model = question.model
    layers = math.ceil(model.layers / layout.pp)
    last = layers if layout.pp == 1 else model.layers // layout.pp
    block = _block_flop_per_token(question)
    repeated = 4 / 3 if layout.recomputation == "full" else 1.0
    flop = max(layers * block * repeated, last * block * repeated + 6 * model.head_parameters)
    tokens = layout.micro_batch * question.sequence / layout.cp
    speed = question.cluster.gpu.bf16_flops * question.compute_efficiency
    seconds = tokens * flop / layout.tp / speed
    attention = layers * model.attention_flop_per_token(question.sequence)
    forward = seconds / (4 if layout.recomputation == "full" else 3)
    return _Work(
        forward_s=forward,
        backward_s=seconds - forward,
        attention_s=tokens * attention / layout.tp / speed,
        layers=layers,
    )


def _axes(question: Question, layout: Layout, work: _Work) -> Iterator[_Axis]:
    if layout.tp > 1:
        yield _tensor(question, layout, work)
    if layout.cp > 1:
        yield _context(question, layout, work)
    if layout.ep > 1:
        yield _experts(question, layout, work)
    if layout.pp > 1:
        yield _pipeline(question, layout)
    if layout.replicas > 1:
        yield from _data(question, layout, work)


def _tensor(question: Question, layout: Layout, work: _Work) -> _Axis:
    """Tensor axis; full recomputation repeats the forward of a block with its two all-reduces."""
    path = question.cluster.path(layout.tp, 1)
    tokens, hidden = question.sequence // layout.cp, question.model.hidden
    times = work.layers * (1.5 if layout.recomputation == "full" else 1.0)
    size = layout.micro_batch * tokens * hidden * _ELEMENT
    each = 4 * times * _time(CollectiveKind.ALL_REDUCE, layout.tp, size, path)
    sent = volumes.tensor_parallel_bytes(layout.tp, layout.micro_batch, tokens, hidden) * times
    number = layout.micro_batches
    return _Axis("tp", layout.tp, path, sent * number, each * number, exposed_each_s=each)


def _context(question: Question, layout: Layout, work: _Work) -> _Axis:
    """Ring attention; heads of keys and values are repeated if there are fewer than ranks."""
    model, number = question.model, layout.micro_batches
    path = question.cluster.path(layout.cp, layout.tp)
    if model.latent:
        width = model.heads * model.size_of_value // layout.tp
    else:
        width = max(1, model.kv_heads // layout.tp) * model.size_of_head
    sent = work.layers * volumes.ring_attention_bytes(
        layout.cp, layout.micro_batch, question.sequence, width
    )
    each = sent / path.link_bandwidth + 3 * (layout.cp - 1) * work.layers * path.latency_s
    exposed = max(0.0, each - work.attention_s)
    return _Axis("cp", layout.cp, path, sent * number, each * number, exposed_each_s=exposed)


def _experts(question: Question, layout: Layout, work: _Work) -> _Axis:
    """Expert axis; traffic that leaves the fast domain uses the links of all GPUs in parallel."""
    model, number = question.model, layout.micro_batches
    path = question.cluster.path(layout.ep, layout.tp * layout.cp)
    tokens = layout.micro_batch * question.sequence / layout.cp / layout.tp
    layers = work.layers * model.expert_layers / model.layers
    times = layers * (1.5 if layout.recomputation == "full" else 1.0)
    sent = volumes.expert_parallel_bytes(layout.ep, model.top_k, tokens, model.hidden) * times
    leaving = 1.0
    if path.tier == "inter-node":
        leaving = (layout.ep - path.per_domain) / (layout.ep - 1)
    hops = 4 * times * (layout.ep - 1)
    each = sent * leaving / path.link_bandwidth + hops * path.latency_s
    return _Axis("ep", layout.ep, path, sent * number, each * number, exposed_each_s=each)


def _pipeline(question: Question, layout: Layout) -> _Axis:
    path = question.cluster.path(layout.pp, question.cluster.num_gpus // layout.pp)
    tokens, number = question.sequence // layout.cp, layout.micro_batches
    sent = volumes.pipeline_bytes(layout.micro_batch, tokens, question.model.hidden)
    sent = sent / layout.tp * layout.virtual_stages
    each = sent / path.link_bandwidth + 2 * layout.virtual_stages * path.latency_s
    exposed = each * (layout.pp - 1) / layout.virtual_stages
    return _Axis("pp", layout.pp, path, sent * number, each * number, exposed_once_s=exposed)


def _data(question: Question, layout: Layout, work: _Work) -> Iterator[_Axis]:
    """Data axes: gradients and sharded weights, of dense and expert parameters."""
    dense, experts = stage_parameters(question.model, layout, last=False)
    stride, own = layout.tp, layout.replicas // layout.ep
    groups = [(layout.replicas, stride, dense)]
    if layout.ep == 1:
        groups = [(layout.replicas, stride, dense + experts)]
    elif own > 1:
        groups.append((own, stride * layout.ep, experts))
    found = (part for group in groups for part in _synchronised(question, layout, work, *group))
    by_name = grouped([(part.axis, part) for part in found])
    for parts in by_name.values():  # the axis describes the larger group
        yield replace(
            max(parts, key=lambda part: part.ranks),
            sent=sum(part.sent for part in parts),
            time_s=sum(part.time_s for part in parts),
            exposed_each_s=sum(part.exposed_each_s for part in parts),
            exposed_once_s=sum(part.exposed_once_s for part in parts),
        )


def _synchronised(
    question: Question, layout: Layout, work: _Work, ranks: int, stride: int, parameters: float
) -> Iterator[_Axis]:
    if layout.zero_stage == 3:
        yield from _sharded(question, layout, work, ranks, stride, parameters)
        return
    path = question.cluster.path(ranks, stride)
    one_way = _time(CollectiveKind.REDUCE_SCATTER, ranks, parameters * _ELEMENT, path)
    # Sharded gradients are reduced after every micro-batch, not only after the last
    times = layout.micro_batches if layout.zero_stage == 2 else 1
    behind = max(0.0, one_way - work.backward_s)
    if layout.zero_stage == 0:
        exposed = max(0.0, 2 * one_way - work.backward_s)
    else:
        exposed = max(0.0, one_way - work.forward_s)
    sent = volumes.data_parallel_bytes(ranks, parameters) / 2 * (1 + times)
    yield _Axis(
        "dp",
        ranks,
        path,
        sent,
        one_way * (1 + times),
        exposed_each_s=behind if layout.zero_stage == 2 else 0.0,
        exposed_once_s=exposed + (behind if layout.zero_stage == 1 else 0.0),
    )


def _sharded(
    question: Question, layout: Layout, work: _Work, ranks: int, stride: int, parameters: float
) -> Iterator[_Axis]:
    """The shards of FSDP, and the replicas of HSDP."""
    shards = min(ranks, max(1, layout.num_shards * ranks // layout.replicas))
    replicas = ranks // shards
    is_flat, number = layout.sharding == "fsdp", layout.micro_batches
    if shards > 1:
        # Each micro-batch has two all-gathers and one reduce-scatter; the first gather is exposed
        path = question.cluster.path(shards, stride)
        size = parameters * _ELEMENT / work.layers
        layer = _time(CollectiveKind.ALL_GATHER, shards, size, path)
        ahead, back = work.layers * layer, 2 * work.layers * layer
        exposed = layer + max(0.0, ahead - work.forward_s) + max(0.0, back - work.backward_s)
        sent = volumes.fully_sharded_bytes(shards, parameters) * number
        name = "dp" if is_flat else "dp-shard"
        yield _Axis(name, shards, path, sent, (ahead + back) * number, exposed_each_s=exposed)
    if replicas > 1:
        path = question.cluster.path(replicas, stride * shards)
        size = parameters * _ELEMENT / shards
        reduce_s = _time(CollectiveKind.ALL_REDUCE, replicas, size, path)
        sent = volumes.data_parallel_bytes(replicas, parameters / shards)
        exposed = max(0.0, reduce_s - work.backward_s)
        name = "dp" if is_flat else "dp-replicate"
        yield _Axis(name, replicas, path, sent, reduce_s, exposed_once_s=exposed)


def _optimizer_s(question: Question, layout: Layout) -> float:
    """Time of the optimizer, which is memory-bound: it reads and writes its whole state once."""
    dense, experts = stage_parameters(question.model, layout, last=False)
    shards = layout.num_shards
    own = dense / shards + experts / max(1, shards // layout.ep)
    return own * _OPTIMIZER_BYTES / question.cluster.gpu.memory_bandwidth


def _time(kind: CollectiveKind, ranks: int, num_bytes: float, path: Path) -> float:
    how: dict[str, Any] = {"alpha_s": path.latency_s, "bandwidth": path.bandwidth}
    return collective_time(kind, ranks, num_bytes, algorithm="recursive", **how)


def _cost(axis: _Axis, layout: Layout) -> AxisCost:
    exposed = layout.micro_batches * axis.exposed_each_s + axis.exposed_once_s
    return AxisCost(
        axis=axis.axis,
        ranks=axis.ranks,
        tier=axis.path.tier,
        sent_bytes=round(axis.sent),
        time_ns=round(axis.time_s * _NS),
        exposed_ns=round(exposed * _NS),
    )


def _tiers(axes: tuple[_Axis, ...], flop: float, peak: float) -> Iterator[TierPosition]:
    """Roofline position of each tier, at the bandwidth that its axes reach."""
    for tier in ("scale-up", "inter-node"):
        on_it = [axis for axis in axes if axis.path.tier == tier and axis.sent > 0]
        if on_it:
            sent = sum(axis.sent for axis in on_it)
            needed = sum(axis.sent / axis.path.bandwidth for axis in on_it)
            bend = ridge(peak, sent / needed)
            position = regime(flop / sent, bend)
            yield TierPosition(tier=tier, flop_per_byte=flop / sent, ridge=bend, regime=position)
