"""Put the clocks of all hosts on one line, by the ends of collectives that end everywhere at once.

Per pair of clock domains a robust line is fitted through the differences of ends over time; the
lines are then solved together, weighted by their certainty, over the graph of domains. The drift of
a domain is used only where it stands out of its own error; the residual says what remains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from distprof.join.clocks import components_of, fit_line, location, pooled_scale, solve_graph
from distprof.join.waits import domain_of_ranks, member_column, member_to_common, timed_instances
from distprof.run.run import ClockAlignment, CollectiveMatches, Rank
from distprof.run.tables import distinct, encode, order_of_codes
from distprof.schema import ABSENT, Int64Array
from distprof.terms import CollectiveKind
from distprof.units import format_duration

__all__ = ["SYSTEM_CLOCK_NS", "align_clocks", "check_causality"]

_SYMMETRIC = [kind for kind in CollectiveKind if kind.is_symmetric]
SYSTEM_CLOCK_NS = 10_000
"""Uncertainty between CPU ranks of one host: torch's traces are within 8 µs of its clock."""

_DRIFT_SIGMAS = 3.0  # a drift below this many of its standard errors is not told from none
_MAX_DRIFT = 1e-3  # quartz is within 1e-4; more is a wrong match, not a clock
_SPLIT_NS = 50_000  # devices of one host agree better than this, or their clocks differ
_SPLIT_SIGMAS = 10.0
_RESIDUAL_PERCENTILE = 95

_Pairs = dict[tuple[int, int], tuple[Int64Array, Int64Array]]


def align_clocks(
    ranks: Sequence[Rank],
    nodes: Mapping[str, tuple[int, ...]],
    matches: CollectiveMatches,
    *,
    are_nodes_sure: bool = False,
) -> ClockAlignment:
    """Find the offset and drift of each clock domain, and check them.

    The first domain of each connected component keeps its clock. Ranks of one node share a clock;
    where the traces show that they do not (host names that are not unique, device clocks that were
    synchronised badly), each of its ranks is a domain of its own. Where symmetric collectives do
    not connect all domains, ends of sends and receives help out.

    Args:
        ranks: Ranks of the run, ascending.
        nodes: Node name to its ranks; a rank in no node is a domain of its own.
        matches: Matched collectives.
        are_nodes_sure: Whoever started the ranks says which node each is on. Then CPU ranks of a
            node have the system's clock in common, however far apart they notice that a collective
            has ended.
    """
    domains = _domains(ranks, nodes)
    shared = _on_system_clock(ranks, domains) if are_nodes_sure else frozenset()
    clock = _align(ranks, matches, domains, _SYMMETRIC, shared)
    lacking = _num_components(clock) > 1 or (clock.residual_ns < 0).all()
    if lacking and (matches.kind == CollectiveKind.SEND).any():
        other = _align(ranks, matches, domains, [*_SYMMETRIC, CollectiveKind.SEND], shared)
        connects = _num_components(other) < _num_components(clock)
        if connects or ((clock.residual_ns < 0).all() and (other.residual_ns >= 0).any()):
            note = "Some clocks are related only by sends and receives, whose ends may differ."
            clock = replace(other, notes=(*other.notes, note))
    within = [SYSTEM_CLOCK_NS if name in shared else ABSENT for name in clock.names]
    clock = replace(clock, within_ns=np.array(within, dtype=np.int64))
    return check_causality(ranks, matches, clock)


def _on_system_clock(
    ranks: Sequence[Rank], domains: Mapping[str, tuple[int, ...]]
) -> frozenset[str]:
    """Domains all of whose ranks were timed by the host, since the epoch."""
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
    """Corrections by the ends of some kinds of collectives, their residuals, no check yet."""
    ends = _ends(ranks, matches, kinds)
    if ends is None:
        return _uncorrected(ranks, domains, ())
    clock, deviation = _solve(ranks, ends, domains, ())
    torn = _torn_domains(clock, ends, deviation)
    torn = {domain: apart for domain, apart in torn.items() if clock.names[domain] not in shared}
    if torn:
        notes = tuple(
            f"Collectives end up to {format_duration(apart)} apart on the ranks of "
            f"{clock.names[domain]}: distprof aligns the clock of each rank separately."
            for domain, apart in torn.items()
        )
        whole = {name: nodes for i, (name, nodes) in enumerate(domains.items()) if i not in torn}
        clock, deviation = _solve(ranks, ends, _domains(ranks, whole), notes)
    return replace(clock, residual_ns=_residuals(clock, ends, deviation))


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
    """Own ends of the members of collectives that end everywhere at once, instance by instance.

    Args:
        rank: int32, rank number of the member.
        instance: int64, 0, 1, 2, … ascending.
        first: int64, where each instance begins.
        end_ns: int64, on the member's own clock.
    """

    rank: NDArray[np.int32]
    instance: Int64Array
    first: Int64Array
    end_ns: Int64Array


def _ends(
    ranks: Sequence[Rank], matches: CollectiveMatches, kinds: Sequence[CollectiveKind]
) -> _Ends | None:
    keep = np.isin(matches.kind, kinds) & timed_instances(matches, ranks)
    if not keep.any():
        return None
    sizes = np.diff(matches.offsets)[keep]
    members = np.repeat(keep, np.diff(matches.offsets))
    return _Ends(
        rank=matches.member_rank[members],
        instance=np.repeat(np.arange(len(sizes), dtype=np.int64), sizes),
        first=np.cumsum(sizes) - sizes,
        end_ns=member_column(matches, ranks, "end_ns")[members],
    )


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
) -> tuple[ClockAlignment, NDArray[np.float64]]:
    """Corrections of the domains, and what remains of each member's end."""
    clock = _uncorrected(ranks, domains, notes)
    domain = domain_of_ranks(clock, ends.rank)
    pairs = _pairs(ends, domain)
    edges = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
    clock = replace(
        clock,
        reference_ns=int(np.median(ends.end_ns)),
        component=components_of(len(domains), edges).astype(np.int32),
    )
    if pairs:
        clock = _with_offset(_with_drift(clock, pairs), pairs)
    return clock, _deviations(clock, ends, domain)


def _pairs(ends: _Ends, domain: Int64Array) -> _Pairs:
    """Own ends of the same collectives in two domains, for pairs that meet in collectives.

    In each collective every domain is compared with the lowest one in it, so that the pairs grow
    with the members, not with their square.
    """
    count = int(domain.max()) + 1
    place = ends.instance * count + domain
    end_ns: Int64Array = ends.end_ns
    if (place[1:] < place[:-1]).any():  # members are in order of their ranks, mostly by domain too
        order = np.argsort(place, kind="stable")
        place, end_ns = place[order], end_ns[order]
    first = np.flatnonzero(np.append(True, place[1:] != place[:-1]))
    end = _mean_ns(end_ns, first)
    instance, domain = np.divmod(place[first], count)
    index = np.arange(len(domain))
    leads = np.concatenate(([True], instance[1:] != instance[:-1]))
    leader = np.maximum.accumulate(np.where(leads, index, 0))
    others = np.flatnonzero(~leads)
    result = {}
    for part in _split_by(domain[leader[others]] * count + domain[others], others):
        a, b = int(domain[leader[part[0]]]), int(domain[part[0]])
        result[a, b] = (end[leader[part]], end[part])
    return result


def _split_by(keys: Int64Array, values: Int64Array) -> list[Int64Array]:
    """Values of equal keys together, in their order, by ascending key."""
    if not len(keys):
        return []
    found, code = encode(keys)
    sizes = np.bincount(code, minlength=len(found))
    return np.split(values[order_of_codes(code, len(found))], np.cumsum(sizes)[:-1])


def _mean_ns(values: Int64Array, first: Int64Array) -> Int64Array:
    """Mean of each run of values, without the sum of epoch times overflowing."""
    counts = np.diff(np.append(first, len(values)))
    base = values[first]
    shifted = np.add.reduceat(values - np.repeat(base, counts), first)
    means: Int64Array = base + np.rint(shifted / counts).astype(np.int64)
    return means


def _with_drift(clock: ClockAlignment, pairs: _Pairs) -> ClockAlignment:
    """Drift per domain, zero where it does not stand out of its error."""
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
    """Offset per domain at the reference time, given the drifts."""
    edges = np.array(list(pairs), dtype=np.int64)
    counts = np.array([len(end_a) for end_a, _ in pairs.values()])
    values, scales = np.zeros(len(edges)), np.zeros(len(edges))
    for i, ((a, b), (end_a, end_b)) in enumerate(pairs.items()):
        drifted = clock.drift_ratio[b] * (end_b - clock.reference_ns)
        drifted -= clock.drift_ratio[a] * (end_a - clock.reference_ns)
        base = int(end_b[0] - end_a[0])  # floats lose nanoseconds of large offsets
        center, scales[i] = location((end_b - end_a - base) - drifted)
        values[i] = base + center
    error = np.maximum(scales, pooled_scale(scales, counts)) / np.sqrt(counts)
    offset, _ = solve_graph(len(clock.domains), edges, values, error)
    return replace(clock, offset_ns=offset)


def _deviations(clock: ClockAlignment, ends: _Ends, domain: Int64Array) -> NDArray[np.float64]:
    """Distance of each member's corrected end from the members' median, signed, in ns."""
    common = member_to_common(clock, domain, ends.end_ns)
    counts = np.diff(np.append(ends.first, len(common)))
    # relative to the first member: floats hold that exactly
    relative = (common - np.repeat(common[ends.first], counts)).astype(np.float64)
    middle = np.zeros(len(counts))
    for size in distinct(counts).tolist():
        alike = np.flatnonzero(counts == size)
        rows = ends.first[alike, np.newaxis] + np.arange(size)
        middle[alike] = np.median(relative[rows], axis=1)
    deviation: NDArray[np.float64] = relative - np.repeat(middle, counts)
    return deviation


def _by_rank(ends: _Ends, deviation: NDArray[np.float64]) -> dict[int, NDArray[np.float64]]:
    """Deviations of each rank."""
    ranks, code = encode(ends.rank)
    order = order_of_codes(code, len(ranks))
    ends_of_ranks = np.cumsum(np.bincount(code, minlength=len(ranks)))
    return dict(zip(ranks.tolist(), np.split(deviation[order], ends_of_ranks[:-1]), strict=True))


def _residuals(clock: ClockAlignment, ends: _Ends, deviation: NDArray[np.float64]) -> Int64Array:
    """95th percentile per domain of how far a member's end is from what its partners show.

    The median has a part of the member itself in it, so distances are scaled to what they would be
    from the others alone: two members are as far apart as they are.
    """
    counts = np.diff(np.append(ends.first, len(deviation)))
    distance = np.abs(deviation) * np.repeat(counts / np.maximum(counts - 1, 1), counts)
    by_rank = _by_rank(ends, distance)
    residual = np.full(len(clock.domains), ABSENT, np.int64)
    for domain, ranks in enumerate(clock.domains):
        parts = [by_rank[rank] for rank in ranks if rank in by_rank]
        if parts:
            worst = np.percentile(np.concatenate(parts), _RESIDUAL_PERCENTILE)
            residual[domain] = int(np.ceil(worst))
    return residual


def _torn_domains(
    clock: ClockAlignment, ends: _Ends, deviation: NDArray[np.float64]
) -> dict[int, float]:
    """Domains whose ranks' ends differ by more than clocks of one host do, with the difference."""
    by_rank = _by_rank(ends, deviation)
    torn = {}
    for domain, ranks in enumerate(clock.domains):
        parts = [by_rank[rank] for rank in ranks if rank in by_rank]
        if len(parts) < 2:
            continue
        centers, scales = zip(*(location(part) for part in parts), strict=True)
        apart = max(centers) - min(centers)
        error = max(s / np.sqrt(len(p)) for s, p in zip(scales, parts, strict=True))
        if apart > max(_SPLIT_NS, _SPLIT_SIGMAS * error):
            torn[domain] = apart
    return torn


def check_causality(
    ranks: Sequence[Rank], matches: CollectiveMatches, clock: ClockAlignment
) -> ClockAlignment:
    """Count effects before their causes: an end before the last start, a receipt before the send.

    A violation within the residual is none.
    """
    if matches.count == 0:
        return clock
    domain = domain_of_ranks(clock, matches.member_rank)
    first = matches.offsets[:-1]
    start = member_to_common(clock, domain, member_column(matches, ranks, "start_ns"))
    end = member_to_common(clock, domain, member_column(matches, ranks, "end_ns"))
    slack = np.maximum.reduceat(clock.residual_ns[domain], first)
    component = clock.component[domain]
    same_clock = np.minimum.reduceat(component, first) == np.maximum.reduceat(component, first)
    symmetric = np.isin(matches.kind, _SYMMETRIC) & same_clock
    early = np.minimum.reduceat(end, first) < np.maximum.reduceat(start, first) - slack
    message = (matches.kind == CollectiveKind.SEND) & same_clock
    sent = start[first]
    received = end[np.minimum(first + 1, len(end) - 1)]  # the sender is the first of two members
    early_receipt = received < sent - slack
    checked = (symmetric | message) & timed_instances(matches, ranks)
    violated = checked & ((symmetric & early) | (message & early_receipt))
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


def _component_names(clock: ClockAlignment) -> list[str]:
    """One name per component, with how many other domains it holds; at most a few."""
    numbers, counts = np.unique(clock.component, return_counts=True)
    names = [
        clock.names[number] + (f" (and {count - 1} more)" if count > 1 else "")
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True)
    ]
    return names if len(names) <= 5 else [*names[:4], f"{len(names) - 4} more"]
