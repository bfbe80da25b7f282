"""One repeatable operation of each kind. Sizes are defined as in nccl-tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from distprof.terms import CollectiveKind

Operation = Callable[[int], None]
"""An operation, called with the number of the iteration."""

_ELEMENT = torch.float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """A process group that this rank belongs to."""

    group: dist.ProcessGroup | None  # torch's handle, None for all ranks.
    members: tuple[int, ...]  # Global ranks, ascending.
    num_nodes: int  # Nodes that they span.
    rank: int  # Global rank of this process.

    @property
    def place(self) -> int:
        """Index of this rank in the group."""
        return self.members.index(self.rank)


def operation(
    kind: CollectiveKind, ranks: Ranks, num_bytes: int, device: torch.device
) -> Operation:
    """The function that runs one operation; its buffers are allocated here, once.

    ``num_bytes`` is a multiple of four times the number of ranks. ValueError if there is no
    benchmark of this kind.
    """
    whole = torch.zeros(num_bytes // 4, dtype=_ELEMENT, device=device)
    if kind is CollectiveKind.ALL_REDUCE:
        return lambda _: _done(dist.all_reduce(whole, group=ranks.group))
    if kind is CollectiveKind.BROADCAST:
        return _broadcast(whole, ranks)
    if kind is CollectiveKind.ALL_TO_ALL:
        other = torch.empty_like(whole)
        return lambda _: _done(dist.all_to_all_single(other, whole, group=ranks.group))
    if kind is CollectiveKind.SEND_RECV:
        return _send_recv(whole, ranks)
    part = torch.zeros(len(whole) // len(ranks.members), dtype=_ELEMENT, device=device)
    if kind is CollectiveKind.ALL_GATHER:
        return lambda _: _done(dist.all_gather_into_tensor(whole, part, group=ranks.group))
    if kind is CollectiveKind.REDUCE_SCATTER:
        return lambda _: _done(dist.reduce_scatter_tensor(part, whole, group=ranks.group))
    raise ValueError(f"no benchmark of {kind.label}")


def _done(work: object) -> None:
    del work


def _broadcast(whole: torch.Tensor, ranks: Ranks) -> Operation:
    """The root changes with each iteration: a rank that always sends would run ahead."""

    def run(number: int) -> None:
        root = ranks.members[number % len(ranks.members)]
        dist.broadcast(whole, src=root, group=ranks.group)

    return run


def _send_recv(whole: torch.Tensor, ranks: Ranks) -> Operation:
    """Ping-pong between each rank of the first half and its counterpart in the second.

    One direction at a time, each message waiting for the previous one, as the formula sheet defines
    the time of a message. Pairs connect halves rather than neighbours, so that they cross nodes if
    ranks span nodes.
    """
    half = len(ranks.members) // 2
    is_first = ranks.place < half
    if ranks.place >= 2 * half:  # the odd one out
        return lambda _: None
    partner = ranks.members[ranks.place + (half if is_first else -half)]

    def run(number: int) -> None:
        if is_first == (number % 2 == 0):
            dist.send(whole, dst=partner, group=ranks.group)
        else:
            dist.recv(whole, src=partner, group=ranks.group)

    return run
