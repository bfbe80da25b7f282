"""Match collectives by their order in a process group, and messages by their order in a rank pair.

First, :mod:`.shifts` chooses the shift between the sequences of two ranks. If either sequence lacks
operations of the other, the longest common subsequence near that shift decides.

Source: longest common subsequence by E. W. Myers, "An O(ND) Difference Algorithm and Its
Variations", Algorithmica 1, 1986. Here a pair must also agree in time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from distprof.join.clocks import SEPARATE_NS, ClockLinks
from distprof.join.instances import NO_STEP, MatchBuilder, Rows, name_of, runs_of
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
from distprof.run.tables import encode, order_of_codes
from distprof.run.topology import ProcessGroup
from distprof.schema import Int64Array
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

    def agrees(
        self, a: Operations, b: Operations, i: Int64Array, j: Int64Array
    ) -> NDArray[np.bool_]:
        """Whether two operations can have ended at the same time; always True for untimed ones."""
        off = np.abs(b.end_ns[j] - self.expected(a.end_ns[i]))
        possible: NDArray[np.bool_] = (off <= self.tolerance_ns) | ~a.is_timed[i] | ~b.is_timed[j]
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
    if fits.all() and clock.is_steady(a, b, i, i + shift):
        return Pairing(first=i, second=i + shift, low=low, high=high, clock=clock)
    first, second = _common_subsequence(a, b, shift, clock)
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


def _common_subsequence(
    a: Operations, b: Operations, shift: int, clock: Clock
) -> tuple[Int64Array, Int64Array]:
    """Longest common subsequence, near ``shift``, of operations that can have ended together."""
    low, high = max(0, -shift), min(len(a), len(b) - shift)
    start_a, start_b = max(0, low - MARGIN), max(0, low + shift - MARGIN)
    part_a = a.part(start_a, high + MARGIN)
    part_b = b.part(start_b, high + shift + MARGIN)
    pairs = np.array(_edit_trace(part_a, part_b, clock), dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0] + start_a, pairs[:, 1] + start_b


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
    weight: NDArray[np.float64]  # Number of ends in each mean.
    low: int  # First position that the windows of all members cover.
    high: int  # One past the last of these positions.

    @classmethod
    def of_rank(cls, rank: int, ops: Operations, clock: int) -> _MergedSequence:
        everything = np.arange(len(ops))
        members = {rank: (everything, everything)}
        return cls(ops, clock, members, np.ones(len(ops)), 0, len(ops))

    def take(self, other: _MergedSequence, pairing: Pairing) -> None:
        """Add the members of another sequence, given the pairing of the two first ranks."""
        here = np.full(len(other.ops), -1, np.int64)
        here[pairing.second] = pairing.first
        for rank, (there, own) in other.members.items():
            joins = here[there] >= 0
            self.members[rank] = (here[there][joins], own[joins])
        self._average(other, pairing)
        shift = int(pairing.second[0] - pairing.first[0]) if len(pairing.first) else 0
        self.low = max(self.low, pairing.low, other.low - shift)
        self.high = min(self.high, pairing.high, other.high - shift)

    def _average(self, other: _MergedSequence, pairing: Pairing) -> None:
        """Average the ends of pairs within the tolerance; an outlier would distort the mean."""
        first, second = pairing.first, pairing.second
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
        by_clock: dict[int, list[int]] = {}
        for rank in sorted(operations, key=lambda rank: (-len(operations[rank]), rank)):
            by_clock.setdefault(clocks.clock_of(rank), []).append(rank)
        sequences = []
        for ranks in by_clock.values():
            sequences.extend(_merge_ranks(ranks, operations, clocks))
        sequences.sort(key=lambda sequence: (-len(sequence.ops), min(sequence.members)))
        return cls(sequences[0], sequences[1:])

    def advance(self, clocks: ClockLinks) -> bool:
        """Merge the sequences whose shift is clear by now; returns whether there were any."""
        progress = False
        while self.waiting and self._tried_at != (stamp := self._stamp(clocks)):
            self._tried_at = stamp
            progress |= self._round(clocks)
        return progress

    def _stamp(self, clocks: ClockLinks) -> tuple[int, int]:
        """Changes when a new attempt may choose other shifts: more members or more clock links."""
        return len(self.main.members), clocks.num_links

    def _round(self, clocks: ClockLinks) -> bool:
        choices = [self._choice(sequence, clocks) for sequence in self.waiting]
        self.unfit = {
            rank
            for sequence, choice in zip(self.waiting, choices, strict=True)
            if choice is None
            for rank in sequence.members
        }
        still = []
        for sequence, choice in zip(self.waiting, choices, strict=True):
            if choice is None or not _is_sure(self.main, sequence, choice, clocks):
                still.append(sequence)
                continue
            self.main.take(sequence, pair(self.main.ops, sequence.ops, choice.shift))
            clocks.learn(self.main.clock, sequence.clock, choice.offset_ns)
        joined = len(still) < len(self.waiting)
        self.waiting = still
        return joined

    def _choice(self, sequence: _MergedSequence, clocks: ClockLinks) -> Choice | None:
        expected = clocks.expected(self.main.clock, sequence.clock)
        return best_shift(self.main.ops, sequence.ops, expected)


def _merge_ranks(
    ranks: list[int], operations: Mapping[int, Operations], clocks: ClockLinks
) -> list[_MergedSequence]:
    """Merge ranks of one clock, starting with the one with the most operations."""
    sequences = [
        _MergedSequence.of_rank(rank, operations[rank], clocks.clock_of(rank)) for rank in ranks
    ]
    main, apart = sequences[0], []
    for rank, sequence in zip(ranks[1:], sequences[1:], strict=True):
        choice = best_shift(main.ops, sequence.ops, clocks.expected(main.clock, sequence.clock))
        if choice is None or not choice.is_clear:
            apart.append(sequence)
        elif abs(choice.offset_ns) > SEPARATE_NS:
            clocks.separate(rank)
            sequence.clock = clocks.clock_of(rank)
            clocks.learn(main.clock, sequence.clock, choice.offset_ns)
            apart.append(sequence)
        else:
            main.take(sequence, pair(main.ops, sequence.ops, choice.shift))
    return [main, *apart]


def _is_sure(
    main: _MergedSequence, sequence: _MergedSequence, choice: Choice, clocks: ClockLinks
) -> bool:
    """Whether a choice is clear and consistent with the known clock offsets."""
    if not choice.is_clear:
        return False
    if not clocks.knows(main.clock, sequence.clock):
        return True
    expected = clocks.expected(main.clock, sequence.clock)
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

    Clock offsets found in one group help to match the others, so distprof repeats until no further
    rank joins. Ranks whose operations fit at several shifts about equally well stay unmatched, and
    the builder notes them.
    """
    parts: list[tuple[str, dict[int, Int64Array], GroupMerge]] = []
    for group, of_group in _by_group(rows, index):
        by_rank = _split_by(rows.rank[of_group], of_group)
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


def _by_group(rows: Rows, index: Int64Array) -> Iterator[tuple[int, Int64Array]]:
    """Each group with its rows, ascending."""
    if len(index):
        groups, code = encode(rows.group[index])
        order = order_of_codes(code, len(groups))
        parts = np.split(index[order], np.cumsum(np.bincount(code))[:-1])
        yield from zip(groups.tolist(), parts, strict=True)


def _split_by(values: NDArray[np.int32], index: Int64Array) -> dict[int, Int64Array]:
    """Parts of ``index`` by value; ``values`` come in runs, ascending."""
    found, first = np.unique(values, return_index=True)
    return dict(zip(found.tolist(), np.split(index, first[1:]), strict=True))


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
    slots = [slot for slot, _ in main.members.values()]
    members = [by_rank[rank][own] for rank, (_, own) in main.members.items()]
    _join(np.concatenate(slots), np.concatenate(members), len(main.ops), builder)


def _join(slot: Int64Array, member: Int64Array, num_slots: int, builder: MatchBuilder) -> None:
    """Add one instance per slot; sorting by row sorts members by rank, as rows are rank by rank."""
    order = np.lexsort((member, slot))
    slot, member = slot[order], member[order]
    sizes = np.bincount(slot, minlength=num_slots)
    builder.add(member[sizes[slot] >= 2], sizes[sizes >= 2], MatchMethod.SUBSEQUENCE)


# Messages -----------------------------------------------------------------------------------------


def match_messages(
    rows: Rows, index: Int64Array, clocks: ClockLinks, builder: MatchBuilder
) -> None:
    """Match the sends of each rank with the receives of each other rank.

    A kernel that both sends to a rank and receives from it matches a kernel of that rank only if
    both messages agree.
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
    channels = [
        (channel, _match_channel(rows, ends, channel, clocks))
        for channel, ends in _ends_of_channels(sent, received).items()
        if all(clocks.has(rank) for rank in channel)  # both ends are part of the run
    ]
    unclear = {rank for channel, matched in channels if not matched.is_clear for rank in channel}
    if channels:
        # a kernel that sends and receives is in two channels
        builder.num_candidates += len(
            np.unique(np.concatenate([m.candidates for _, m in channels]))
        )
        both = _agreeing(rows, np.concatenate([matched.pairs for _, matched in channels]))
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
    order = index[np.lexsort((destination[index], source[index]))]
    first, _ = runs_of(source[order], destination[order])
    parts = np.split(order, first[1:]) if len(order) else []
    channels = zip(source[order[first]].tolist(), destination[order[first]].tolist(), strict=True)
    return dict(zip(channels, parts, strict=True))


def _ends_of_channels(
    sent: Mapping[tuple[int, int], Int64Array], received: Mapping[tuple[int, int], Int64Array]
) -> dict[tuple[int, int], tuple[Int64Array, Int64Array]]:
    empty = np.empty(0, np.int64)
    return {
        channel: (sent.get(channel, empty), received.get(channel, empty))
        for channel in sorted(sent.keys() | received.keys())
    }


class _Channel(msgspec.Struct, frozen=True, kw_only=True):
    """Matched messages from one rank to another."""

    pairs: Int64Array  # int64, shape ``(n, 2)``: rows of the sender and of the receiver.
    candidates: Int64Array  # Rows that should have a partner.
    is_clear: bool  # False if several shifts fit about equally well.


def _match_channel(
    rows: Rows, ends: tuple[Int64Array, Int64Array], channel: tuple[int, int], clocks: ClockLinks
) -> _Channel:
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
    expected = clocks.expected(*(clocks.clock_of(rank) for rank in channel))
    choice = best_shift(sides[0], sides[1], expected)
    if choice is None or not choice.is_clear:
        nothing = np.empty((0, 2), np.int64)
        candidates = np.concatenate(ends)
        return _Channel(pairs=nothing, candidates=candidates, is_clear=choice is None)
    pairing = pair(sides[0], sides[1], choice.shift)
    low, high = pairing.low, pairing.high
    common = (ends[0][low:high], ends[1][low + choice.shift : high + choice.shift])
    pairs = np.stack((ends[0][pairing.first], ends[1][pairing.second]), axis=1)
    return _Channel(pairs=pairs, candidates=np.concatenate(common), is_clear=True)


def _agreeing(rows: Rows, pairs: Int64Array) -> Int64Array:
    """Distinct pairs whose rows are in no other pair, the sender of a message first."""
    both_ways = (rows.kind[pairs] == CollectiveKind.SEND_RECV).all(axis=1)
    pairs = np.where(both_ways[:, np.newaxis], np.sort(pairs, axis=1), pairs)
    pairs = np.unique(pairs, axis=0)
    times = np.bincount(pairs.ravel(), minlength=len(rows.rank))
    alone: NDArray[np.bool_] = (times[pairs] == 1).all(axis=1)
    return pairs[alone]
