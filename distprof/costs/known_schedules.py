"""The named pipeline schedules, and the order of actions of each.

Each function of the orders returns the actions of every rank in order. Waiting is a result of the
replay (:mod:`distprof.costs.pipeline`). If a schedule splits the backward, nothing else needs
the gradients of weights, so they can fill the bubble.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence

import msgspec

from distprof.costs.pipeline import Action, Orders, orders_from
from distprof.terms import SlotKind

RankOrders = list[list[Action]]


def gpipe(num_ranks: int, num_micro_batches: int) -> RankOrders:
    """All forwards, then all backwards in the same order.

    Source:
        Huang et al. 2019; the order of torch's ScheduleGPipe.
    """
    kinds = (SlotKind.FORWARD, SlotKind.BACKWARD)
    return [
        [Action(rank, kind, batch) for kind in kinds for batch in range(num_micro_batches)]
        for rank in range(num_ranks)
    ]


def one_f_one_b(num_ranks: int, num_micro_batches: int) -> RankOrders:
    """P - 1 - rank forwards, then alternating forwards and backwards.

    Source:
        Narayanan et al. 2021, section 2.2 (PipeDream-Flush).
    """
    return _interleaved(num_ranks, num_micro_batches, 1, per_hop=1)


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


def interleaved_1f1b(num_ranks: int, num_micro_batches: int, virtual_stages: int) -> RankOrders:
    """Groups of micro-batches through one stage of a rank after another; 1F1B after a warm-up.

    Source:
        Narayanan et al. 2021, section 2.2; Megatron's schedule table, torch's
        ScheduleInterleaved1F1B.
    """
    return _interleaved(num_ranks, num_micro_batches, virtual_stages, per_hop=2)


def _interleave(
    forward: Sequence[tuple[int, int]],
    back: Sequence[tuple[int, int]],
    *,
    warm_up: int,
    deferred: int | None,
) -> list[Action]:
    """Warm-up forwards, then alternating forwards and backwards, then the remaining backwards.

    Both are pairs of stage and micro-batch. One more forward than ``warm_up`` precedes the first
    backward. If ``deferred`` is given, backwards are split, and each weight part is deferred by
    that number of input parts.
    """
    kind = SlotKind.BACKWARD if deferred is None else SlotKind.BACKWARD_INPUT
    late = len(back) if deferred is None else deferred
    weights = [] if deferred is None else [Action(s, SlotKind.BACKWARD_WEIGHT, m) for s, m in back]
    ahead = [Action(s, SlotKind.FORWARD, m) for s, m in forward]
    actions, rest = ahead[:warm_up], ahead[warm_up:]
    for number, (stage, batch) in enumerate(back):
        actions += rest[number : number + 1]
        actions.append(Action(stage, kind, batch))
        if number >= late:
            actions.append(weights[number - late])
    return actions + weights[max(0, len(back) - late) :]


def zb_h1(num_ranks: int, num_micro_batches: int) -> RankOrders:
    """1F1B with weight gradients deferred by as many micro-batches as the rank's index.

    No stage holds more activations than the first stage of 1F1B.

    Source:
        Qi et al. 2024, section 2.1.
    """
    return _interleaved(num_ranks, num_micro_batches, 1, per_hop=1, deferral=1)


def zb_h2(num_ranks: int, num_micro_batches: int) -> RankOrders:
    """ZB-H1 with twice the warm-up and twice the deferral: 2P - 1 micro-batches in flight.

    Ranks start and end one after the other. With F = B = W, no rank has a bubble in between. An
    optimizer step that waits for all ranks pays for the offset.

    Source:
        Qi et al. 2024, section 2.2.
    """
    return _interleaved(num_ranks, num_micro_batches, 1, per_hop=2, deferral=2)


def interleaved_zero_bubble(
    num_ranks: int, num_micro_batches: int, virtual_stages: int
) -> RankOrders:
    """Interleaved 1F1B with half the warm-up, and weight gradients deferred as in ZB-H1.

    Source:
        torch's ScheduleInterleavedZeroBubble; Qi et al. 2024.
    """
    return _interleaved(num_ranks, num_micro_batches, virtual_stages, per_hop=1, deferral=1)


def _interleaved(
    num_ranks: int,
    num_micro_batches: int,
    virtual_stages: int,
    *,
    per_hop: int,
    deferral: int | None = None,
) -> RankOrders:
    """Interleaved 1F1B with ``per_hop`` warm-up forwards for each later rank.

    With ``deferral``, weight gradients are deferred by that many micro-batches for each earlier
    rank. If a rank has several stages, groups of micro-batches are as large as the number of ranks,
    or slightly larger, so that all are equal. If they cannot be, it is a ValueError, as in torch.
    """
    rounds = max(1, num_micro_batches // num_ranks) if virtual_stages > 1 else 1
    if num_micro_batches % rounds:
        raise ValueError(
            f"{num_micro_batches} micro-batches do not make {rounds} equal groups of at least"
            f" {num_ranks}"
        )
    size, last = num_micro_batches // rounds, virtual_stages - 1
    starts, chunks = range(0, num_micro_batches, size), range(virtual_stages)
    # micro-batch and chunk in the order of the forwards, as in Megatron's ``get_schedule_table``
    table = [(first + n, chunk) for first in starts for chunk in chunks for n in range(size)]
    return [
        _interleave(
            [(c * num_ranks + rank, m) for m, c in table],
            [((last - c) * num_ranks + rank, m) for m, c in table],
            warm_up=last * size + per_hop * (num_ranks - 1 - rank),
            deferred=None if deferral is None else deferral * rank,
        )
        for rank in range(num_ranks)
    ]


def zb_v(num_ranks: int, num_micro_batches: int) -> RankOrders:
    """Two stages per rank in a V shape, so that the first rank also holds the last stage.

    Source:
        Qi et al. 2024, section 6; torch's ScheduleZBVZeroBubble.
    """
    # the order is for a full pipeline; with fewer micro-batches, the missing ones are skipped
    enough = max(2 * num_ranks - 1, num_micro_batches)
    orders: RankOrders = []
    for rank in range(num_ranks):
        chunks, back = _Chunks(rank, num_ranks), num_ranks - rank
        chunks.write("F0", 2 * back - 1)
        chunks.write("F1 F0", rank)
        chunks.write("F1 I1 W1", back)
        while chunks.done("F1") < chunks.done("F0") or chunks.done("F0") < enough:
            if chunks.done("F0") < enough:
                chunks.write("F0")
            chunks.write("I0 W0 F1 I1 W1")
        chunks.write("I0 I1", rank)
        chunks.write("I0 W0", back)
        for chunk in (1, 0):
            chunks.write(f"W{chunk}", chunks.done(f"I{chunk}") - chunks.done(f"W{chunk}"))
        orders.append([each for each in chunks.actions if each.micro_batch < num_micro_batches])
    return orders


def dualpipe_v(num_ranks: int, num_micro_batches: int) -> tuple[RankOrders, list[list[bool]]]:
    """Two stages per rank in a V shape, with pairs of a forward and a backward that can overlap.

    Returns:
        The orders, and flags for actions that overlap with the next one.

    Source:
        DeepSeek-V3 report and its published DualPipeV; torch's ScheduleDualPipeV.
    """
    ranks = [_dualpipe_v_rank(rank, num_ranks, num_micro_batches) for rank in range(num_ranks)]
    return [rank.actions for rank in ranks], [rank.overlaps for rank in ranks]


def _dualpipe_v_rank(rank: int, num_ranks: int, num_micro_batches: int) -> _Chunks:
    chunks, hops = _Chunks(rank, num_ranks), num_ranks - rank - 1
    chunks.write("F0", 2 * hops)
    chunks.write("F0 F1", rank + 1)
    for _ in range(hops):
        chunks.write_input(1)
        chunks.write_weight()
        chunks.write("F1")
    for pair in range(num_micro_batches - 2 * num_ranks + rank + 1):
        if pair == 0 and hops == 0:
            chunks.write("F0 B1")  # not overlapped on the last rank: no backward is pending yet
        else:
            chunks.write_overlapped(0, 1)
        chunks.write_overlapped(1, 0)
    for _ in range(hops):
        chunks.write("B1")
        chunks.write_overlapped(1, 0)
    # backwards of both chunks; from the middle on, weight parts are deferred to fill the end
    for number in range(rank + 1):
        chunks.write(f"B{1 - number % 2}")
    for number in range(rank + 1, 2 * (rank + 1)):
        chunks.write_input(1 - number % 2)
    for _ in range(hops):
        chunks.write_weight()
        chunks.write_input(0)
    for _ in range(rank + 1):
        chunks.write_weight()
    return chunks


class _Chunks:
    """Records the actions of a rank's two stages, and counts micro-batches per stage and kind."""

    def __init__(self, rank: int, num_ranks: int) -> None:
        self.stages = (rank, 2 * num_ranks - 1 - rank)
        self.actions: list[Action] = []
        self.overlaps: list[bool] = []
        self._done: Counter[str] = Counter()
        self._weights: deque[tuple[int, int]] = deque()

    def done(self, action: str) -> int:
        """Number of micro-batches that have finished an action such as ``I1``."""
        return self._done[action]

    def write(self, text: str, times: int = 1) -> None:
        """Append actions such as ``F0 I1 W1 B0``, in order, ``times`` times."""
        for word in text.split() * times:
            counted = word.replace("B", "I")  # a whole backward counts as its input part
            self._put(SlotKind("FBIW".index(word[0])), int(word[1]), self._done[counted])
            self._done[counted] += 1

    def write_overlapped(self, forward: int, backward: int) -> None:
        """Append an overlapped forward of one chunk and backward of the other."""
        self.write(f"F{forward}")
        self.overlaps[-1] = True
        self.write(f"B{backward}")

    def write_input(self, chunk: int) -> None:
        """Append the input part of a backward and leave its weight part pending."""
        self._weights.append((chunk, self.done(f"I{chunk}")))
        self.write(f"I{chunk}")

    def write_weight(self) -> None:
        """Append the oldest pending weight part, if any is pending."""
        if self._weights:
            self._put(SlotKind.BACKWARD_WEIGHT, *self._weights.popleft())

    def _put(self, kind: SlotKind, chunk: int, batch: int) -> None:
        self.actions.append(Action(self.stages[chunk], kind, batch))
        self.overlaps.append(False)


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline schedule."""

    name: str  # Name in :data:`SCHEDULES`.
    # Function of ranks, micro-batches, and stages per rank if any number is possible. Returns the
    # order of each rank, and which actions overlap if any do.
    make: Callable[..., RankOrders | tuple[RankOrders, list[list[bool]]]]
    fewest: int = 1  # Minimum number of stages per rank.
    most: int | None = 1  # Maximum number of stages per rank; None for no limit.
    # Whether the second round of stages runs from the last rank to the first.
    goes_back: bool = False
    # Whether it needs at least one micro-batch per stage of the whole pipeline.
    fills: bool = False

    def rank_of(self, stage: int, num_ranks: int) -> int:
        """The rank that runs a stage."""
        lap, place = divmod(stage, num_ranks)
        return num_ranks - 1 - place if self.goes_back and lap % 2 else place


def orders(
    schedule: str, num_ranks: int, num_micro_batches: int, virtual_stages: int | None = None
) -> Orders:
    """The actions of each rank of a pipeline, in order.

    ``virtual_stages`` is V, stages per rank; None for the schedule's minimum.

    Raises:
        ValueError: If the schedule is unknown, or cannot run with these numbers.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"no schedule {schedule}: choose from {', '.join(SCHEDULES)}")
    found, sizes = SCHEDULES[schedule], (num_ranks, num_micro_batches)
    per_rank = found.fewest if virtual_stages is None else virtual_stages
    if min(sizes) < 1:
        raise ValueError(
            f"{num_ranks} ranks and {num_micro_batches} micro-batches: both must be at least 1"
        )
    if per_rank < found.fewest or (found.most is not None and per_rank > found.most):
        limits = f"{found.fewest} or more" if found.most is None else f"exactly {found.fewest}"
        raise ValueError(f"schedule {schedule} takes {limits} stages per rank, not {per_rank}")
    if found.fills and num_micro_batches < num_ranks * per_rank:
        raise ValueError(
            f"schedule {schedule} needs at least one micro-batch per stage,"
            f" {num_ranks * per_rank}, not {num_micro_batches}"
        )
    made = found.make(*sizes, per_rank) if found.most is None else found.make(*sizes)
    order, overlaps = made if isinstance(made, tuple) else (made, None)
    return orders_from(order, schedule=schedule, overlaps=overlaps)


SCHEDULES: Mapping[str, Schedule] = {
    each.name: each
    for each in (
        Schedule(name="gpipe", make=gpipe),
        Schedule(name="1f1b", make=one_f_one_b),
        Schedule(name="looped-bfs", make=looped_bfs, fewest=2, most=None),
        Schedule(name="interleaved-1f1b", make=interleaved_1f1b, fewest=2, most=None),
        Schedule(name="zb-h1", make=zb_h1),
        Schedule(name="zb-h2", make=zb_h2),
        Schedule(name="interleaved-zb", make=interleaved_zero_bubble, fewest=2, most=None),
        Schedule(name="zbv", make=zb_v, fewest=2, most=2, goes_back=True),
        Schedule(name="dualpipev", make=dualpipe_v, fewest=2, most=2, goes_back=True, fills=True),
    )
}
"""Schedules by name: those of ``distprof run pp --schedule``, and some that torch lacks."""
