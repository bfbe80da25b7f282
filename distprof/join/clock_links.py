"""What matching knows of the clocks of ranks while it works: who shares one, how far others are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from distprof.join.shifts import Expectation
from distprof.run.run import Rank
from distprof.units import NS_PER_US

__all__ = ["ClockLinks"]

SAME_CLOCK_NS = 50 * NS_PER_US  # devices of one host agree like that
SEPARATE_NS = 20 * SAME_CLOCK_NS  # ends of one host that are further apart are of two clocks
MAX_DRIFT_RATIO = 5e-5  # two quartz clocks against each other


class ClockLinks:
    """Clocks of a run's ranks and the offsets between them that are known so far.

    Ranks of one node share a clock, unless their times do not count from the epoch. Offsets that
    are known hold along chains too: from A to B and from B to C gives A to C.
    """

    def __init__(self, ranks: Sequence[Rank], nodes: Mapping[str, tuple[int, ...]]) -> None:
        node_of = {number: name for name, members in nodes.items() for number in members}
        numbers: dict[str, int] = {}
        self._clock_of: dict[int, int] = {}
        self._has_epoch: list[bool] = []
        self._root: list[int] = []
        self._from_root_ns: list[float] = []  # own clock minus the root's
        span = max((r.capture_end_ns - r.capture_start_ns for r in ranks), default=0)
        self._known_error_ns = SAME_CLOCK_NS + MAX_DRIFT_RATIO * span
        self.num_links = 0
        for rank in ranks:
            shared = rank.has_epoch and rank.rank in node_of
            name = f"node {node_of[rank.rank]}" if shared else f"rank {rank.rank}"
            if name not in numbers:
                numbers[name] = self._new_clock(has_epoch=rank.has_epoch)
            self._clock_of[rank.rank] = numbers[name]

    def _new_clock(self, *, has_epoch: bool) -> int:
        clock = len(self._root)
        self._has_epoch.append(has_epoch)
        self._root.append(clock)
        self._from_root_ns.append(0.0)
        return clock

    def clock_of(self, rank: int) -> int:
        """Number of a rank's clock."""
        return self._clock_of[rank]

    def has(self, rank: int) -> bool:
        """Whether a rank is part of the run."""
        return rank in self._clock_of

    def separate(self, rank: int) -> None:
        """Give a rank a clock of its own: its node's is another one, as its traces show."""
        self._clock_of[rank] = self._new_clock(has_epoch=self._has_epoch[self._clock_of[rank]])

    def knows(self, a: int, b: int) -> bool:
        """Whether the offset between two clocks is known."""
        return self._root[a] == self._root[b]

    def learn(self, a: int, b: int, offset_ns: float) -> None:
        """Clock ``b`` minus clock ``a`` is known; what is known already stays."""
        if self.knows(a, b):
            return
        moved = self._from_root_ns[a] + offset_ns - self._from_root_ns[b]
        gone, kept = self._root[b], self._root[a]
        for clock, root in enumerate(self._root):
            if root == gone:
                self._root[clock] = kept
                self._from_root_ns[clock] += moved
        self.num_links += 1

    def expected(self, a: int, b: int) -> Expectation:
        """Clock ``b`` minus clock ``a``, as far as it is known."""
        if a == b:
            return Expectation(usual_error_ns=SAME_CLOCK_NS)
        if self.knows(a, b):
            return Expectation(
                offset_ns=self._from_root_ns[b] - self._from_root_ns[a],
                usual_error_ns=self._known_error_ns,
            )
        if self._has_epoch[a] and self._has_epoch[b]:
            return Expectation()
        return Expectation(usual_error_ns=np.inf)
