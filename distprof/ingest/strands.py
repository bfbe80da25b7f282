"""Joining the operations of many ranks of a group, strand by strand, by their order.

Ranks that share a clock are paired first: their ends are equal, which leaves little choice. The
mean of their ends is steadier than each alone, and so makes the choice clearer when whole nodes are
paired. What is not clear waits until other ranks, or other groups, have shown how the clocks lie;
what never gets clear stays out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from distprof.ingest.clock_links import SEPARATE_NS, ClockLinks
from distprof.ingest.operations import Operations
from distprof.ingest.shifts import Choice, best_shift
from distprof.ingest.subsequence import Pairing, pair
from distprof.schema import Int64Array

__all__ = ["GroupStrands"]


@dataclass(slots=True)
class _Strand:
    """Ranks whose operations are paired with those of the first of them.

    Args:
        ops: The first rank's operations; ends are means over the members, on the first's clock.
        clock: The first rank's clock.
        members: By rank, positions in ``ops`` and positions in the rank's own operations.
        weight: How many ends each mean is of.
        low: First position that the windows of all members cover.
        high: One past the last.
    """

    ops: Operations
    clock: int
    members: dict[int, tuple[Int64Array, Int64Array]]
    weight: NDArray[np.float64]
    low: int
    high: int

    @classmethod
    def of_rank(cls, rank: int, ops: Operations, clock: int) -> _Strand:
        everything = np.arange(len(ops))
        members = {rank: (everything, everything)}
        return cls(ops, clock, members, np.ones(len(ops)), 0, len(ops))

    def take(self, other: _Strand, pairing: Pairing) -> None:
        """Let another strand's members join, as its first rank is paired with this one's."""
        here = np.full(len(other.ops), -1, np.int64)
        here[pairing.second] = pairing.first
        for rank, (there, own) in other.members.items():
            joins = here[there] >= 0
            self.members[rank] = (here[there][joins], own[joins])
        self._average(other, pairing)
        shift = int(pairing.second[0] - pairing.first[0]) if len(pairing.first) else 0
        self.low = max(self.low, pairing.low, other.low - shift)
        self.high = min(self.high, pairing.high, other.high - shift)

    def _average(self, other: _Strand, pairing: Pairing) -> None:
        """Mean ends, where the two agree; one that is far off would spoil the other."""
        first, second = pairing.first, pairing.second
        off = other.ops.end_ns[second] - pairing.clock.expected(self.ops.end_ns[first])
        near = np.abs(off) <= pairing.clock.tolerance_ns
        first, second, off = first[near], second[near], off[near]
        share = other.weight[second] / (self.weight[first] + other.weight[second])
        end = self.ops.end_ns.copy()
        end[first] += np.rint(off * share).astype(np.int64)
        self.ops = replace(self.ops, end_ns=end)
        self.weight[first] += other.weight[second]


@dataclass(slots=True)
class GroupStrands:
    """The ranks of a group on their way to being joined.

    Args:
        main: The strand with the most operations, which the others join.
        waiting: Strands that have not joined yet.
        unfit: Ranks that fit at no shift, as of the last try.
    """

    main: _Strand
    waiting: list[_Strand]
    unfit: set[int] = field(default_factory=set)
    _tried_at: tuple[int, int] = (-1, -1)

    @classmethod
    def of_ranks(cls, operations: Mapping[int, Operations], clocks: ClockLinks) -> GroupStrands:
        """Start with one strand per clock, or several where it is unclear how they belong."""
        by_clock: dict[int, list[int]] = {}
        for rank in sorted(operations, key=lambda rank: (-len(operations[rank]), rank)):
            by_clock.setdefault(clocks.clock_of(rank), []).append(rank)
        strands = []
        for ranks in by_clock.values():
            strands.extend(_braid(ranks, operations, clocks))
        strands.sort(key=lambda strand: (-len(strand.ops), min(strand.members)))
        return cls(strands[0], strands[1:])

    def advance(self, clocks: ClockLinks) -> bool:
        """Let join what is clear by now; whether any did."""
        progress = False
        while self.waiting and self._tried_at != (stamp := self._stamp(clocks)):
            self._tried_at = stamp
            progress |= self._round(clocks)
        return progress

    def _stamp(self, clocks: ClockLinks) -> tuple[int, int]:
        """What the choice of a shift rests on, beside the operations: changes with knowledge."""
        return len(self.main.members), clocks.num_links

    def _round(self, clocks: ClockLinks) -> bool:
        choices = [self._choice(strand, clocks) for strand in self.waiting]
        self.unfit = {
            rank
            for strand, choice in zip(self.waiting, choices, strict=True)
            if choice is None
            for rank in strand.members
        }
        still = []
        for strand, choice in zip(self.waiting, choices, strict=True):
            if choice is None or not _is_sure(self.main, strand, choice, clocks):
                still.append(strand)
                continue
            self.main.take(strand, pair(self.main.ops, strand.ops, choice.shift))
            clocks.learn(self.main.clock, strand.clock, choice.offset_ns)
        joined = len(still) < len(self.waiting)
        self.waiting = still
        return joined

    def _choice(self, strand: _Strand, clocks: ClockLinks) -> Choice | None:
        expected = clocks.expected(self.main.clock, strand.clock)
        return best_shift(self.main.ops, strand.ops, expected)


def _braid(
    ranks: list[int], operations: Mapping[int, Operations], clocks: ClockLinks
) -> list[_Strand]:
    """Join ranks of one clock, the one with the most operations first."""
    strands = [_Strand.of_rank(rank, operations[rank], clocks.clock_of(rank)) for rank in ranks]
    main, apart = strands[0], []
    for rank, strand in zip(ranks[1:], strands[1:], strict=True):
        choice = best_shift(main.ops, strand.ops, clocks.expected(main.clock, strand.clock))
        if choice is None or not choice.is_clear:
            apart.append(strand)
        elif abs(choice.offset_ns) > SEPARATE_NS:
            clocks.separate(rank)
            strand.clock = clocks.clock_of(rank)
            clocks.learn(main.clock, strand.clock, choice.offset_ns)
            apart.append(strand)
        else:
            main.take(strand, pair(main.ops, strand.ops, choice.shift))
    return [main, *apart]


def _is_sure(main: _Strand, strand: _Strand, choice: Choice, clocks: ClockLinks) -> bool:
    """Whether a choice is clear and does not contradict what is known of the clocks."""
    if not choice.is_clear:
        return False
    if not clocks.knows(main.clock, strand.clock):
        return True
    expected = clocks.expected(main.clock, strand.clock)
    off = abs(choice.offset_ns - expected.offset_ns)
    return off <= max(SEPARATE_NS, 10 * expected.usual_error_ns)
