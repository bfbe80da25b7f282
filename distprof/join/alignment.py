"""Align the clocks of all hosts by collectives that end at the same time on every member.

A robust line is fitted through the differences of end times of each pair of clock domains, and all
lines are solved together, weighted by their certainty. A drift counts only above three standard
errors. The residual is the disagreement that remains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from distprof.artefacts.record import grouped
from distprof.join.clocks import components_of, fit_line, location, pooled_scale, solve_graph
from distprof.join.waits import (
    MemberBlocks,
    blocks_of,
    domain_of_ranks,
    looked_up,
    member_to_common,
    sorted_into,
    timed_instances,
)
from distprof.run.run import ClockAlignment, CollectiveMatches, Rank
from distprof.run.tables import distinct, parts_by, runs_of, same_as_before
from distprof.schema import ABSENT, Floats, Int64Array
from distprof.terms import CollectiveKind

_SYMMETRIC = [kind for kind in CollectiveKind if kind.is_symmetric]
SYSTEM_CLOCK_NS = 10_000
"""Uncertainty between CPU ranks of one host: torch traces are within 8 µs of the host's clock."""

_DRIFT_SIGMAS = 3.0  # a drift below this many standard errors is indistinguishable from zero
_MAX_DRIFT = 1e-3  # quartz stays within 1e-4, so a larger drift is a wrong match
_SPLIT_NS = 50_000  # if GPUs of one host disagree by more than this, they have different clocks
_SPLIT_SIGMAS = 10.0
_RESIDUAL_PERCENTILE = 95
_MOST_COUNTED = 1 << 24  # rank numbers below this are counted in a table with one entry each
_Pairs = dict[tuple[int, int], tuple[Int64Array, Int64Array]]


def align_clocks(
    ranks: Sequence[Rank],
    nodes: Mapping[str, tuple[int, ...]],
    matches: CollectiveMatches,
    *,
    are_nodes_sure: bool = False,
) -> ClockAlignment:
    """Find the offset and drift of each clock domain, and check them.

    The first domain of each connected component keeps its clock. Ranks of one node share a clock by
    default; a rank in no node is a separate domain. If the traces show that they do not (duplicate
    host names, badly synchronised GPU clocks), each rank of the node becomes a separate domain,
    except CPU ranks of nodes that the launcher recorded (``are_nodes_sure``): they share the system
    clock, even if they notice the end of a collective at different times. If symmetric collectives
    do not connect all domains, the ends of sends and receives are used as well.
    """
    domains, shared = _domains(ranks, nodes), frozenset[str]()
    if are_nodes_sure:
        on_cpu = {rank.rank for rank in ranks if rank.device.name == "cpu" and rank.has_epoch}
        shared = frozenset(name for name, members in domains.items() if on_cpu.issuperset(members))
    clock = _align(ranks, matches, domains, _SYMMETRIC, shared)
    count, is_unknown = len(set(clock.component.tolist())), (clock.residual_ns < 0).all()
    if (count > 1 or is_unknown) and (matches.kind == CollectiveKind.SEND).any():
        other = _align(ranks, matches, domains, [*_SYMMETRIC, CollectiveKind.SEND], shared)
        connects = len(set(other.component.tolist())) < count
        if connects or (is_unknown and (other.residual_ns >= 0).any()):
            note = (
                "Some clocks are aligned only by sends and receives, which may end at different "
                "times on the two ranks."
            )
            clock = replace(other, notes=(*other.notes, note))
    within = [SYSTEM_CLOCK_NS if name in shared else ABSENT for name in clock.names]
    clock = replace(clock, within_ns=np.array(within, dtype=np.int64))
    return check_causality(ranks, matches, clock)


def _align(
    ranks: Sequence[Rank],
    matches: CollectiveMatches,
    domains: dict[str, tuple[int, ...]],
    kinds: Sequence[CollectiveKind],
    shared: frozenset[str],
) -> ClockAlignment:
    """Corrections from the ends of collectives of ``kinds``, with residuals, not yet checked."""
    ends = _ends(ranks, matches, kinds)
    if ends is None:
        return _uncorrected(ranks, domains)
    clock, deviations = _solve(ranks, ends, domains)
    split = _split_domains(clock, deviations)
    split = {domain: apart for domain, apart in split.items() if clock.names[domain] not in shared}
    if split:
        apart = {clock.names[domain]: round(ns) for domain, ns in split.items()}
        whole = {name: nodes for i, (name, nodes) in enumerate(domains.items()) if i not in split}
        clock, deviations = _solve(ranks, ends, _domains(ranks, whole))
        clock = replace(clock, split_ns=apart)
    residual = np.full(len(clock.domains), ABSENT, np.int64)
    for domain, members in enumerate(clock.domains):
        if parts := deviations.from_others(members):
            worst = np.percentile(np.concatenate(parts), _RESIDUAL_PERCENTILE)
            residual[domain] = int(np.ceil(worst))
    return replace(clock, residual_ns=residual)


def _domains(
    ranks: Sequence[Rank], nodes: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Clock domains by name, in order of their lowest rank; only ranks of the run."""
    node_of = {rank: name for name, members in nodes.items() for rank in members}
    domains = grouped([(node_of.get(rank.rank, f"rank {rank.rank}"), rank.rank) for rank in ranks])
    return {name: tuple(members) for name, members in domains.items()}


class _Ends(msgspec.Struct, frozen=True, kw_only=True):
    """End times of the members of collectives that end at once, instance by instance."""

    rank: NDArray[np.int32]  # int32, rank number of the member.
    offsets: Int64Array  # int64, where each instance begins, followed by the end of the last.
    end_ns: Int64Array  # int64, on the member's own clock.

    def blocks(self) -> Iterator[tuple[slice, Int64Array]]:
        """Members of a few instances at a time, and where each instance begins among them."""
        for low, high in blocks_of(self.offsets):
            members = slice(int(self.offsets[low]), int(self.offsets[high]))
            yield members, self.offsets[low:high] - self.offsets[low]


def _ends(
    ranks: Sequence[Rank], matches: CollectiveMatches, kinds: Sequence[CollectiveKind]
) -> _Ends | None:
    keep = np.isin(matches.kind, kinds) & timed_instances(matches, ranks)
    if not keep.any():
        return None
    sizes = np.diff(matches.offsets)[keep]
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    all_keep = bool(keep.all())
    rank = matches.member_rank if all_keep else np.empty(int(offsets[-1]), np.int32)
    end_ns = np.empty(int(offsets[-1]), np.int64)
    filled = 0
    for block in MemberBlocks(matches, ranks, ["end_ns"]):
        members = np.repeat(keep[block.instances], np.diff(block.first, append=len(block.rank)))
        part = slice(filled, filled := filled + int(np.count_nonzero(members)))
        end_ns[part] = block.columns[0][members]
        if not all_keep:
            rank[part] = block.rank[members]
    return _Ends(rank=rank, offsets=offsets, end_ns=end_ns)


def _uncorrected(ranks: Sequence[Rank], domains: Mapping[str, tuple[int, ...]]) -> ClockAlignment:
    count = len(domains)
    starts = [rank.capture_start_ns for rank in ranks]
    ends = [rank.capture_end_ns for rank in ranks]
    return ClockAlignment(
        domains=tuple(domains.values()),
        names=tuple(domains),
        offset_ns=np.zeros(count),
        drift_ratio=np.zeros(count),
        reference_ns=(min(starts) + max(ends)) // 2 if starts else 0,
        residual_ns=np.full(count, ABSENT, np.int64),
        component=np.arange(count, dtype=np.int32),
    )


def _solve(
    ranks: Sequence[Rank], ends: _Ends, domains: Mapping[str, tuple[int, ...]]
) -> tuple[ClockAlignment, _Deviations]:
    """Corrections of the domains, and the deviations that remain."""
    clock = _uncorrected(ranks, domains)
    count = len(clock.domains)
    parts = [
        _pairs_of(ends.end_ns[members], domain_of_ranks(clock, ends.rank[members]), first, count)
        for members, first in ends.blocks()
    ]
    keys, leading, following = map(np.concatenate, zip(*parts, strict=True))
    pairs = {
        divmod(key, count): (leading[part], following[part])
        for key, part in parts_by(keys, np.arange(len(keys))).items()
    }
    edges = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
    clock = replace(
        clock,
        reference_ns=int(np.median(ends.end_ns)),
        component=components_of(len(domains), edges).astype(np.int32),
    )
    if pairs:
        clock = _with_offset(_with_drift(clock, pairs), pairs)
    return clock, _Deviations(clock, ends)


def _pairs_of(
    end_ns: Int64Array, domain: Int64Array, first: Int64Array, count: int
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Domain pairs of a few instances: encoded pair, end in the lower domain and in the other."""
    place = np.repeat(np.arange(len(first)) * count, np.diff(first, append=len(end_ns)))
    place += domain
    if (place[1:] < place[:-1]).any():  # members are sorted by rank, which usually sorts domains
        order = np.argsort(place, kind="stable")
        place, end_ns = place[order], end_ns[order]
    starts, sizes = runs_of(place)
    base = end_ns[starts]  # sums of epoch times would overflow
    shifted = np.add.reduceat(end_ns - np.repeat(base, sizes), starts)
    end = base + np.rint(shifted / sizes).astype(np.int64)
    instance, domain = np.divmod(place[starts], count)
    index = np.arange(len(domain))
    leads = ~same_as_before(instance)
    leader = np.maximum.accumulate(np.where(leads, index, 0))[~leads]
    return domain[leader] * count + domain[~leads], end[leader], end[~leads]


def _with_drift(clock: ClockAlignment, pairs: _Pairs) -> ClockAlignment:
    """The alignment with the drift per domain, zero if it is not significant."""
    lines = {
        key: fit_line(end_b - clock.reference_ns, end_b - end_a)
        for key, (end_a, end_b) in pairs.items()
    }
    known = {key: line for key, line in lines.items() if line.leverage > 0}
    if not known:
        return clock
    scales, slopes, leverages = (
        np.array([getattr(line, name) for line in known.values()])
        for name in ("scale", "slope", "leverage")
    )
    scales = np.maximum(scales, pooled_scale(scales, np.array([len(pairs[k][0]) for k in known])))
    edges = np.array(list(known), dtype=np.int64)
    drift, error = solve_graph(len(clock.domains), edges, slopes, scales / leverages)
    certain = (np.abs(drift) > _DRIFT_SIGMAS * error) & (np.abs(drift) < _MAX_DRIFT)
    return replace(clock, drift_ratio=np.where(certain, drift, 0.0))


def _with_offset(clock: ClockAlignment, pairs: _Pairs) -> ClockAlignment:
    """The alignment with the offset per domain at the reference time, given the drifts."""
    edges = np.array(list(pairs), dtype=np.int64)
    counts = np.array([len(end_a) for end_a, _ in pairs.values()])
    values, scales = np.zeros(len(edges)), np.zeros(len(edges))
    for i, ((a, b), (end_a, end_b)) in enumerate(pairs.items()):
        drifted = clock.drift_ratio[b] * (end_b - clock.reference_ns)
        drifted -= clock.drift_ratio[a] * (end_a - clock.reference_ns)
        base = int(end_b[0] - end_a[0])  # floats lose the nanoseconds of large offsets
        center, scales[i] = location((end_b - end_a - base) - drifted)
        values[i] = base + center
    error = np.maximum(scales, pooled_scale(scales, counts)) / np.sqrt(counts)
    offset, _ = solve_graph(len(clock.domains), edges, values, error)
    return replace(clock, offset_ns=offset)


def _from_middle(common: Int64Array, first: Int64Array) -> Floats:
    """Distance of each end from the median of its instance."""
    counts = np.diff(first, append=len(common))
    # relative to the first member: floats hold that exactly
    relative = (common - np.repeat(common[first], counts)).astype(np.float64)
    middle = np.zeros(len(counts))
    for size in distinct(counts).tolist():
        same_size = np.flatnonzero(counts == size)
        rows = first[same_size, np.newaxis] + np.arange(size)
        middle[same_size] = np.median(relative[rows], axis=1, overwrite_input=True)
    relative -= np.repeat(middle, counts)
    return relative


class _Deviations:
    """Deviation of each rank's corrected ends from the median of their collective, in ns."""

    def __init__(self, clock: ClockAlignment, ends: _Ends) -> None:
        numbers, counts = _counted(ends.rank)
        stop = np.cumsum(counts)
        spans = zip((stop - counts).tolist(), stop.tolist(), strict=True)
        self._span = dict(zip(numbers.tolist(), (slice(*span) for span in spans), strict=True))
        self._deviation = np.empty(len(ends.rank))
        self._num_members = np.empty(len(ends.rank), np.int32)
        free = stop - counts
        for members, first in ends.blocks():
            rank = ends.rank[members]
            common = member_to_common(clock, domain_of_ranks(clock, rank), ends.end_ns[members])
            code = looked_up(numbers, np.arange(len(numbers)), rank)
            order, place = sorted_into(free, code)
            sizes = np.diff(first, append=len(code))
            self._deviation[place] = _from_middle(common, first)[order]
            self._num_members[place] = np.repeat(sizes, sizes)[order]

    def of(self, ranks: Sequence[int]) -> list[Floats]:
        """Signed deviations of each rank that has any, in the order of the instances."""
        return [self._deviation[self._span[rank]] for rank in ranks if rank in self._span]

    def from_others(self, ranks: Sequence[int]) -> list[Floats]:
        """Distance of each rank's ends from the median of the other members.

        The median includes the member itself, so each distance is scaled by n / (n - 1).
        """
        counts = [self._num_members[self._span[rank]] for rank in ranks if rank in self._span]
        return [
            np.abs(deviation) * (count / np.maximum(count - 1, 1))
            for deviation, count in zip(self.of(ranks), counts, strict=True)
        ]


def _counted(numbers: NDArray[np.int32]) -> tuple[NDArray[np.int32], Int64Array]:
    """Distinct numbers, ascending, and how often each occurs."""
    known = distinct(numbers)
    if known[-1] < _MOST_COUNTED:
        return known, np.bincount(numbers)[known]
    return known, np.bincount(np.searchsorted(known, numbers))


def _split_domains(clock: ClockAlignment, deviations: _Deviations) -> dict[int, float]:
    """Domains whose ranks disagree by more than one host's clock explains, with the difference."""
    split = {}
    for domain, ranks in enumerate(clock.domains):
        parts = deviations.of(ranks)
        if len(parts) < 2:
            continue
        centers, scales = zip(*(location(part) for part in parts), strict=True)
        apart = max(centers) - min(centers)
        error = max(s / np.sqrt(len(p)) for s, p in zip(scales, parts, strict=True))
        if apart > max(_SPLIT_NS, _SPLIT_SIGMAS * error):
            split[domain] = apart
    return split


def check_causality(
    ranks: Sequence[Rank], matches: CollectiveMatches, clock: ClockAlignment
) -> ClockAlignment:
    """Count ends before the last start, or receipts before the send, by more than the residual."""
    if matches.count == 0:
        return clock
    checked, violated = np.zeros((2, matches.count), np.bool_)
    for block in MemberBlocks(matches, ranks, ["start_ns", "end_ns"]):
        kinds = matches.kind[block.instances]
        first, domain = block.first, domain_of_ranks(clock, block.rank)
        start, end = (member_to_common(clock, domain, times) for times in block.columns)
        slack = np.maximum.reduceat(clock.residual_ns[domain], first)
        component = clock.component[domain]
        same_clock = np.minimum.reduceat(component, first) == np.maximum.reduceat(component, first)
        symmetric = np.isin(kinds, _SYMMETRIC) & same_clock
        early = np.minimum.reduceat(end, first) < np.maximum.reduceat(start, first) - slack
        message = (kinds == CollectiveKind.SEND) & same_clock
        received = end[np.minimum(first + 1, len(end) - 1)]  # the sender is the first of two
        early_receipt = received < start[first] - slack
        checked[block.instances] = symmetric | message
        violated[block.instances] = (symmetric & early) | (message & early_receipt)
    checked &= timed_instances(matches, ranks)
    violated &= checked
    notes, sizes = list(clock.notes), Counter(clock.component.tolist())
    names = [
        clock.names[number] + (f" (and {size - 1} more)" if size > 1 else "")
        for number, size in sorted(sizes.items())
    ]
    if len(names) > 5:
        names = [*names[:4], f"{len(names) - 4} more"]
    if len(names) > 1:
        notes.append(
            f"No collective connects {', '.join(names)}: distprof does not compare times between "
            "them."
        )
    return replace(
        clock,
        num_checked=int(checked.sum()),
        num_violations=int(violated.sum()),
        notes=tuple(notes),
    )
