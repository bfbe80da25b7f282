"""Match collectives by their order in a process group, and messages by their order in a rank pair.

First, :mod:`.shifts` chooses the shift between the sequences of two ranks. If either lacks
operations of the other, the longest common subsequence near that shift decides (E. W. Myers, "An
O(ND) Difference Algorithm and Its Variations", Algorithmica 1, 1986); a pair must agree in time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from distprof.artefacts.record import grouped
from distprof.join.clocks import SEPARATE_NS, ClockLinks
from distprof.join.instances import NO_STEP, MatchBuilder, Rows, name_of
from distprof.join.shifts import (
    MARGIN,
    Choice,
    Operations,
    best_shift,
    compatible,
    median,
    most_frequent,
    operations_of,
    typical_gap,
)
from distprof.run.tables import parts_by
from distprof.run.topology import ProcessGroup
from distprof.schema import Bools, Floats, Int64Array
from distprof.terms import CollectiveKind, MatchMethod
from distprof.units import name_ranks

MAX_EDITS = 500  # with more differences than this, two sequences are not matched


class Clock(msgspec.Struct, frozen=True, kw_only=True):
    """Offset of the second clock from the first over time, and the tolerance for a pair."""

    reference_ns: int
    offset_ns: int
    drift_ratio: float
    tolerance_ns: float

    def expected(self, own_ns: Int64Array) -> Int64Array:
        """Times on the first clock, converted to the second."""
        drift = self.drift_ratio * (own_ns - self.reference_ns)
        moved: Int64Array = own_ns + self.offset_ns + np.rint(drift).astype(np.int64)
        return moved

    def agrees(self, a: Operations, b: Operations, i: Int64Array, j: Int64Array) -> Bools:
        """Whether two operations can have ended at the same time; always True for untimed ones."""
        off = np.abs(b.end_ns[j] - self.expected(a.end_ns[i]))
        possible: Bools = (off <= self.tolerance_ns) | ~a.is_timed[i] | ~b.is_timed[j]
        return possible

    def is_steady(self, a: Operations, b: Operations, i: Int64Array, j: Int64Array) -> bool:
        """Whether no two successive pairs disagree: a single one is noise, two are a loss."""
        off = ~self.agrees(a, b, i, j)
        return not (off[1:] & off[:-1]).any()


class Pairing(msgspec.Struct, frozen=True, kw_only=True):
    """Matched positions in two sequences, both ascending."""

    first: Int64Array  # Positions in the first sequence.
    second: Int64Array  # Positions in the second sequence.
    low: int  # First position of the first sequence that the second sequence's window covers.
    high: int  # One past the last of these positions.
    clock: Clock  # Relation of the two clocks.


def pair(a: Operations, b: Operations, shift: int) -> Pairing:
    """Pair the operations of two ranks at or near a shift, at which some must be compatible.

    The shift is a position in ``b`` minus that in ``a``.
    """
    low, high = max(0, -shift), min(len(a), len(b) - shift)
    i = np.arange(low, high)
    fits = compatible(a, b, i, i + shift)
    clock = _fit_clock(a, b, i[fits], shift)
    first, second = i, i + shift
    if not (fits.all() and clock.is_steady(a, b, i, i + shift)):
        # the longest common subsequence, near the shift, of operations that can have ended together
        start_a, start_b = max(0, low - MARGIN), max(0, low + shift - MARGIN)
        part_a, part_b = a.part(start_a, high + MARGIN), b.part(start_b, high + shift + MARGIN)
        pairs = np.array(_edit_trace(part_a, part_b, clock), dtype=np.int64).reshape(-1, 2)
        first, second = pairs[:, 0] + start_a, pairs[:, 1] + start_b
        if 2 * len(first) < fits.sum():  # ends are too far apart to decide: keep the order
            first, second = i[fits], i[fits] + shift
    return Pairing(first=first, second=second, low=low, high=high, clock=clock)


def _fit_clock(a: Operations, b: Operations, i: Int64Array, shift: int) -> Clock:
    """Offset and drift, robust to wrong pairs: after a lost operation, all pairs are wrong."""
    end = a.end_ns[i]
    difference = b.end_ns[i + shift] - end
    lag = max(1, len(i) // 8)  # long enough to see the drift, short enough to miss most losses
    drift = 0.0
    if len(i) > 8:
        elapsed = np.maximum(end[lag:] - end[:-lag], 1)
        drift = median((difference[lag:] - difference[:-lag]) / elapsed)
    reference = int(end[0])
    steady = difference - np.rint(drift * (end - reference)).astype(np.int64)
    return Clock(
        reference_ns=reference,
        offset_ns=most_frequent(steady),
        drift_ratio=drift,
        tolerance_ns=typical_gap(a.end_ns) / 2,
    )


def _edit_trace(a: Operations, b: Operations, clock: Clock) -> list[tuple[int, int]]:
    """Pairs found by Myers' greedy algorithm; none if there are more than MAX_EDITS differences."""
    token_a, token_b = a.token.tolist(), b.token.tolist()
    end_a, end_b = clock.expected(a.end_ns).tolist(), b.end_ns.tolist()
    step_a, step_b = a.step.tolist(), b.step.tolist()
    timed_a, timed_b = a.is_timed.tolist(), b.is_timed.tolist()
    tolerance = clock.tolerance_ns

    def same(i: int, j: int) -> bool:
        if token_a[i] != token_b[j]:
            return False
        if step_a[i] != step_b[j] and NO_STEP not in (step_a[i], step_b[j]):
            return False
        together = abs(end_b[j] - end_a[i]) <= tolerance
        return bool(together or not (timed_a[i] and timed_b[j]))

    reach = {1: 0}
    history: list[dict[int, int]] = []
    for edits in range(min(len(a) + len(b), MAX_EDITS) + 1):
        history.append(dict(reach))
        for diagonal in range(-edits, edits + 1, 2):
            down = diagonal == -edits or (
                diagonal != edits and reach[diagonal - 1] < reach[diagonal + 1]
            )
            i = reach[diagonal + 1] if down else reach[diagonal - 1] + 1
            j = i - diagonal
            while i < len(token_a) and j < len(token_b) and same(i, j):
                i, j = i + 1, j + 1
            reach[diagonal] = i
            if i >= len(token_a) and j >= len(token_b):
                return _walk_back(history, len(token_a), len(token_b))
    return []


def _walk_back(history: list[dict[int, int]], i: int, j: int) -> list[tuple[int, int]]:
    pairs = []
    for edits in range(len(history) - 1, -1, -1):
        reach = history[edits]
        diagonal = i - j
        down = diagonal == -edits or (
            diagonal != edits and reach[diagonal - 1] < reach[diagonal + 1]
        )
        before = diagonal + 1 if down else diagonal - 1
        start_i, start_j = reach[before], reach[before] - before
        while i > start_i and j > start_j:
            i, j = i - 1, j - 1
            pairs.append((i, j))
        i, j = start_i, start_j
    return pairs[::-1]


# Sequences of several ranks, merged ---------------------------------------------------------------


class _MergedSequence(msgspec.Struct):
    """Ranks whose operations are paired with those of a first rank."""

    # The first rank's operations; ends are means over the members, on the first's clock.
    ops: Operations
    clock: int  # The first rank's clock.
    # By rank, positions in ``ops`` and positions in the rank's own operations.
    members: dict[int, tuple[Int64Array, Int64Array]]
    weight: Floats  # Number of ends in each mean.
    low: int  # First position that the windows of all members cover.
    high: int  # One past the last of these positions.

    @classmethod
    def of_rank(cls, rank: int, ops: Operations, clock: int) -> _MergedSequence:
        everything = np.arange(len(ops))
        members = {rank: (everything, everything)}
        return cls(ops, clock, members, np.ones(len(ops)), 0, len(ops))

    def take(self, other: _MergedSequence, pairing: Pairing) -> None:
        """Add the members of another sequence, given the pairing of the two first ranks."""
        first, second = pairing.first, pairing.second
        here = np.full(len(other.ops), -1, np.int64)
        here[second] = first
        for rank, (there, own) in other.members.items():
            joins = here[there] >= 0
            self.members[rank] = (here[there][joins], own[joins])
        shift = int(second[0] - first[0]) if len(first) else 0
        self.low = max(self.low, pairing.low, other.low - shift)
        self.high = min(self.high, pairing.high, other.high - shift)
        # average the ends of pairs within the tolerance; an outlier would distort the mean
        off = other.ops.end_ns[second] - pairing.clock.expected(self.ops.end_ns[first])
        near = np.abs(off) <= pairing.clock.tolerance_ns
        first, second, off = first[near], second[near], off[near]
        share = other.weight[second] / (self.weight[first] + other.weight[second])
        end = self.ops.end_ns.copy()
        end[first] += np.rint(off * share).astype(np.int64)
        self.ops = replace(self.ops, end_ns=end)
        self.weight[first] += other.weight[second]


class GroupMerge(msgspec.Struct):
    """State of merging the ranks of one group."""

    main: _MergedSequence  # The sequence with the most operations, which the others join.
    waiting: list[_MergedSequence]  # Sequences that have not joined yet.
    # Ranks that fit at no shift in the last attempt.
    unfit: set[int] = msgspec.field(default_factory=set)
    _tried_at: tuple[int, int] = (-1, -1)

    @classmethod
    def of_ranks(cls, operations: Mapping[int, Operations], clocks: ClockLinks) -> GroupMerge:
        """Start with one sequence per clock, or several if their shift is unclear."""
        order = sorted(operations, key=lambda rank: (-len(operations[rank]), rank))
        sequences = []
        for ranks in grouped([(clocks.clock_of[rank], rank) for rank in order]).values():
            sequences += _merge_ranks(ranks, operations, clocks)
        sequences.sort(key=lambda sequence: (-len(sequence.ops), min(sequence.members)))
        return cls(sequences[0], sequences[1:])

    def advance(self, clocks: ClockLinks) -> bool:
        """Merge the sequences whose shift is clear by now; returns whether there were any."""
        progress = False
        # more members or more clock links may choose other shifts
        while self.waiting and self._tried_at != (
            now := (len(self.main.members), clocks.num_links)
        ):
            self._tried_at = now
            progress |= self._round(clocks)
        return progress

    def _round(self, clocks: ClockLinks) -> bool:
        main, waiting, self.waiting, self.unfit = self.main, self.waiting, [], set()
        choices = []
        for sequence in waiting:
            expected = clocks.expected(main.clock, sequence.clock)
            choices.append(best_shift(main.ops, sequence.ops, expected))
        for sequence, choice in zip(waiting, choices, strict=True):
            if choice is None:
                self.unfit.update(sequence.members)
            if choice is None or not _is_consistent(choice, main.clock, sequence.clock, clocks):
                self.waiting.append(sequence)
                continue
            main.take(sequence, pair(main.ops, sequence.ops, choice.shift))
            clocks.learn(main.clock, sequence.clock, choice.offset_ns)
        return len(self.waiting) < len(waiting)


def _merge_ranks(
    ranks: list[int], operations: Mapping[int, Operations], clocks: ClockLinks
) -> list[_MergedSequence]:
    """Merge ranks of one clock, starting with the one with the most operations."""
    main, *others = (
        _MergedSequence.of_rank(rank, operations[rank], clocks.clock_of[rank]) for rank in ranks
    )
    apart = []
    for rank, sequence in zip(ranks[1:], others, strict=True):
        choice = best_shift(main.ops, sequence.ops, clocks.expected(main.clock, sequence.clock))
        if choice is None or not choice.is_clear:
            apart.append(sequence)
        elif abs(choice.offset_ns) > SEPARATE_NS:
            clocks.separate(rank)
            sequence.clock = clocks.clock_of[rank]
            clocks.learn(main.clock, sequence.clock, choice.offset_ns)
            apart.append(sequence)
        else:
            main.take(sequence, pair(main.ops, sequence.ops, choice.shift))
    return [main, *apart]


def _is_consistent(choice: Choice, a: int, b: int, clocks: ClockLinks) -> bool:
    """Whether a choice is clear, and agrees with the offset of the clocks if that is known."""
    if not choice.is_clear or not clocks.knows(a, b):
        return choice.is_clear
    expected = clocks.expected(a, b)
    off = abs(choice.offset_ns - expected.offset_ns)
    return off <= max(SEPARATE_NS, 10 * expected.usual_error_ns)


# Groups -------------------------------------------------------------------------------------------

# Grouped messages are an all-to-all if all members have about the same number of them.
_EVEN_COUNT_RATIO = 0.75


def match_by_order(
    rows: Rows,
    index: Int64Array,
    clocks: ClockLinks,
    groups: Sequence[ProcessGroup],
    present: Int64Array,
    builder: MatchBuilder,
) -> None:
    """Match rows by their order within each process group.

    Clock offsets found in one group help to match the others, so groups take turns until no further
    rank joins. Ranks that fit at several shifts stay unmatched, and the builder notes them.
    """
    parts: list[tuple[str, dict[int, Int64Array], GroupMerge]] = []
    for group, of_group in parts_by(rows.group[index], index).items():
        by_rank = parts_by(rows.rank[of_group], of_group)
        by_rank, uneven = _without_uneven_messages(rows, by_rank, present[group])
        if uneven:
            builder.notes.append(
                f"Grouped sends and receives of group {name_of(groups[group])} are not matched: "
                "the trace does not show which ranks exchanged data."
            )
        if len(by_rank) >= 2:
            merge = GroupMerge.of_ranks(
                dict(zip(by_rank, operations_of(rows, list(by_rank.values())), strict=True)), clocks
            )
            parts.append((name_of(groups[group]), by_rank, merge))
    while any(merge.advance(clocks) for _, _, merge in parts):
        pass  # each round merges at least one sequence, so this ends
    for name, by_rank, merge in parts:
        _conclude(name, by_rank, merge, builder)


def _without_uneven_messages(
    rows: Rows, by_rank: dict[int, Int64Array], present: int
) -> tuple[dict[int, Int64Array], bool]:
    """Drop grouped messages unless all members have about the same number; True if dropped."""
    counts = [int((rows.kind[i] == CollectiveKind.SEND_RECV).sum()) for i in by_rank.values()]
    if not any(counts):
        return by_rank, False
    if len(counts) == present and min(counts) >= _EVEN_COUNT_RATIO * max(counts):
        return by_rank, False
    kept = {r: i[rows.kind[i] != CollectiveKind.SEND_RECV] for r, i in by_rank.items()}
    return {r: i for r, i in kept.items() if len(i)}, True


def _conclude(
    name: str, by_rank: dict[int, Int64Array], merge: GroupMerge, builder: MatchBuilder
) -> None:
    """Match operations that share a position in the main sequence; note the ranks left out."""
    main = merge.main
    waiting = {rank for sequence in merge.waiting for rank in sequence.members}
    reference = next(iter(main.members))
    if lost := waiting & merge.unfit:
        builder.notes.append(
            f"Group {name}: the operations of {name_ranks(lost)} do not fit those of rank "
            f"{reference} at any shift."
        )
    if unclear := waiting - merge.unfit:
        builder.ambiguous.update(unclear)
        builder.notes.append(
            f"Group {name}: the operations of {name_ranks(unclear)} fit those of rank "
            f"{reference} at several shifts about equally well, so distprof does not match them."
        )
    apart = main.high <= main.low
    num_rows = sum(len(index) for index in by_rank.values())
    builder.num_candidates += num_rows if apart else (main.high - main.low) * len(by_rank)
    slot = np.concatenate([slot for slot, _ in main.members.values()])
    member = np.concatenate([by_rank[rank][own] for rank, (_, own) in main.members.items()])
    order = np.lexsort((member, slot))  # by rank in a slot, as rows are rank by rank
    slot, member = slot[order], member[order]
    sizes = np.bincount(slot, minlength=len(main.ops))
    builder.add(member[sizes[slot] >= 2], sizes[sizes >= 2], MatchMethod.SUBSEQUENCE)


# Messages -----------------------------------------------------------------------------------------


def match_messages(
    rows: Rows, index: Int64Array, clocks: ClockLinks, builder: MatchBuilder
) -> None:
    """Match the sends of each rank with the receives of each other rank.

    A kernel that sends and receives matches only if both messages agree.
    """
    known = rows.peer[index] >= 0
    if not known.all():
        builder.notes.append(
            f"{int((~known).sum())} sends and receives do not name their peer, so distprof does "
            "not match them."
        )
    index = index[known]
    sent = _by_channel(index[rows.kind[index] != CollectiveKind.RECV], rows.rank, rows.peer)
    received = _by_channel(index[rows.kind[index] != CollectiveKind.SEND], rows.peer, rows.rank)
    nothing = np.empty(0, np.int64)
    candidates, pairs, unclear = [], [], set[int]()
    for channel in sorted(sent.keys() | received.keys()):
        if not all(rank in clocks.clock_of for rank in channel):  # an end is not part of the run
            continue
        ends = sent.get(channel, nothing), received.get(channel, nothing)
        matched, should_match, is_clear = _match_channel(rows, ends, channel, clocks)
        pairs.append(matched)
        candidates.append(should_match)
        unclear.update(() if is_clear else channel)
    if pairs:
        # a kernel that sends and receives is in two channels
        builder.num_candidates += len(np.unique(np.concatenate(candidates)))
        both = _agreeing(rows, np.concatenate(pairs))
        builder.add(both.ravel(), np.full(len(both), 2, np.int64), MatchMethod.SUBSEQUENCE)
    if unclear:
        builder.ambiguous.update(unclear)
        builder.notes.append(
            f"Sends and receives between {name_ranks(unclear)} fit at several shifts about "
            "equally well, so distprof does not match them."
        )


def _by_channel(
    index: Int64Array, source: NDArray[np.int32], destination: NDArray[np.int32]
) -> dict[tuple[int, int], Int64Array]:
    """Rows by (sender, receiver), each in order of start."""
    width = int(destination[index].max(initial=0)) + 1
    keys = source[index].astype(np.int64) * width + destination[index]
    return {divmod(key, width): rows for key, rows in parts_by(keys, index).items()}


def _match_channel(
    rows: Rows, ends: tuple[Int64Array, Int64Array], channel: tuple[int, int], clocks: ClockLinks
) -> tuple[Int64Array, Int64Array, bool]:
    """Matched rows of the sender and the receiver, rows that should match, whether it is clear."""
    sides = [
        Operations(
            token=rows.bytes[index],
            end_ns=rows.end_ns[index],
            step=rows.step[index],
            # a small send ends before its receive does; kernels that do both end together
            is_timed=rows.kind[index] == CollectiveKind.SEND_RECV,
        )
        for index in ends
    ]
    expected = clocks.expected(*(clocks.clock_of[rank] for rank in channel))
    choice = best_shift(sides[0], sides[1], expected)
    if choice is None or not choice.is_clear:  # several shifts fit about equally well, or none
        return np.empty((0, 2), np.int64), np.concatenate(ends), choice is None
    pairing = pair(sides[0], sides[1], choice.shift)
    low, high = pairing.low, pairing.high
    common = (ends[0][low:high], ends[1][low + choice.shift : high + choice.shift])
    pairs = np.stack((ends[0][pairing.first], ends[1][pairing.second]), axis=1)
    return pairs, np.concatenate(common), True


def _agreeing(rows: Rows, pairs: Int64Array) -> Int64Array:
    """Distinct pairs whose rows are in no other pair, the sender of a message first."""
    both_ways = (rows.kind[pairs] == CollectiveKind.SEND_RECV).all(axis=1)
    pairs = np.where(both_ways[:, np.newaxis], np.sort(pairs, axis=1), pairs)
    pairs = np.unique(pairs, axis=0)
    times = np.bincount(pairs.ravel(), minlength=len(rows.rank))
    alone: Bools = (times[pairs] == 1).all(axis=1)
    return pairs[alone]
