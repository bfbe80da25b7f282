"""How the devices of one machine are joined: GPUs, network cards, and the paths between them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["ACROSS_SOCKETS", "PATHS", "Machine", "Machines"]

PATHS = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Paths over PCIe, shortest first: one bridge, several, the host bridge, a NUMA node, sockets."""

ACROSS_SOCKETS = "SYS"

_NVLINK = re.compile(r"NV\d{1,3}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One machine, or several that are alike.

    Args:
        host: Host name; empty where the source does not tell.
        gpus: GPUs as the driver calls them, in its order: ``GPU0``, …
        cards: Network cards by their own names, for example ``mlx5_0``; as the driver calls them
            (``NIC0``) where the source does not tell.
        links: Path from each device (GPUs, then cards) to each, as ``NV18``, ``PIX``, ``SYS``;
            ``X`` to itself, empty where not told. Square.
        cpus: Processors next to each GPU, for example ``0-55``; empty where not told.
        numa: NUMA nodes next to each GPU; empty where not told.
    """

    host: str
    gpus: tuple[str, ...]
    cards: tuple[str, ...]
    links: tuple[tuple[str, ...], ...]
    cpus: tuple[str, ...]
    numa: tuple[str, ...]

    def between(self, first: int, second: int) -> str:
        """Path between two devices, numbered as in ``links``."""
        return self.links[first][second]

    def path_to_card(self, gpu: int, card: int) -> str:
        """Path between a GPU and a card, each by its own number."""
        return self.between(gpu, len(self.gpus) + card)

    def nearest_cards(self, gpu: int) -> tuple[str, tuple[int, ...]]:
        """The shortest path to any card, and the cards at its end; empty where none is known."""
        paths = [self.path_to_card(gpu, card) for card in range(len(self.cards))]
        best = next((path for path in PATHS if path in paths), "")
        return best, tuple(c for c, path in enumerate(paths) if best and path == best)

    @property
    def islands(self) -> tuple[tuple[int, ...], ...]:
        """GPUs that NVLink joins, directly or by others, ascending; each GPU is in one of them."""
        left, found = set(range(len(self.gpus))), []
        while left:
            island = self._reached(min(left))
            left -= island
            found.append(tuple(sorted(island)))
        return tuple(found)

    def _reached(self, start: int) -> set[int]:
        """GPUs that NVLink joins with ``start``."""
        reached, front = {start}, [start]
        while front:
            gpu = front.pop()
            near = self._linked(gpu) - reached
            reached |= near
            front += near
        return reached

    def _linked(self, gpu: int) -> set[int]:
        others: Iterable[int] = range(len(self.gpus))
        return {other for other in others if _NVLINK.fullmatch(self.between(gpu, other))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """What a file tells of machines.

    Args:
        machines: In order of appearance.
        notes: What was damaged or assumed, one sentence each.
    """

    machines: tuple[Machine, ...]
    notes: tuple[str, ...] = ()
