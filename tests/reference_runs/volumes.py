"""What a step of each reference run communicates, from the formula sheet and nothing else.

Formula sheet, "Volume per training step, each rank". Bytes are n as nccl-tests counts it: the
full buffer of an all-reduce, the gathered size of an all-gather and reduce-scatter, the send buffer
of an all-to-all, the message of a send. Free of torch and of the code that trains.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from distprof_runs.model_parallel_options import (
    CpOptions,
    MoeOptions,
    PpOptions,
    ThreeDOptions,
    TpOptions,
)
from distprof_runs.options import (
    DdpOptions,
    FsdpOptions,
    ModelOptions,
    TrainingOptions,
    WorkloadOptions,
)
from distprof_runs.pipeline_plan import PipelinePlan

from distprof.terms import CollectiveKind

__all__ = ["Volume", "add_up", "expected_volumes", "members_along", "num_parameters"]

AR, AG, RS = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
)
A2A, SEND, RECV = CollectiveKind.ALL_TO_ALL, CollectiveKind.SEND, CollectiveKind.RECV
FP32 = 4

Routing = Mapping[int, Sequence[Sequence[int]]]
"""Rank to its tokens per expert, for each layer and micro-batch of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """Collectives of one rank in one step.

    Args:
        kind: Of collective.
        axis: Mesh axis of the group; ``world`` for all ranks.
        count: How many; None where torch decides (buckets).
        total_bytes: n, summed over them.
    """

    kind: CollectiveKind
    axis: str
    count: int | None
    total_bytes: int


def expected_volumes(
    options: WorkloadOptions,
    model: ModelOptions,
    training: TrainingOptions,
    world_size: int,
    rank: int,
    routing: Routing | None = None,
) -> list[Volume]:
    """All collectives of one rank in one step, in float32.

    Args:
        options: Of the workload.
        model: Resolved sizes.
        training: Common options.
        world_size: Ranks of the job.
        rank: Whose.
        routing: What the routers did, before drops; None: uniform, as many rows come as go.
    """
    case = _Case(
        options=options,
        model=model,
        training=training,
        ranks=world_size,
        rank=rank,
        routing=routing,
    )
    match options:
        case DdpOptions():
            found = _ddp(case, options)
        case FsdpOptions():
            found = _fsdp(case, options)
        case TpOptions():
            found = _tp(case, options)
        case PpOptions():
            found = _pp(case, options.plan(model, training, world_size), rank, "pp")
        case MoeOptions():
            dense = num_parameters(model, experts=0, router=options.experts)
            found = [*_ep(case, "ep", model.layers), _once(AR, "ep", dense)]
        case CpOptions():
            found = _cp(case, options)
        case ThreeDOptions():
            found = _three_d(case, options)
        case _:
            raise TypeError(f"no expectation for {options.name}")
    return add_up([*found, *_clipping(case)])


def add_up(volumes: Iterable[Volume]) -> list[Volume]:
    """One for each kind and axis; the count is None if one of them is."""
    total: Counter[tuple[CollectiveKind, str]] = Counter()
    counts: dict[tuple[CollectiveKind, str], int | None] = {}
    for volume in volumes:
        key = volume.kind, volume.axis
        total[key] += volume.total_bytes
        before = counts.get(key, 0)
        unknown = before is None or volume.count is None
        counts[key] = None if unknown else (before or 0) + (volume.count or 0)
    return [
        Volume(kind=key[0], axis=key[1], count=counts[key], total_bytes=total[key])
        for key in sorted(total)
    ]


def num_parameters(
    model: ModelOptions,
    *,
    layers: int | None = None,
    tp: int = 1,
    experts: int | None = None,
    router: int = 0,
    first: bool = True,
    last: bool = True,
) -> int:
    """Parameters of one rank.

    Args:
        model: Resolved sizes.
        layers: Blocks; None for all.
        tp: Ranks that share attention and feed-forward weights.
        experts: Experts of a layer counted here; None for a dense layer.
        router: Experts that the router knows.
        first: Whether the embedding is counted.
        last: Whether norm and output are counted.
    """
    kv = model.hidden * model.kv_heads // model.heads
    attention = 2 * model.hidden * (model.hidden + kv)
    feed_forward = 3 * model.hidden * model.ffn
    if experts is None:
        block = (attention + feed_forward) // tp
    else:
        block = attention // tp + experts * feed_forward + router * model.hidden
    block += 2 * model.hidden
    count = model.layers if layers is None else layers
    ends = (first + last) * model.vocabulary * model.hidden + last * model.hidden
    return count * block + ends


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    options: WorkloadOptions
    model: ModelOptions
    training: TrainingOptions
    ranks: int
    rank: int
    routing: Routing | None

    @property
    def micro_batches(self) -> int:
        return self.training.micro_batches

    @property
    def recomputed(self) -> bool:
        return self.training.checkpoint_activations

    @property
    def activation(self) -> int:
        """B · S · H, in bytes."""
        return self.training.batch * self.model.sequence * self.model.hidden * FP32


def _volume(kind: CollectiveKind, axis: str, count: int, each: int) -> Volume:
    return Volume(kind=kind, axis=axis, count=count, total_bytes=count * each)


def _once(kind: CollectiveKind, axis: str, elements: int, times: int = 1) -> Volume:
    """In as many pieces as torch likes."""
    return Volume(kind=kind, axis=axis, count=None, total_bytes=elements * FP32 * times)


def _clipping(case: _Case) -> Iterator[Volume]:
    """One number, except where each rank has all gradients."""
    whole = isinstance(case.options, DdpOptions | CpOptions) or (
        isinstance(case.options, FsdpOptions) and case.options.zero == "1"
    )
    if case.training.clip_grad_norm and not whole:
        yield _volume(AR, "world", 1, FP32)


def _ddp(case: _Case, options: DdpOptions) -> list[Volume]:
    n = num_parameters(case.model)
    times = 1 if options.no_sync else case.micro_batches
    if options.hook in ("fp16", "bf16"):
        return [Volume(kind=AR, axis="dp_replicate", count=None, total_bytes=2 * n * times)]
    if options.hook != "none":
        raise ValueError(f"what hook {options.hook} sends is its own affair")
    return [_once(AR, "dp_replicate", n, times)]


def _fsdp(case: _Case, options: FsdpOptions) -> list[Volume]:
    n, m = num_parameters(case.model), case.micro_batches
    if options.zero == "1":
        return [_once(AR, "dp_replicate", n), _once(CollectiveKind.BROADCAST, "dp_replicate", n)]
    groups = 1 if options.flat else case.model.layers + 1
    gathers = 2 if options.zero == "3" else 1
    reductions = 1 if options.no_sync else m
    shards = case.ranks // options.replicas
    volumes = [
        Volume(
            kind=AG,
            axis="dp_shard",
            count=groups * gathers * m,
            total_bytes=gathers * n * m * FP32,
        ),
        Volume(
            kind=RS, axis="dp_shard", count=groups * reductions, total_bytes=n * reductions * FP32
        ),
    ]
    if options.replicas > 1:
        each = n // shards * FP32
        volumes.append(
            Volume(
                kind=AR,
                axis="dp_replicate",
                count=groups * reductions,
                total_bytes=each * reductions,
            )
        )
    return volumes


def _tp(case: _Case, options: TpOptions) -> list[Volume]:
    """4 all-reduces a layer; or as many all-gathers and reduce-scatters, and those at the ends."""
    layers, m, norms = case.model.layers, case.micro_batches, 2 * case.model.layers + 1
    numbers = case.training.batch * case.model.sequence * FP32
    of_loss = [_volume(AR, "tp", 3 * m, numbers)] if options.loss_parallel else []
    # Recomputation stops when it has what backward needs, which is before the last reduction.
    if not options.sequence_parallel:
        per_layer = 5 if case.recomputed else 4
        count = m * (per_layer * layers + options.loss_parallel)
        return [_volume(AR, "tp", count, case.activation), *of_loss]
    gathers = m * ((6 if case.recomputed else 4) * layers + 2)
    scatters = m * ((5 if case.recomputed else 4) * layers + options.loss_parallel)
    norm = case.model.hidden * FP32
    of_norms = (3 * norms, norm) if options.partial_norm_gradients else (1, norms * norm)
    return [
        _volume(AG, "tp", gathers, case.activation),
        _volume(RS, "tp", scatters, case.activation),
        _volume(AR, "tp", *of_norms),
        *of_loss,
    ]


def _pp(case: _Case, plan: PipelinePlan, rank: int, axis: str) -> list[Volume]:
    """An activation forward and a gradient backward per boundary and micro-batch."""
    boundaries = sum(rank in pair for pair in plan.crossings())
    count = boundaries * case.micro_batches
    return [_volume(kind, axis, count, case.activation) for kind in (SEND, RECV)]


def _ep(case: _Case, axis: str, layers: int) -> list[Volume]:
    """Counts, and 4 all-to-alls of rows: dispatch and combine, forward and backward."""
    options = case.options
    assert isinstance(options, MoeOptions | ThreeDOptions)
    sent, received = _rows(case, options, axis, layers)
    forwards = 2 if case.recomputed else 1
    calls = layers * case.micro_batches
    row = case.model.hidden * FP32
    of_own_tokens = sent * (forwards + 1)  # dispatch; backward of combine
    of_own_experts = received * (forwards + 1)  # the other two
    return [
        _volume(A2A, axis, calls * forwards, options.experts * 8),
        Volume(
            kind=A2A,
            axis=axis,
            count=calls * 2 * (forwards + 1),
            total_bytes=(of_own_tokens + of_own_experts) * row,
        ),
    ]


def _rows(
    case: _Case, options: MoeOptions | ThreeDOptions, axis: str, layers: int
) -> tuple[int, int]:
    """Rows that a rank's tokens make, and rows that come to its experts."""
    tokens = case.training.batch * case.model.sequence
    if case.routing is None:
        return (options.top_k * tokens * layers * case.micro_batches,) * 2
    factor = getattr(options, "capacity_factor", 0.0)
    even = options.top_k * tokens / options.experts
    capacity = math.ceil(factor * even) if factor else math.inf
    peers = members_along(axis, case.rank, options.mesh(case.ranks))
    each = options.experts // len(peers)
    first = peers.index(case.rank) * each
    kept = {
        peer: [[min(count, capacity) for count in counts] for counts in case.routing[peer]]
        for peer in peers
    }
    sent = sum(sum(counts) for counts in kept[case.rank])
    received = sum(sum(counts[first : first + each]) for peer in peers for counts in kept[peer])
    return int(sent), int(received)


def _cp(case: _Case, options: CpOptions) -> list[Volume]:
    calls, p = case.model.layers * case.micro_batches, case.ranks
    forwards = 2 if case.recomputed else 1
    queries = case.activation // p
    keys = queries * case.model.kv_heads // case.model.heads
    gradients = _once(AR, "cp", num_parameters(case.model))
    if options.method == "ring":
        hops = calls * (forwards + 2) * (p - 1)  # twice in backward: blocks and their gradients
        return [gradients, *(_volume(kind, "cp", hops, 2 * keys) for kind in (SEND, RECV))]
    return [
        gradients,
        _volume(A2A, "cp", 2 * calls * (forwards + 1), queries),  # query and output
        _volume(A2A, "cp", 2 * calls * (forwards + 1), keys),  # key and value
    ]


def _three_d(case: _Case, options: ThreeDOptions) -> list[Volume]:
    sizes = options.mesh(case.ranks)
    shards, replicas = sizes.get("dp_shard", 1), sizes.get("dp_replicate", 1)
    layers, first, last = case.model.layers, True, True
    volumes: list[Volume] = []
    if options.pp > 1:
        plan = options.plan(case.model, case.training)
        stage = members_along("pp", case.rank, sizes).index(case.rank)
        volumes += _pp(case, plan, stage, "pp")
        own = plan.stages_of(stage)
        layers = sum(plan.blocks[number] for number in own)
        first, last = 0 in own, plan.num_stages - 1 in own
    if options.tp > 1:
        halves = 2 if options.experts else 4  # experts are not split
        count = (halves + case.recomputed) * layers * case.micro_batches
        volumes.append(_volume(AR, "tp", count, case.activation))
    here: int | None = None  # experts that are sharded and reduced like the rest
    if options.experts:
        here = options.experts if options.ep == 1 else 0
    n = num_parameters(
        case.model,
        layers=layers,
        tp=options.tp,
        experts=here,
        router=options.experts,
        first=first,
        last=last,
    )
    if options.ep > 1:
        volumes += _ep(case, "dp_shard", layers)
    if shards > 1:  # each weight is gathered and each gradient reduced once a step
        volumes += [_once(AG, "dp_shard", n), _once(RS, "dp_shard", n)]
    if replicas > 1:
        own_experts = options.experts // options.ep if options.ep > 1 else 0
        expert = 3 * case.model.hidden * case.model.ffn
        volumes.append(_once(AR, "dp_replicate", n // shards + layers * own_experts * expert))
    return volumes


def members_along(axis: str, rank: int, sizes: Mapping[str, int]) -> list[int]:
    """Ranks of the group that ``rank`` is in along a mesh axis; the last axis varies fastest."""
    stride = 1
    for name in reversed(sizes):
        if name == axis:
            first = rank - rank // stride % sizes[name] * stride
            return [first + index * stride for index in range(sizes[name])]
        stride *= sizes[name]
    return [rank]
