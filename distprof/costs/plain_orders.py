"""Orders of schedules with an unsplit backward: GPipe, 1F1B, interleaved 1F1B, looped BFS.

Each function returns the actions of every rank in order. Waiting is not part of an order: it is a
result of the replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from distprof.costs.actions import Action
from distprof.terms import SlotKind

RankOrders = list[list[Action]]


def gpipe(num_ranks: int, num_micro_batches: int) -> RankOrders:
    """All forwards, then all backwards in the same order.

    Source:
        Huang et al. 2019; the order of torch's ScheduleGPipe.
    """
    batches = range(num_micro_batches)
    return [
        [Action(rank, SlotKind.FORWARD, batch) for batch in batches]
        + [Action(rank, SlotKind.BACKWARD, batch) for batch in batches]
        for rank in range(num_ranks)
    ]


def one_f_one_b(num_ranks: int, num_micro_batches: int) -> RankOrders:
    """P - 1 - rank forwards, then alternating forwards and backwards.

    Source:
        Narayanan et al. 2021, section 2.2 (PipeDream-Flush).
    """
    batches = range(num_micro_batches)
    return [
        interleave(
            [Action(rank, SlotKind.FORWARD, batch) for batch in batches],
            [Action(rank, SlotKind.BACKWARD, batch) for batch in batches],
            warm_up=num_ranks - 1 - rank,
        )
        for rank in range(num_ranks)
    ]


def looped_bfs(num_ranks: int, num_micro_batches: int, virtual_stages: int) -> RankOrders:
    """Every micro-batch on one stage of a rank before its next stage; the backward in reverse.

    Source:
        Lamy-Poirier 2022 (breadth-first pipeline parallelism); torch's ScheduleLoopedBFS.
    """
    batches = range(num_micro_batches)
    orders = []
    for rank in range(num_ranks):
        stages = range(rank, num_ranks * virtual_stages, num_ranks)
        forward = [Action(s, SlotKind.FORWARD, m) for s in stages for m in batches]
        backward = [
            Action(s, SlotKind.BACKWARD, m) for s in reversed(stages) for m in reversed(batches)
        ]
        orders.append(forward + backward)
    return orders


def interleaved_1f1b(
    num_ranks: int, num_micro_batches: int, virtual_stages: int, group_size: int
) -> RankOrders:
    """Groups of micro-batches through one stage of a rank after another; 1F1B after a warm-up.

    Source:
        Narayanan et al. 2021, section 2.2; Megatron's schedule table, torch's
        ScheduleInterleaved1F1B.
    """
    table = chunk_table(num_micro_batches, virtual_stages, group_size)
    last = virtual_stages - 1
    return [
        interleave(
            [Action(c * num_ranks + rank, SlotKind.FORWARD, m) for m, c in table],
            [Action((last - c) * num_ranks + rank, SlotKind.BACKWARD, m) for m, c in table],
            warm_up=last * group_size + 2 * (num_ranks - 1 - rank),
        )
        for rank in range(num_ranks)
    ]


def interleave(
    forward: Sequence[Action],
    backward: Sequence[Action],
    *,
    warm_up: int,
    weight: Sequence[Action] = (),
    deferred: int = 0,
) -> list[Action]:
    """Warm-up forwards, then alternating forwards and backwards, then the remaining backwards.

    One more forward than ``warm_up`` precedes the first backward. If ``weight`` is given, the
    weight parts in the order of the backwards, these are only input parts, and each weight part is
    ``deferred`` by that number of backwards.
    """
    actions = list(forward[:warm_up])
    rest = forward[warm_up:]
    for number, action in enumerate(backward):
        actions += rest[number : number + 1]
        actions.append(action)
        if number >= deferred:
            actions += weight[number - deferred : number - deferred + 1]
    return actions + list(weight[max(0, len(backward) - deferred) :])


def chunk_table(
    num_micro_batches: int, virtual_stages: int, group_size: int
) -> list[tuple[int, int]]:
    """Pairs of micro-batch and chunk of the rank, in the order of the forwards.

    Source:
        Megatron's ``get_schedule_table``: groups of micro-batches; the last one may be smaller.
    """
    bounds = [*range(0, num_micro_batches, group_size), num_micro_batches]
    return [
        (batch, chunk)
        for low, high in pairwise(bounds)
        for chunk in range(virtual_stages)
        for batch in range(low, high)
    ]


def default_group_size(num_ranks: int, num_micro_batches: int) -> int:
    """The number of ranks, or slightly more, so that all groups of micro-batches are equal.

    Raises:
        ValueError: If they cannot be equal; torch also rejects this.

    Source:
        torch's ScheduleInterleaved1F1B; with M a multiple of P, Megatron's default.
    """
    rounds = max(1, num_micro_batches // num_ranks)
    if num_micro_batches % rounds:
        raise ValueError(
            f"{num_micro_batches} micro-batches do not make {rounds} equal groups of at least"
            f" {num_ranks}"
        )
    return num_micro_batches // rounds
