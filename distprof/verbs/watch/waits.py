"""Collectives of GPU ranks in steps that not all ranks have reported yet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from distprof.artefacts.records import CollectivesRecord, GroupTimes
from distprof.join.gpu_waits import bounded_groups

CAPACITY: Final = 128
"""Number of steps that may be held until all ranks have reported them."""

_MOST_STEPS = 1 << 53
_MOST_AHEAD = 100_000  # steps: a rank that claims to be further ahead is wrong


class WaitTable:
    """Collectives of the steps that not all ranks have reported yet."""

    def __init__(self) -> None:
        self.ranks: set[int] = set()  # Ranks that have reported any step.
        self._steps: dict[int, dict[int, tuple[GroupTimes, ...]]] = {}
        self._last: dict[int, int] = {}
        self._next = 0

    def add(self, rank: int, record: CollectivesRecord) -> None:
        """Add a step of a rank; steps that were already returned are ignored."""
        if not 0 <= record.step < (self._next + _MOST_AHEAD if self._next else _MOST_STEPS):
            return
        self.ranks.add(rank)
        self._last[rank] = max(self._last.get(rank, -1), record.step)
        if record.step >= self._next:
            self._steps.setdefault(record.step, {})[rank] = bounded_groups(record)

    def complete(self, living: set[int]) -> Iterator[tuple[int, dict[int, tuple[GroupTimes, ...]]]]:
        """Steps that have become complete, in ascending order, each once."""
        waiting = [self._last[rank] for rank in self.ranks & living]
        reported = min(waiting, default=max(self._last.values(), default=-1))
        for step in sorted(self._steps):
            if step > reported and len(self._steps) <= CAPACITY:
                return
            self._next = step + 1
            yield step, self._steps.pop(step)
