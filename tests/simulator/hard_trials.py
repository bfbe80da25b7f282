"""Faults that one rank in every step does not show, in jobs of every parallelism.

Sets of ranks, ranks that are slow for some steps only, two faults at once, devices and data whose
symptom looks like another's. Hosts of half of the jobs run ahead of their devices, captures are
ragged at both ends. Each builder takes the dice and the workload.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from tests.simulator.job import (
    MS,
    US,
    Copy,
    Fault,
    LargerInputs,
    LateHost,
    LateInput,
    NamedPause,
    NoisyHost,
    SimulatedJob,
    SlowCopies,
    SlowDevice,
    SlowLaunches,
    SlowLink,
)
from tests.simulator.shapes import (
    Shape,
    data_parallel,
    hybrid,
    mixture,
    offloaded,
    pipeline,
    sharded,
    tensor_parallel,
)
from tests.simulator.trials import Trial, Truth

__all__ = [
    "BLAMELESS",
    "HARD_FAULTS",
    "WORKLOADS",
    "hard_trial_of",
    "hot_rank_of_short_messages",
    "missing_culprit",
    "noisy_hot_rank",
    "offloads",
    "one_missing",
]

SHAPES = (
    Shape(num_nodes=2, per_node=2),
    Shape(num_nodes=2, per_node=4),
    Shape(num_nodes=4, per_node=2),
    Shape(num_nodes=4, per_node=4),
    Shape(num_nodes=2, per_node=8),
)
PIPELINES = ((2, 2), (4, 1), (4, 2), (2, 4), (4, 4), (8, 1), (8, 2))
"""Stages and replicas."""

SLOWER = "It runs the same kernels slower", "They run the same kernels slower"
LARGER = ("more work: larger inputs",)
LATE_INPUT = "Its input arrives late", "Their input arrives late", "waits for input"
MORE_TOKENS = "more tokens", "times the tokens", "times the mean"

PER_RANK = ("STR101", "STR102", "STR103")
OF_INPUT = (*PER_RANK, "STR104", "INP102")


def _plain(kind: Callable[..., SimulatedJob]) -> Callable[[random.Random], SimulatedJob]:
    def build(dice: random.Random) -> SimulatedJob:
        return kind(dice.choice(SHAPES), dice, num_steps=dice.randint(6, 12))

    return build


def _experts(dice: random.Random) -> SimulatedJob:
    steps = dice.randint(6, 12)
    return mixture(dice.choice(SHAPES), dice, num_steps=steps, with_splits=True)


def _stages(dice: random.Random) -> SimulatedJob:
    return pipeline(*dice.choice(PIPELINES), dice, num_steps=dice.randint(6, 12))


WORKLOADS: Mapping[str, Callable[[random.Random], SimulatedJob]] = {
    "ddp": _plain(data_parallel),
    "fsdp": _plain(sharded),
    "hsdp": _plain(hybrid),
    "tp_dp": _plain(tensor_parallel),
    "moe": _experts,
    "1f1b": _stages,
}


def recorded(job: SimulatedJob, dice: random.Random) -> SimulatedJob:
    """As half of all jobs are: the host runs ahead; captures end raggedly and stamps are noisy."""
    cut = {rank: dice.randint(0, 3) for rank in range(job.world_size)}
    noise = random.Random(f"stamps {job.seed}").choice((0, 20, 200, 1000))
    job = replace(job, capture_cut=cut, stamp_noise_ns=noise)
    if dice.random() < 0.5:
        return job
    return replace(job, synchronise=False, queue_depth=dice.choice((8, 32, 128, 1024)))


def job_of(workload: str, dice: random.Random) -> SimulatedJob:
    """A job of this kind with nothing wrong."""
    return recorded(WORKLOADS[workload](dice), dice)


def slow(ranks: Iterable[int], factor: float, steps: range | None = None) -> tuple[Fault, ...]:
    """Devices that are slow alike."""
    return tuple(SlowDevice(rank=rank, factor=factor, steps=steps) for rank in ranks)


def _with(job: SimulatedJob, faults: tuple[Fault, ...], says: tuple[str, ...]) -> Trial:
    truth = Truth(
        sound=job,
        says=says,
        ranks=frozenset(fault.rank for fault in faults),
        codes=PER_RANK,
        exact=True,
    )
    return Trial(job=replace(job, faults=faults), truths=(truth,))


def part_of_step(job: SimulatedJob, dice: random.Random) -> int:
    return round(job.run().mean_step_ns() * dice.uniform(0.08, 0.3))


# Sets ---------------------------------------------------------------------------------------------


def slow_node(workload: str, dice: random.Random) -> Trial:
    """All devices of a node are slow by 5 to 40 %."""
    job = job_of(workload, dice)
    node = dice.randrange(job.num_nodes)
    ranks = [rank for rank in range(job.world_size) if job.node_of(rank) == node]
    return _with(job, slow(ranks, dice.uniform(1.05, 1.4)), SLOWER)


def slow_half(workload: str, dice: random.Random) -> Trial:
    """Half of all ranks, whichever, are slow."""
    job = job_of(workload, dice)
    ranks = dice.sample(range(job.world_size), job.world_size // 2)
    return _with(job, slow(ranks, dice.uniform(1.05, 1.4)), SLOWER)


def slow_group(workload: str, dice: random.Random) -> Trial:
    """A group of some axis is slow: a tensor group, a pipeline stage, a position of all nodes."""
    job = job_of(workload, dice)
    groups = [group for groups in job.axes.values() for group in groups]
    groups = [group for group in groups if 1 < len(group) < job.world_size]
    # Of one rank per node a position of all nodes is the whole job, which nothing is compared with.
    groups = groups or [tuple(range(0, job.world_size, max(2, job.ranks_per_node)))]
    return _with(job, slow(dice.choice(groups), dice.uniform(1.05, 1.4)), SLOWER)


def late_node(workload: str, dice: random.Random) -> Trial:
    """The storage of a node is slow: the input of all of its ranks is late."""
    job = job_of(workload, dice)
    node, ns = dice.randrange(job.num_nodes), part_of_step(job, dice)
    ranks = [rank for rank in range(job.world_size) if job.node_of(rank) == node]
    trial = _with(job, tuple(LateInput(rank=rank, ns=ns) for rank in ranks), LATE_INPUT)
    return replace(trial, truths=(replace(trial.truths[0], codes=OF_INPUT),))


# Some steps only ----------------------------------------------------------------------------------


def rotates(workload: str, dice: random.Random) -> Trial:
    """Another rank each step, 1.2 to 1.4 times slower."""
    job = job_of(workload, dice)
    factor = dice.uniform(1.2, 1.4)
    order = dice.sample(range(job.world_size), job.world_size)
    faults = tuple(
        SlowDevice(rank=order[number % len(order)], factor=factor, steps=(step,))
        for number, step in enumerate(job.steps)
    )
    trial = _with(job, faults, ("alternately", "in turn", "another rank"))
    return replace(trial, truths=(replace(trial.truths[0], exact=False),))


def stalls(workload: str, dice: random.Random) -> Trial:
    """One rank is slow in one or two steps, 1.5 times."""
    job = job_of(workload, dice)
    steps = tuple(dice.sample(job.steps[1:-1], dice.choice((1, 2))))
    fault = SlowDevice(rank=dice.randrange(job.world_size), factor=1.5, steps=steps)
    return _with(job, (fault,), ("in step", *SLOWER))


def throttles(workload: str, dice: random.Random) -> Trial:
    """A device is 8 to 15 % slower from some step on."""
    job = job_of(workload, dice)
    first = dice.randint(job.steps[2], job.steps[-3])
    rank, factor = dice.randrange(job.world_size), dice.uniform(1.08, 1.15)
    steps = range(first, job.steps[-1] + 1)
    return _with(job, slow([rank], factor, steps), (f"from step {first} on", *SLOWER))


def slow_copies(workload: str, dice: random.Random) -> Trial:
    """Parameters are on the CPU, and the copies of one rank take 2 to 5 times as long."""
    job = _offloaded(dice, copied_ns=round(MS * dice.uniform(0.3, 1)))
    fault = SlowCopies(rank=dice.randrange(job.world_size), factor=dice.uniform(2, 5))
    return _with(job, (fault,), ("Its copies between CPU and GPU are slow",))


def _offloaded(dice: random.Random, *, copied_ns: int) -> SimulatedJob:
    steps = dice.randint(6, 12)
    return recorded(
        offloaded(dice.choice(SHAPES), dice, num_steps=steps, copied_ns=copied_ns), dice
    )


def offloads(workload: str, dice: random.Random) -> Trial:
    """Parameters are on the CPU: gathers wait for copies on all ranks."""
    job = _offloaded(dice, copied_ns=round(MS * dice.uniform(1, 2.5)))
    program = tuple(op for op in job.program if not isinstance(op, Copy))
    truth = Truth(
        sound=replace(job, program=program),
        says=("Copies that overlap with nothing take",),
        ranks=frozenset(range(job.world_size)),
        codes=("MEM101",),
    )
    return Trial(job=job, truths=(truth,))


def rail_for_a_time(workload: str, dice: random.Random) -> Trial:
    """One rank of each node has a link that is 2.5 to 6 times slower in two to four steps."""
    job = job_of(workload, dice)
    (group,) = dice.sample(job.axes["dp" if "dp" in job.axes else "dp_replicate"], 1)
    faults = _links_for_a_time(job, dice.choice(group), dice=dice, factor=dice.uniform(2.5, 6))
    return _of_links(job, faults, group)


def network_for_a_time(workload: str, dice: random.Random) -> Trial:
    """All that leaves a node takes 2.5 to 5 times as long in two to half of the steps."""
    job = job_of(workload, dice)
    faults = _links_for_a_time(job, *range(job.world_size), dice=dice, factor=dice.uniform(2.5, 5))
    return _of_links(job, faults, ())


def _links_for_a_time(
    job: SimulatedJob, *ranks: int, dice: random.Random, factor: float
) -> tuple[Fault, ...]:
    whole = job.steps[1:-1]  # captures are ragged at both ends
    number = dice.randint(2, min(4, len(whole) // 2))
    first = dice.randrange(len(whole) - number)
    at_once = whole[first : first + number]
    steps = dice.choice((at_once, sorted(dice.sample(whole, number))))
    return tuple(SlowLink(rank=rank, factor=factor, steps=steps) for rank in ranks)


def _of_links(job: SimulatedJob, faults: tuple[Fault, ...], ranks: Iterable[int]) -> Trial:
    truth = Truth(
        sound=job,
        says=("Slow transfers of",),
        ranks=frozenset(ranks),
        codes=("STR107",),
        exact=True,
    )
    return Trial(job=replace(job, faults=faults), truths=(truth,))


# Two at once --------------------------------------------------------------------------------------


def two_faults(workload: str, dice: random.Random) -> Trial:
    """A slow device, and late input on another rank."""
    job = job_of(workload, dice)
    one, other = dice.sample(range(job.world_size), 2)
    device = SlowDevice(rank=one, factor=dice.uniform(1.1, 1.4))
    late = LateInput(rank=other, ns=part_of_step(job, dice))
    both = replace(job, faults=(device, late))
    truths = (
        Truth(
            sound=replace(job, faults=(late,)),
            says=SLOWER,
            ranks=frozenset({one}),
            codes=PER_RANK,
        ),
        Truth(
            sound=replace(job, faults=(device,)),
            says=LATE_INPUT,
            ranks=frozenset({other}),
            codes=OF_INPUT,
        ),
    )
    return Trial(job=both, truths=truths)


# Causes that look like others ---------------------------------------------------------------------


def slow_device(workload: str, dice: random.Random) -> Trial:
    """One device is slow, 5 to 40 %."""
    job = job_of(workload, dice)
    return _with(job, slow([dice.randrange(job.world_size)], dice.uniform(1.05, 1.4)), SLOWER)


def hot_rank(workload: str, dice: random.Random, *, bound_by_latency: bool = False) -> Trial:
    """The experts of one rank of each group get 1.5 to 2 times the tokens; no routing is logged."""
    shape, steps, seed = dice.choice(SHAPES), dice.randint(6, 12), dice.random()
    number, load = 2 * shape.per_node, dice.uniform(2.0, 3.0)
    hot = dice.randrange(number)
    times = load * (number - 1) / (number - load)
    spread = {"num_steps": steps, "with_splits": True, "bound_by_latency": bound_by_latency}
    job = mixture(shape, random.Random(seed), hot=hot, times=times, **spread)
    sound = mixture(shape, random.Random(seed), **spread)
    job, sound = (replace(one, logs_routing=False) for one in (job, sound))
    state = dice.getstate()
    job = recorded(job, dice)
    dice.setstate(state)
    truth = Truth(
        sound=recorded(sound, dice),
        says=MORE_TOKENS,
        ranks=frozenset(range(hot // 2, shape.world_size, shape.per_node)),
        codes=("STR101", "MOE101", "MOE105", "MOE103"),
    )
    return Trial(job=job, truths=(truth,))


def hot_rank_of_short_messages(workload: str, dice: random.Random) -> Trial:
    """The same with exchanges that last equally long, however many tokens they carry."""
    return hot_rank(workload, dice, bound_by_latency=True)


def noisy_hot_rank(workload: str, dice: random.Random) -> Trial:
    """The same with kernels whose times vary by 15 %, which no even routing changes."""
    trial = hot_rank(workload, dice)
    (truth,) = trial.truths
    sound = replace(truth.sound, compute_noise=0.15)
    job = replace(trial.job, compute_noise=0.15)
    return replace(trial, job=job, truths=(replace(truth, sound=sound),))


def larger_inputs(workload: str, dice: random.Random) -> Trial:
    """Inputs of one replica are larger: kernels of larger grids take longer, none is slower."""
    job, factor = job_of(workload, dice), dice.uniform(1.1, 1.5)
    replicas = job.axes.get("tp", tuple((rank,) for rank in range(job.world_size)))
    faults = tuple(LargerInputs(rank=rank, factor=factor) for rank in dice.choice(replicas))
    return _with(job, faults, LARGER)


def long_stage(workload: str, dice: random.Random) -> Trial:
    """A stage has more layers, which no device is to blame for."""
    stages, replicas = dice.choice([shape for shape in PIPELINES if shape[0] > 2])
    seed, stage, more, steps = dice.random(), dice.randrange(stages), dice.choice((2, 3, 4)), 8
    skew = tuple(1 + more / 12 if number == stage else 1.0 for number in range(stages))
    even = (sum(skew) / stages,) * stages
    job, sound = (
        pipeline(stages, replicas, random.Random(seed), num_steps=steps, skew=part)
        for part in (skew, even)
    )
    truth = Truth(
        sound=sound,
        says=(f"Stage {stage} ",),
        ranks=frozenset(range(stage * replicas, (stage + 1) * replicas)),
        codes=("PIP101",),
    )
    return Trial(job=job, truths=(truth,))


def long_virtual_stage(workload: str, dice: random.Random) -> Trial:
    """One of two stages of a rank has more layers."""
    ranks, replicas = dice.choice([shape for shape in PIPELINES if shape[0] > 2])
    stages, seed, more, steps = 2 * ranks, dice.random(), dice.choice((4, 6, 8)), 8
    stage = dice.randrange(stages)
    skew = tuple(1 + more / 12 if number == stage else 1.0 for number in range(stages))
    even = (sum(skew) / stages,) * stages
    job, sound = (
        pipeline(ranks, replicas, random.Random(seed), num_steps=steps, skew=part, chunks=2)
        for part in (skew, even)
    )
    rank = stage % ranks
    truth = Truth(
        sound=sound,
        says=(f"Stage {stage} ",),
        ranks=frozenset(range(rank * replicas, (rank + 1) * replicas)),
        codes=("PIP101",),
    )
    return Trial(job=job, truths=(truth,))


def late_first_stage(workload: str, dice: random.Random) -> Trial:
    """The input of the first stage of each pipeline is late."""
    job = job_of(workload, dice)
    ns = part_of_step(job, dice)
    first = range(job.ranks_per_node)
    trial = _with(job, tuple(LateInput(rank=rank, ns=ns) for rank in first), LATE_INPUT)
    return replace(trial, truths=(replace(trial.truths[0], codes=OF_INPUT),))


def saves(workload: str, dice: random.Random) -> Trial:
    """A rank saves its state in every second or third step; an annotation spans it."""
    job = job_of(workload, dice)
    name = dice.choice(("save_checkpoint", "evaluate", "log_metrics"))
    every = dice.choice((2, 3))
    fault = NamedPause(
        rank=dice.randrange(job.world_size),
        ns=every * part_of_step(job, dice),
        name=name,
        steps=job.steps[::every],
    )
    return _with(job, (fault,), (name,))


def allocates(workload: str, dice: random.Random) -> Trial:
    """A rank frees GPU memory and gets it from the driver again in each step."""
    job = job_of(workload, dice)
    rank, ns = dice.randrange(job.world_size), part_of_step(job, dice)
    calls = ("cudaFree", "cudaMalloc")
    faults = tuple(NamedPause(rank=rank, ns=ns // 2, name=name, is_call=True) for name in calls)
    return _with(job, faults, ("it frees and allocates GPU memory",))


LATE_CPU = "Its CPU launches late", "Their CPUs launch late"


def late_cpu(workload: str, dice: random.Random) -> Trial:
    """The CPU of a rank stalls in each step."""
    job = job_of(workload, dice)
    fault = LateHost(rank=dice.randrange(job.world_size), ns=part_of_step(job, dice))
    return _with(job, (fault,), LATE_CPU)


def slow_cpu(workload: str, dice: random.Random) -> Trial:
    """The CPU of a rank takes longer for each launch, so that its device waits for it."""
    job = job_of(workload, dice)
    fault = SlowLaunches(rank=dice.randrange(job.world_size), ns=dice.randint(200, 600) * US)
    return _with(job, (fault,), LATE_CPU)


def noisy_node(workload: str, dice: random.Random) -> Trial:
    """The CPUs of a node stall in each step, each for as long as chance will have it."""
    job = job_of(workload, dice)
    while job.ranks_per_node < 4 or len(job.steps) < 9:  # fewer stalls may be anybody's
        job = job_of(workload, dice)
    node, ns = dice.randrange(job.num_nodes), part_of_step(job, dice)
    ranks = [rank for rank in range(job.world_size) if job.node_of(rank) == node]
    return _with(job, tuple(NoisyHost(rank=rank, ns=ns) for rank in ranks), LATE_CPU)


def missing_culprit(workload: str, dice: random.Random) -> Trial:
    """A device is slow by 20 to 50 % and its trace is missing: nobody else is to blame."""
    job = job_of(workload, dice)
    rank = dice.randrange(job.world_size)
    job = replace(job, faults=slow([rank], dice.uniform(1.2, 1.5)))
    return Trial(job=without(job, rank))


def without(job: SimulatedJob, rank: int) -> SimulatedJob:
    """The job without the trace of a rank."""
    rest = tuple(other for other in range(job.world_size) if other != rank)
    return replace(job, present=rest)


def sane(workload: str, dice: random.Random) -> Trial:
    """Nobody is to blame."""
    return Trial(job=job_of(workload, dice))


def one_missing(workload: str, dice: random.Random) -> Trial:
    """Nobody is to blame, and one trace is missing."""
    job = job_of(workload, dice)
    return Trial(job=without(job, dice.randrange(job.world_size)))


ALL = tuple(WORKLOADS)
HARD_FAULTS: Mapping[Callable[[str, random.Random], Trial], tuple[str, ...]] = {
    slow_device: ALL,
    slow_node: ALL,
    slow_half: ALL,
    slow_group: ("tp_dp", "moe", "1f1b"),
    late_node: ("ddp", "fsdp", "tp_dp", "moe"),
    rotates: ("ddp", "fsdp", "tp_dp", "moe"),
    stalls: ALL,
    throttles: ALL,
    two_faults: ALL,
    hot_rank: ("moe",),
    hot_rank_of_short_messages: ("moe",),
    noisy_hot_rank: ("moe",),
    larger_inputs: ("ddp", "fsdp", "tp_dp"),
    long_stage: ("1f1b",),
    late_first_stage: ("1f1b",),
    saves: ("ddp", "fsdp", "tp_dp", "moe"),
    allocates: ("ddp", "fsdp", "tp_dp", "moe"),
    rail_for_a_time: ("hsdp", "tp_dp"),
    network_for_a_time: ("ddp", "fsdp", "hsdp", "tp_dp"),
    long_virtual_stage: ("1f1b",),
    late_cpu: ALL,
    slow_cpu: ("ddp", "fsdp", "tp_dp", "moe"),
    noisy_node: ("ddp", "fsdp", "tp_dp", "moe"),
    slow_copies: ("fsdp",),
    offloads: ("fsdp",),
}
"""Each fault, and the workloads that it strikes."""

BLAMELESS = (sane, missing_culprit, one_missing)
"""Jobs of any workload in which no recorded rank is to blame."""


def hard_trial_of(build: Callable[[str, random.Random], Trial], workload: str, seed: int) -> Trial:
    """The same job for the same seed, whatever else is tried."""
    return build(workload, random.Random(f"{build.__name__}/{workload}/{seed}"))
