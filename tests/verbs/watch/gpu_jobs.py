"""Programs of parallel trainings, as their GPUs run them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tests.verbs.watch.gpu_timelines import Await, Program, Together, Work

Speed = Callable[[int], float]
"""Rank to how many times as long as usual it works."""


def ddp(
    ranks: int, speed: Speed, *, buckets: int = 10, work_ms: float = 8, takes_ms: float = 1
) -> Callable[[int], Program]:
    """Buckets are reduced while the backward pass goes on, and awaited at its end."""

    def program(rank: int) -> Program:
        everyone = tuple(range(ranks))
        ops: list[Work | Together | Await] = [Work(20 * speed(rank))]
        for _ in range(buckets):
            ops += [Work(work_ms * speed(rank)), Together("dp", everyone, takes_ms)]
        return [*ops, Await("dp")]

    return program


def tensor_parallel(
    tp: int, dp: int, speed: Speed, *, layers: int = 20, work_ms: float = 4
) -> Callable[[int], Program]:
    """Each layer ends with an all-reduce that is awaited; gradients are reduced at the end."""

    def program(rank: int) -> Program:
        mine = tuple(range(rank - rank % tp, rank - rank % tp + tp))
        ops: list[Work | Together | Await] = []
        for _ in range(layers):
            group = f"tp{rank // tp}"
            ops += [Work(work_ms * speed(rank)), Together(group, mine, 0.2), Await(group)]
        if dp > 1:
            others = tuple(range(rank % tp, tp * dp, tp))
            ops += [Together(f"dp{rank % tp}", others, 2), Await(f"dp{rank % tp}")]
        return ops

    return program


def fsdp(
    ranks: int, speed: Speed, *, layers: int = 24, work_ms: float = 1.5, takes_ms: float = 0.7
) -> Callable[[int], Program]:
    """As FSDP2 with one process group.

    The next layer is gathered while this one works, forward and backward. Gradients are scattered
    meanwhile, and awaited a layer later.
    """

    def program(rank: int) -> Program:
        everyone = tuple(range(ranks))

        def together(name: str, op: str) -> Together:
            return Together("fsdp", everyone, takes_ms, op, name=name)

        def work(order: Sequence[int], times: float) -> Iterator[Work | Together | Await]:
            yield together(f"gather{order[0]} {times}", "_all_gather_base")
            for layer, following in zip(order, [*order[1:], None], strict=True):
                yield Await(f"gather{layer} {times}")
                if following is not None:
                    yield together(f"gather{following} {times}", "_all_gather_base")
                yield Work(times * work_ms * speed(rank))
                if times > 1:
                    yield together(f"scatter{layer}", "_reduce_scatter_base")
                    yield Await(f"scatter{layer + 1}")

        forward = list(range(layers))
        return [*work(forward, 1), *work(forward[::-1], 2), Await("scatter0")]

    return program


def pipeline(
    stages: int, replicas: int, speed: Speed, *, micro_batches: int = 8, work_ms: float = 10
) -> Callable[[int], Program]:
    """Forward passes go from stage to stage; replicas reduce their gradients at the end."""

    def program(rank: int) -> Program:
        stage = rank % stages
        ops: list[Work | Together | Await] = []
        for _ in range(micro_batches):
            if stage > 0:
                link = f"p{rank - 1}-{rank}"
                ops += [Together(link, (rank - 1, rank), 0.2, "recv"), Await(link)]
            ops += [Work(work_ms * speed(rank))]
            if stage < stages - 1:
                link = f"p{rank}-{rank + 1}"
                ops += [Together(link, (rank, rank + 1), 0.2, "send")]
        others = tuple(range(stage, stages * replicas, stages))
        return [*ops, Together(f"dp{stage}", others, 2), Await(f"dp{stage}")]

    return program
