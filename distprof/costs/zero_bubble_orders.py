"""Orders of schedules that split the backward: ZB-H1, ZB-H2, interleaved, ZB-V, DualPipeV.

No other action needs the gradients of weights, so they can fill the bubble. Each function returns
the actions of every rank in order.
"""

from __future__ import annotations

from collections import deque

from distprof.costs.actions import Action
from distprof.costs.plain_orders import RankOrders, chunk_table, interleave
from distprof.terms import SlotKind


def zb_h1(num_ranks: int, num_micro_batches: int) -> RankOrders:
    """1F1B with weight gradients deferred by as many micro-batches as the rank's index.

    No stage holds more activations than the first stage of 1F1B.

    Source:
        Qi et al. 2024, section 2.1.
    """
    return [
        _split_1f1b(rank, num_micro_batches, warm_up=num_ranks - 1 - rank, deferred=rank)
        for rank in range(num_ranks)
    ]


def zb_h2(num_ranks: int, num_micro_batches: int) -> RankOrders:
    """ZB-H1 with twice the warm-up and twice the deferral: 2P - 1 micro-batches in flight.

    Ranks start and end one after the other. With F = B = W, no rank has a bubble in between. An
    optimizer step that waits for all ranks pays for the offset.

    Source:
        Qi et al. 2024, section 2.2.
    """
    return [
        _split_1f1b(rank, num_micro_batches, warm_up=2 * (num_ranks - 1 - rank), deferred=2 * rank)
        for rank in range(num_ranks)
    ]


def interleaved_zero_bubble(
    num_ranks: int, num_micro_batches: int, virtual_stages: int, group_size: int
) -> RankOrders:
    """Interleaved 1F1B with half the warm-up, and weight gradients deferred as in ZB-H1.

    Source:
        torch's ScheduleInterleavedZeroBubble; Qi et al. 2024.
    """
    table = chunk_table(num_micro_batches, virtual_stages, group_size)
    last = virtual_stages - 1
    orders = []
    for rank in range(num_ranks):
        back = [((last - c) * num_ranks + rank, m) for m, c in table]
        actions = interleave(
            [Action(c * num_ranks + rank, SlotKind.FORWARD, m) for m, c in table],
            [Action(s, SlotKind.BACKWARD_INPUT, m) for s, m in back],
            warm_up=last * group_size + num_ranks - 1 - rank,
            weight=[Action(s, SlotKind.BACKWARD_WEIGHT, m) for s, m in back],
            deferred=rank,
        )
        orders.append(actions)
    return orders


def zb_v(num_ranks: int, num_micro_batches: int) -> RankOrders:
    """Two stages per rank in a V shape, so that the first rank also holds the last stage.

    Source:
        Qi et al. 2024, section 6; torch's ScheduleZBVZeroBubble.
    """
    return [_zb_v_rank(rank, num_ranks, num_micro_batches) for rank in range(num_ranks)]


def dualpipe_v(num_ranks: int, num_micro_batches: int) -> tuple[RankOrders, list[list[bool]]]:
    """Two stages per rank in a V shape, with pairs of a forward and a backward that can overlap.

    Returns:
        The orders, and flags for actions that overlap with the next one.

    Source:
        DeepSeek-V3 report and its published DualPipeV; torch's ScheduleDualPipeV.
    """
    ranks = [_dualpipe_v_rank(rank, num_ranks, num_micro_batches) for rank in range(num_ranks)]
    return [rank.actions for rank in ranks], [rank.overlaps for rank in ranks]


def _split_1f1b(rank: int, num_micro_batches: int, *, warm_up: int, deferred: int) -> list[Action]:
    batches = range(num_micro_batches)
    return interleave(
        [Action(rank, SlotKind.FORWARD, batch) for batch in batches],
        [Action(rank, SlotKind.BACKWARD_INPUT, batch) for batch in batches],
        warm_up=warm_up,
        weight=[Action(rank, SlotKind.BACKWARD_WEIGHT, batch) for batch in batches],
        deferred=deferred,
    )


class _Chunks:
    """Records the actions of a rank's two stages, and counts micro-batches per stage and kind."""

    def __init__(self, rank: int, num_ranks: int) -> None:
        self.stages = (rank, 2 * num_ranks - 1 - rank)
        self.actions: list[Action] = []
        self.overlaps: list[bool] = []
        self._done: dict[tuple[int, SlotKind], int] = {}
        self._weights: deque[tuple[int, int]] = deque()

    def done(self, chunk: int, kind: SlotKind) -> int:
        """Number of micro-batches that have finished this action."""
        return self._done.get((chunk, kind), 0)

    def write(self, text: str, times: int = 1) -> None:
        """Append actions such as ``F0 I1 W1 B0``, in order, ``times`` times."""
        for _ in range(times):
            for word in text.split():
                self._write(SlotKind("FBIW".index(word[0])), int(word[1]))

    def write_overlapped(self, forward: int, backward: int) -> None:
        """Append an overlapped forward of one chunk and backward of the other."""
        self.write(f"F{forward}")
        self.overlaps[-1] = True
        self.write(f"B{backward}")

    def write_input(self, chunk: int) -> None:
        """Append the input part of a backward and leave its weight part pending."""
        self._weights.append((chunk, self.done(chunk, SlotKind.BACKWARD_INPUT)))
        self.write(f"I{chunk}")

    def write_weight(self) -> None:
        """Append the oldest pending weight part, if any is pending."""
        if self._weights:
            chunk, batch = self._weights.popleft()
            self._put(SlotKind.BACKWARD_WEIGHT, chunk, batch)

    def _write(self, kind: SlotKind, chunk: int) -> None:
        counted = SlotKind.BACKWARD_INPUT if kind is SlotKind.BACKWARD else kind
        number = self.done(chunk, counted)
        self._done[chunk, counted] = number + 1
        self._put(kind, chunk, number)

    def _put(self, kind: SlotKind, chunk: int, batch: int) -> None:
        self.actions.append(Action(self.stages[chunk], kind, batch))
        self.overlaps.append(False)


def _zb_v_rank(rank: int, num_ranks: int, num_micro_batches: int) -> list[Action]:
    # the order is for a full pipeline; with fewer micro-batches, the missing ones are skipped
    enough = max(2 * num_ranks - 1, num_micro_batches)
    chunks, back = _Chunks(rank, num_ranks), num_ranks - rank
    chunks.write("F0", 2 * back - 1)
    chunks.write("F1 F0", rank)
    chunks.write("F1 I1 W1", back)
    forward = SlotKind.FORWARD
    while chunks.done(1, forward) < chunks.done(0, forward) or chunks.done(0, forward) < enough:
        if chunks.done(0, forward) < enough:
            chunks.write("F0")
        chunks.write("I0 W0 F1 I1 W1")
    chunks.write("I0 I1", rank)
    chunks.write("I0 W0", back)
    for chunk in (1, 0):
        behind = chunks.done(chunk, SlotKind.BACKWARD_INPUT) - chunks.done(
            chunk, SlotKind.BACKWARD_WEIGHT
        )
        chunks.write(f"W{chunk}", behind)
    return [action for action in chunks.actions if action.micro_batch < num_micro_batches]


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
    _cool_down(chunks, rank, hops)
    return chunks


def _cool_down(chunks: _Chunks, rank: int, hops: int) -> None:
    """Backwards of both chunks; from the middle on, weight parts are deferred to fill the end."""
    for number in range(2 * (rank + 1)):
        if number >= rank + 1:
            chunks.write_input(1 - number % 2)
        else:
            chunks.write(f"B{1 - number % 2}")
    for _ in range(hops):
        chunks.write_weight()
        chunks.write_input(0)
    for _ in range(rank + 1):
        chunks.write_weight()
