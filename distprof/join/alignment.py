"""Align the clocks of all hosts by collectives that end at the same time on every member.

For each pair of clock domains, distprof fits a robust line through the differences of end times
over time. It then solves all lines together, weighted by their certainty, over the graph of
domains. It corrects the drift of a domain only if the drift exceeds three standard errors. The
residual is the disagreement that remains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from distprof.join.blocks import blocks_of, looked_up, sorted_into
from distprof.join.clocks import components_of, fit_line, location, pooled_scale, solve_graph
from distprof.join.waits import (
    MemberBlock,
    MemberBlocks,
    domain_of_ranks,
    member_to_common,
    timed_instances,
)
from distprof.run.run import ClockAlignment, CollectiveMatches, Rank
from distprof.run.tables import distinct, encode, order_of_codes
from distprof.schema import ABSENT, Int64Array
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
    domains = _domains(ranks, nodes)
    shared = _on_system_clock(ranks, domains) if are_nodes_sure else frozenset()
    clock = _align(ranks, matches, domains, _SYMMETRIC, shared)
    lacking = _num_components(clock) > 1 or (clock.residual_ns < 0).all()
    if lacking and (matches.kind == CollectiveKind.SEND).any():
        other = _align(ranks, matches, domains, [*_SYMMETRIC, CollectiveKind.SEND], shared)
        connects = _num_components(other) < _num_components(clock)
        if connects or ((clock.residual_ns < 0).all() and (other.residual_ns >= 0).any()):
            note = (
                "Some clocks are aligned only by sends and receives, which may end at different "
                "times on the two ranks."
            )
            clock = replace(other, notes=(*other.notes, note))
    within = [SYSTEM_CLOCK_NS if name in shared else ABSENT for name in clock.names]
    clock = replace(clock, within_ns=np.array(within, dtype=np.int64))
    return check_causality(ranks, matches, clock)


def _on_system_clock(
    ranks: Sequence[Rank], domains: Mapping[str, tuple[int, ...]]
) -> frozenset[str]:
    """Domains in which every rank is a CPU rank with epoch timestamps."""
    timed = {rank.rank for rank in ranks if rank.device.name == "cpu" and rank.has_epoch}
    return frozenset(name for name, members in domains.items() if timed.issuperset(members))


def _num_components(clock: ClockAlignment) -> int:
    return len(set(clock.component.tolist()))


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
        return _uncorrected(ranks, domains, ())
    clock, deviations = _solve(ranks, ends, domains, ())
    split = _split_domains(clock, deviations)
    split = {domain: apart for domain, apart in split.items() if clock.names[domain] not in shared}
    if split:
        apart = {clock.names[domain]: round(ns) for domain, ns in split.items()}
        whole = {name: nodes for i, (name, nodes) in enumerate(domains.items()) if i not in split}
        clock, deviations = _solve(ranks, ends, _domains(ranks, whole), ())
        clock = replace(clock, split_ns=apart)
    return replace(clock, residual_ns=_residuals(clock, deviations))


def _domains(
    ranks: Sequence[Rank], nodes: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Clock domains by name, in order of their lowest rank; only ranks of the run."""
    node_of = {rank: name for name, members in nodes.items() for rank in members}
    domains: dict[str, list[int]] = {}
    for rank in ranks:
        domains.setdefault(node_of.get(rank.rank, f"rank {rank.rank}"), []).append(rank.rank)
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


def _uncorrected(
    ranks: Sequence[Rank], domains: Mapping[str, tuple[int, ...]], notes: tuple[str, ...]
) -> ClockAlignment:
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
        notes=notes,
    )


def _solve(
    ranks: Sequence[Rank],
    ends: _Ends,
    domains: Mapping[str, tuple[int, ...]],
    notes: tuple[str, ...],
) -> tuple[ClockAlignment, _Deviations]:
    """Corrections of the domains, and the deviations that remain."""
    clock = _uncorrected(ranks, domains, notes)
    pairs = _pairs(ends, clock)
    edges = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
    clock = replace(
        clock,
        reference_ns=int(np.median(ends.end_ns)),
        component=components_of(len(domains), edges).astype(np.int32),
    )
    if pairs:
        clock = _with_offset(_with_drift(clock, pairs), pairs)
    return clock, _Deviations(clock, ends)


def _pairs(ends: _Ends, clock: ClockAlignment) -> _Pairs:
    """End times of the same collectives in two domains, for each pair of domains that shares one.

    In each collective, every domain is compared only with the lowest one, so the number of pairs
    is linear in the number of members.
    """
    count = len(clock.domains)
    parts = [
        _pairs_of(ends.end_ns[members], domain_of_ranks(clock, ends.rank[members]), first, count)
        for members, first in ends.blocks()
    ]
    key, leading, following = map(np.concatenate, zip(*parts, strict=True))
    result = {}
    for part in _split_by(key):
        a, b = divmod(int(key[part[0]]), count)
        result[a, b] = (leading[part], following[part])
    return result


def _pairs_of(
    end_ns: Int64Array, domain: Int64Array, first: Int64Array, count: int
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Domain pairs of a few instances: encoded pair, end in the lower domain and in the other."""
    place = np.repeat(np.arange(len(first)) * count, np.diff(first, append=len(end_ns)))
    place += domain
    if (place[1:] < place[:-1]).any():  # members are sorted by rank, which usually sorts domains
        order = np.argsort(place, kind="stable")
        place, end_ns = place[order], end_ns[order]
    starts = np.flatnonzero(np.append(True, place[1:] != place[:-1]))
    end = _mean_ns(end_ns, starts)
    instance, domain = np.divmod(place[starts], count)
    index = np.arange(len(domain))
    leads = np.concatenate(([True], instance[1:] != instance[:-1]))
    leader = np.maximum.accumulate(np.where(leads, index, 0))[~leads]
    return domain[leader] * count + domain[~leads], end[leader], end[~leads]


def _split_by(keys: Int64Array) -> list[Int64Array]:
    """Positions of each key, by ascending key; positions keep their order."""
    if not len(keys):
        return []
    found, code = encode(keys)
    sizes = np.bincount(code, minlength=len(found))
    return np.split(order_of_codes(code, len(found)), np.cumsum(sizes)[:-1])


def _mean_ns(values: Int64Array, first: Int64Array) -> Int64Array:
    """Mean of each run of values, computed so that sums of epoch times do not overflow."""
    counts = np.diff(np.append(first, len(values)))
    base = values[first]
    shifted = np.add.reduceat(values - np.repeat(base, counts), first)
    means: Int64Array = base + np.rint(shifted / counts).astype(np.int64)
    return means


def _with_drift(clock: ClockAlignment, pairs: _Pairs) -> ClockAlignment:
    """The alignment with the drift per domain, zero if it is not significant."""
    lines = {
        key: fit_line(end_b - clock.reference_ns, end_b - end_a)
        for key, (end_a, end_b) in pairs.items()
    }
    known = {key: line for key, line in lines.items() if line.leverage > 0}
    if not known:
        return clock
    scales = np.array([line.scale for line in known.values()])
    counts = np.array([len(pairs[key][0]) for key in known])
    scales = np.maximum(scales, pooled_scale(scales, counts))
    drift, error = solve_graph(
        len(clock.domains),
        np.array(list(known), dtype=np.int64),
        np.array([line.slope for line in known.values()]),
        scales / np.array([line.leverage for line in known.values()]),
    )
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


def _from_middle(common: Int64Array, first: Int64Array) -> NDArray[np.float64]:
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

    def of(self, ranks: Sequence[int]) -> list[NDArray[np.float64]]:
        """Signed deviations of each rank that has any, in the order of the instances."""
        return [self._deviation[self._span[rank]] for rank in ranks if rank in self._span]

    def from_others(self, ranks: Sequence[int]) -> list[NDArray[np.float64]]:
        """Distance of each rank's ends from the median of the other members.

        The median includes the member itself, so each distance is scaled by n / (n - 1). For two
        members the result is the full distance between them.
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


def _residuals(clock: ClockAlignment, deviations: _Deviations) -> Int64Array:
    """95th percentile per domain of the distance of a member's end from the other members' ends."""
    residual = np.full(len(clock.domains), ABSENT, np.int64)
    for domain, ranks in enumerate(clock.domains):
        if parts := deviations.from_others(ranks):
            worst = np.percentile(np.concatenate(parts), _RESIDUAL_PERCENTILE)
            residual[domain] = int(np.ceil(worst))
    return residual


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
    """Count causality violations: an end before the last start, or a receipt before the send.

    A violation smaller than the residual does not count.
    """
    if matches.count == 0:
        return clock
    checked = np.zeros(matches.count, np.bool_)
    violated = np.zeros(matches.count, np.bool_)
    for block in MemberBlocks(matches, ranks, ["start_ns", "end_ns"]):
        kinds = matches.kind[block.instances]
        checked[block.instances], violated[block.instances] = _violations(block, kinds, clock)
    checked &= timed_instances(matches, ranks)
    violated &= checked
    notes = list(clock.notes)
    if _num_components(clock) > 1:
        notes.append(
            "No collective connects "
            + ", ".join(_component_names(clock))
            + ": distprof does not compare times between them."
        )
    return replace(
        clock,
        num_checked=int(checked.sum()),
        num_violations=int(violated.sum()),
        notes=tuple(notes),
    )


def _violations(
    block: MemberBlock, kinds: NDArray[np.int8], clock: ClockAlignment
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Instances whose causality can be checked, and those that violate it."""
    first, domain = block.first, domain_of_ranks(clock, block.rank)
    start, end = (member_to_common(clock, domain, times) for times in block.columns)
    slack = np.maximum.reduceat(clock.residual_ns[domain], first)
    component = clock.component[domain]
    same_clock = np.minimum.reduceat(component, first) == np.maximum.reduceat(component, first)
    symmetric = np.isin(kinds, _SYMMETRIC) & same_clock
    early = np.minimum.reduceat(end, first) < np.maximum.reduceat(start, first) - slack
    message = (kinds == CollectiveKind.SEND) & same_clock
    sent = start[first]
    received = end[np.minimum(first + 1, len(end) - 1)]  # the sender is the first of two members
    early_receipt = received < sent - slack
    return symmetric | message, (symmetric & early) | (message & early_receipt)


def _component_names(clock: ClockAlignment) -> list[str]:
    """One name per component with the number of its other domains, shortened to 5 entries."""
    numbers, counts = np.unique(clock.component, return_counts=True)
    names = [
        clock.names[number] + (f" (and {count - 1} more)" if count > 1 else "")
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True)
    ]
    return names if len(names) <= 5 else [*names[:4], f"{len(names) - 4} more"]
