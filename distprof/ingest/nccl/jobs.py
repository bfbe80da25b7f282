"""Count the jobs in a set of logs: processes of one job share a file or a communicator."""

from __future__ import annotations

from collections.abc import Sequence

from distprof.run.logs import NcclCommunicator


def count_jobs(files: Sequence[range], communicators: Sequence[NcclCommunicator]) -> int:
    """Number of sets of processes that share neither a file nor a communicator.

    Processes without a communicator do not count. A job whose groups never share a process counts
    as several jobs, so callers must not refuse several.
    """
    sets = _Sets()
    for file in files:
        sets.join(file)
    for communicator in communicators:
        sets.join([member.process for member in communicator.members])
    return len({sets.root(c.members[0].process) for c in communicators if c.members})


class _Sets:
    """Disjoint sets of numbers (union-find)."""

    def __init__(self) -> None:
        self._parent: dict[int, int] = {}

    def root(self, item: int) -> int:
        """The representative of the set of ``item``."""
        while self._parent.setdefault(item, item) != item:
            self._parent[item] = item = self._parent[self._parent[item]]
        return item

    def join(self, items: Sequence[int]) -> None:
        """Merge the sets of all items."""
        for item in items:
            self._parent[self.root(item)] = self.root(items[0])
