"""Whole jobs of the usual parallelisms, on machines of several nodes, badly recorded.

Times of an operation are those of a healthy rank. All jobs hold one small all-reduce of the world
per step, as a gradient norm needs it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from distprof.terms import CollectiveKind
from tests.simulator.job import (
    COPIES,
    DDP_STEP,
    MS,
    Collective,
    Compute,
    Copy,
    Exchange,
    Input,
    Marked,
    Op,
    SimulatedJob,
    Wait,
)

__all__ = [
    "Shape",
    "data_parallel",
    "hybrid",
    "long_documents",
    "mixture",
    "offloaded",
    "pipeline",
    "sharded",
    "tensor_parallel",
]

NORM = Collective(bytes=4, transfer_ns=20_000)
ADAM = Compute(ns=MS, name="adam", fixed=True)
KERNELS = 12
"""Of a micro-batch on a usual pipeline stage."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A machine.

    Args:
        num_nodes: Hosts.
        per_node: Ranks of each.
    """

    num_nodes: int
    per_node: int

    @property
    def world_size(self) -> int:
        return self.num_nodes * self.per_node


def _recorded(shape: Shape, dice: random.Random, num_steps: int) -> dict[str, object]:
    """What all jobs share: nodes whose clocks are off by up to 10 ms and drift, torn captures."""
    nodes = shape.num_nodes
    return {
        "num_nodes": nodes,
        "ranks_per_node": shape.per_node,
        "num_steps": num_steps,
        "seed": dice.randrange(1 << 30),
        "compute_noise": dice.choice((0.005, 0.02, 0.05)),
        "device_spread": dice.choice((0.0, 0.002, 0.005)),
        "host_noise_ns": dice.choice((0, 20_000, 100_000)),
        "clock_offset_ns": tuple(dice.randint(-10 * MS, 10 * MS) for _ in range(nodes)),
        "clock_drift_ppm": tuple(dice.uniform(-10, 10) for _ in range(nodes)),
        "capture_skip": {rank: dice.randint(0, 5) for rank in range(shape.world_size)},
    }


def data_parallel(shape: Shape, dice: random.Random, *, num_steps: int = 10) -> SimulatedJob:
    """Every rank holds the whole model."""
    program = (*DDP_STEP[:-1], NORM, ADAM)
    return SimulatedJob(program=program, **_recorded(shape, dice, num_steps))  # type: ignore[arg-type]


def tensor_parallel(shape: Shape, dice: random.Random, *, num_steps: int = 10) -> SimulatedJob:
    """A layer is split over the ranks of a node, gradients are reduced across nodes."""
    layer = (
        Compute(ns=MS),
        Collective(axis="tp", transfer_ns=MS // 10, bytes=1 << 20),
        Compute(ns=MS, name="gemm_f16_64x256"),
        Collective(axis="tp", transfer_ns=MS // 10, bytes=1 << 20),
    )
    reduce = Collective(axis="dp", transfer_ns=3 * MS, bytes=64 << 20)
    program = (Input(), *layer * 4, reduce, NORM, ADAM)
    axes = _mesh(shape)
    return SimulatedJob(program=program, axes=axes, **_recorded(shape, dice, num_steps))  # type: ignore[arg-type]


def sharded(shape: Shape, dice: random.Random, *, num_steps: int = 10) -> SimulatedJob:
    """Parameters are gathered one layer ahead, gradients are reduced and scattered (FSDP)."""
    program = _layers_gathered(dice)
    return SimulatedJob(program=program, **_recorded(shape, dice, num_steps))  # type: ignore[arg-type]


def offloaded(
    shape: Shape, dice: random.Random, *, num_steps: int = 10, copied_ns: int
) -> SimulatedJob:
    """Parameters are on the CPU: each is copied before it is gathered, and gradients back."""
    program = _layers_gathered(dice, copied_ns=copied_ns)
    return SimulatedJob(program=program, **_recorded(shape, dice, num_steps))  # type: ignore[arg-type]


def hybrid(shape: Shape, dice: random.Random, *, num_steps: int = 10) -> SimulatedJob:
    """Sharded inside each node; gradients are also reduced between nodes (HSDP)."""
    mesh = _mesh(shape)
    axes = {"dp_shard": mesh["tp"], "dp_replicate": mesh["dp"]}
    program = _layers_gathered(dice, axis="dp_shard", replicated="dp_replicate")
    return SimulatedJob(program=program, axes=axes, **_recorded(shape, dice, num_steps))  # type: ignore[arg-type]


def _layers_gathered(
    dice: random.Random, axis: str = "world", replicated: str = "", copied_ns: int = 0
) -> tuple[Op, ...]:
    """A step of layers whose parameters are gathered on ``axis`` one layer ahead.

    With ``copied_ns`` they are copied to the device before, and gradients from it afterwards.
    """
    layers, size = dice.randint(3, 6), dice.randint(8, 64) << 20
    moved = round(MS * dice.uniform(0.3, 0.9))
    work = round(MS * dice.uniform(0.8, 1.5))
    gather = Collective(
        kind=CollectiveKind.ALL_GATHER, bytes=size, transfer_ns=moved, axis=axis, overlap=True
    )
    reduce: tuple[Op, ...] = (replace(gather, kind=CollectiveKind.REDUCE_SCATTER),)
    if replicated:
        part = Collective(bytes=size // 4, transfer_ns=moved // 2, axis=replicated, overlap=True)
        reduce = (*reduce, replace(part, takes=axis))
    fetch: tuple[Op, ...] = (gather,)
    if copied_ns:
        fetch = (Copy(ns=copied_ns, bytes=size), replace(gather, takes=COPIES))
        reduce = (*reduce, Copy(ns=copied_ns, bytes=size, out=True))
    program: list[Op] = [Input(), *fetch]
    for layer in range(layers):
        program += [Wait(), *fetch, Compute(ns=work, name=f"forward_{layer % 2}", kernels=6)]
    for _ in range(layers):
        program += [Wait(), *fetch, Compute(ns=2 * work, name="backward", kernels=8), *reduce]
    return (*program, Wait(), NORM, ADAM)


def _mesh(shape: Shape) -> dict[str, tuple[tuple[int, ...], ...]]:
    """tp within a node, dp across nodes."""
    world, per_node = shape.world_size, shape.per_node
    return {
        "tp": tuple(tuple(range(low, low + per_node)) for low in range(0, world, per_node)),
        "dp": tuple(tuple(range(i, world, per_node)) for i in range(per_node)),
    }


def long_documents(
    shape: Shape, dice: random.Random, *, num_steps: int = 12, packed: bool, spread: float
) -> SimulatedJob:
    """Data parallel; batches hold documents of unlike lengths.

    Packed batches have the same number of tokens, so that only attention takes longer, by the sum
    of the squared lengths. Others have more tokens, and all that works on tokens takes longer.

    Args:
        shape: The machine.
        dice: For what is random.
        num_steps: Recorded steps.
        packed: Whether all batches have the same number of tokens.
        spread: Standard deviation of the logarithm of a document's length; 0 for equal ones.
    """
    attention, tokens = "attention", "" if packed else "tokens"
    layer = (
        Compute(ns=MS, name="gemm_f16_128x128", follows=tokens),
        Compute(ns=MS, name="flash_fwd_kernel", follows=attention, kernels=2),
    )
    back = (
        Compute(ns=MS, name="flash_bwd_kernel", follows=attention, kernels=2),
        Compute(ns=2 * MS, name="gemm_f16_64x256", follows=tokens),
    )
    reduce = Collective(bytes=25 << 20, overlap=True)
    program = (Input(), *layer * 2, *(*back, reduce) * 2, Wait(), NORM, ADAM)
    return SimulatedJob(
        program=program,
        **_documents(shape, dice, num_steps, spread),  # type: ignore[arg-type]
        **_recorded(shape, dice, num_steps),  # type: ignore[arg-type]
    )


def _documents(
    shape: Shape, dice: random.Random, num_steps: int, spread: float
) -> dict[str, dict[tuple[str, int, int], float] | dict[tuple[int, int], int]]:
    """Load and tokens of each rank and step, relative to a batch of eight usual documents."""
    load: dict[tuple[str, int, int], float] = {}
    tokens: dict[tuple[int, int], int] = {}
    for rank in range(shape.world_size):
        for step in range(10, 10 + num_steps):
            lengths = [1024 * dice.lognormvariate(0, spread) for _ in range(8)]
            load["tokens", rank, step] = sum(lengths) / 8 / 1024
            load["attention", rank, step] = sum(n * n for n in lengths) / 8 / 1024**2
            tokens[rank, step] = round(sum(lengths))
    return {"load": load, "tokens": tokens}


def mixture(
    shape: Shape,
    dice: random.Random,
    *,
    num_steps: int = 10,
    hot: int | None = None,
    times: float = 1.0,
    with_splits: bool = False,
    bound_by_latency: bool = False,
) -> SimulatedJob:
    """Experts spread over the ranks of a node, two on each, three layers.

    Args:
        shape: The machine.
        dice: For what is random.
        num_steps: Recorded steps.
        hot: An expert that gets more tokens; None for even routing.
        times: How many times the mean it gets before all are scaled.
        with_splits: Whether what is routed decides how long the exchanges take, and traces say
            how many tokens they carry.
        bound_by_latency: Whether exchanges with splits last equally long all the same.
    """
    layers = ("0", "1", "2")
    program: list[Op] = [Input()]
    for times_ns in (MS, 2 * MS):  # forward, backward
        for layer in layers:
            expert = Compute(ns=times_ns, name="grouped_gemm", follows=f"experts {layer}")
            there, back = _exchanges(layer if with_splits else "", bound_by_latency)
            program += [Compute(ns=times_ns), there, expert, back]
    program += [Collective(bytes=25 << 20), NORM, ADAM]
    num_experts = 2 * shape.per_node
    load, routing = _routed(shape, dice, layers, num_experts, num_steps, hot, times)
    return SimulatedJob(
        program=tuple(program),
        axes={"ep": _mesh(shape)["tp"]},
        load=load,
        routing=routing,
        **_recorded(shape, dice, num_steps),  # type: ignore[arg-type]
    )


def _exchanges(tokens_of: str, bound_by_latency: bool) -> tuple[Collective, Collective]:
    there = Collective(
        kind=CollectiveKind.ALL_TO_ALL,
        axis="ep",
        transfer_ns=MS // 5,
        bytes=4 << 20,
        tokens_of=tokens_of,
        is_bound_by_latency=bound_by_latency,
    )
    return there, replace(there, brings_back=True)


def _routed(
    shape: Shape,
    dice: random.Random,
    layers: Sequence[str],
    num_experts: int,
    num_steps: int,
    hot: int | None,
    times: float,
) -> tuple[dict[tuple[str, int, int], float], dict[tuple[str, int, int], tuple[int, ...]]]:
    """Tokens by expert, and from them how long each rank's experts compute."""
    load: dict[tuple[str, int, int], float] = {}
    routing: dict[tuple[str, int, int], tuple[int, ...]] = {}
    weights = [times if expert == hot else 1.0 for expert in range(num_experts)]
    share = [weight / sum(weights) for weight in weights]
    local = num_experts // shape.per_node
    for step in range(10, 10 + num_steps):
        for layer in layers:
            for low in range(0, shape.world_size, shape.per_node):
                group = range(low, low + shape.per_node)
                total = [0] * num_experts
                for rank in group:
                    counts = [round(8192 * part * dice.gauss(1, 0.01)) for part in share]
                    routing[layer, rank, step] = tuple(counts)
                    total = [a + b for a, b in zip(total, counts, strict=True)]
                for place, rank in enumerate(group):
                    mine = sum(total[place * local : (place + 1) * local])
                    load[f"experts {layer}", rank, step] = mine * shape.per_node / sum(total)
    return load, routing


def pipeline(
    stages: int,
    replicas: int,
    dice: random.Random,
    *,
    num_steps: int = 8,
    micro_batches: int = 8,
    skew: Sequence[float] = (),
    chunks: int = 1,
) -> SimulatedJob:
    """One forward, one backward, with marks; a stage of all replicas is a node.

    With several ``chunks``, each rank holds every ``stages``-th of them; all forwards of a chunk
    come before those of the next (looped, breadth first).

    Args:
        stages: Stages, each on one rank of each replica.
        replicas: Data-parallel copies.
        dice: For what is random.
        num_steps: Recorded steps.
        micro_batches: Per step.
        skew: How many times as many kernels each stage runs; all 1 when empty.
        chunks: Stages of each rank.
    """
    shape = Shape(num_nodes=stages, per_node=replicas)
    world = shape.world_size
    ends = (replicas, tuple(skew))
    programs = {
        rank: tuple(
            _stage_program(rank // replicas, stages, micro_batches, *ends)
            if chunks == 1
            else _looped_program(rank // replicas, stages, chunks, micro_batches, *ends)
        )
        for rank in range(world)
    }
    axes = {"pp": tuple(tuple(range(d, world, replicas)) for d in range(replicas))}
    if replicas > 1:
        axes["dp"] = tuple(tuple(range(low, low + replicas)) for low in range(0, world, replicas))
    return SimulatedJob(
        programs=programs,
        axes=axes,
        **_recorded(shape, dice, num_steps),  # type: ignore[arg-type]
    )


def _stage_program(
    stage: int, stages: int, micro_batches: int, replicas: int, skew: tuple[float, ...]
) -> Iterator[Op]:
    factor = skew[stage] if skew else 1.0
    warm_up = min(stages - stage - 1, micro_batches)
    order = [("F", m) for m in range(warm_up)]
    for m in range(micro_batches - warm_up):
        order += [("F", warm_up + m), ("B", m)]
    order += [("B", m) for m in range(micro_batches - warm_up, micro_batches)]
    yield Input()
    for op, m in order:
        yield from _slot(op, m, stage, stages, stages, factor)
    yield from _after_slots(replicas)


def _looped_program(
    rank: int, ranks: int, chunks: int, micro_batches: int, replicas: int, skew: tuple[float, ...]
) -> Iterator[Op]:
    held = [rank + ranks * chunk for chunk in range(chunks)]
    order = [("F", m, stage) for stage in held for m in range(micro_batches)]
    order += [("B", m, stage) for stage in reversed(held) for m in range(micro_batches)]
    yield Input()
    for op, m, stage in order:
        yield from _slot(op, m, stage, ranks * chunks, ranks, skew[stage] if skew else 1.0)
    yield from _after_slots(replicas)


def _slot(op: str, m: int, stage: int, stages: int, ranks: int, factor: float) -> Iterator[Op]:
    ahead = 1 if op == "F" else -1
    here, before, after = (at % ranks for at in (stage, stage - ahead, stage + ahead))
    if 0 <= stage - ahead < stages:
        yield Exchange(src=before, dst=here, axis="pp", detached=True)
    # Layers are made of the same kernels: more of them are more kernels, not longer ones.
    whole = MS if op == "F" else 2 * MS
    work = Compute(ns=round(whole * factor), kernels=round(KERNELS * factor))
    yield Marked(name=f"distprof:pp stage={stage} op={op} mb={m}", ops=(work,))
    if 0 <= stage + ahead < stages:
        yield Exchange(src=here, dst=after, axis="pp", detached=True)


def _after_slots(replicas: int) -> Iterator[Op]:
    if replicas > 1:
        yield Collective(axis="dp", transfer_ns=MS, bytes=25 << 20)
    yield NORM
    yield ADAM
