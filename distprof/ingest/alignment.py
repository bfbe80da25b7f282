"""Put the clocks of all hosts on one line, by the ends of collectives that end everywhere at once.

Per pair of clock domains a robust line is fitted through the differences of ends over time; the
lines are then solved together, weighted by their certainty, over the graph of domains. The drift of
a domain is used only where it stands out of its own error; the residual says what remains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from distprof.ingest.robust import Line, components_of, fit_line, location, solve_graph
from distprof.run.members import domain_of_ranks, member_column, member_to_common
from distprof.run.run import ClockAlignment, CollectiveMatches, Rank
from distprof.schema import ABSENT, Int64Array
from distprof.terms import CollectiveKind
from distprof.units import format_duration

__all__ = ["align_clocks"]

_SYMMETRIC = [kind for kind in CollectiveKind if kind.is_symmetric]
_DRIFT_SIGMAS = 3.0  # a drift below this many of its standard errors is not told from none
_MAX_DRIFT = 1e-3  # quartz is within 1e-4; more is a wrong match, not a clock
_SPLIT_NS = 50_000  # devices of one host agree better than this, or their clocks differ
_RESIDUAL_PERCENTILE = 95


def align_clocks(
    ranks: Sequence[Rank], nodes: Mapping[str, tuple[int, ...]], matches: CollectiveMatches
) -> ClockAlignment:
    """Find the offset and drift of each clock domain, and check them.

    The first domain of each connected component keeps its clock. Ranks of one node share a clock;
    where the traces show that they do not (host names that are not unique, device clocks that were
    synchronised badly), each of its ranks is a domain of its own.

    Args:
        ranks: Ranks of the run, ascending.
        nodes: Node name to its ranks; a rank in no node is a domain of its own.
        matches: Matched collectives.
    """
    domains = _domains(ranks, nodes)
    clock = _solve(ranks, matches, domains, ())
    torn = _torn_domains(ranks, matches, clock)
    if torn:
        notes = tuple(
            f"Collectives end up to {format_duration(apart)} apart on the ranks of "
            f"{clock.names[domain]}: each rank's clock is aligned on its own."
            for domain, apart in torn.items()
        )
        whole = {name: nodes for i, (name, nodes) in enumerate(domains.items()) if i not in torn}
        clock = _solve(ranks, matches, _domains(ranks, whole), notes)
    return _check(ranks, matches, clock)


def _domains(
    ranks: Sequence[Rank], nodes: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Clock domains by name, in order of their lowest rank; only ranks of the run."""
    node_of = {rank: name for name, members in nodes.items() for rank in members}
    domains: dict[str, list[int]] = {}
    for rank in ranks:
        domains.setdefault(node_of.get(rank.rank, f"rank {rank.rank}"), []).append(rank.rank)
    return {name: tuple(members) for name, members in domains.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ends:
    """Own ends of symmetric collectives' members, instance by instance.

    Args:
        rank: int32, rank number of the member.
        domain: int64, its clock domain.
        instance: int64, 0, 1, 2, … ascending.
        end_ns: int64, on the member's own clock.
    """

    rank: NDArray[np.int32]
    domain: Int64Array
    instance: Int64Array
    end_ns: Int64Array

    @property
    def first(self) -> Int64Array:
        """Where each instance begins."""
        new = np.concatenate(([True], self.instance[1:] != self.instance[:-1]))
        return np.flatnonzero(new)


def _ends(ranks: Sequence[Rank], matches: CollectiveMatches, clock: ClockAlignment) -> _Ends | None:
    keep = np.isin(matches.kind, _SYMMETRIC)[matches.instance_of_member]
    if not keep.any():
        return None
    return _Ends(
        rank=matches.member_rank[keep],
        domain=domain_of_ranks(clock, matches.member_rank[keep]),
        instance=matches.instance_of_member[keep],
        end_ns=member_column(matches, ranks, "end_ns")[keep],
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
    matches: CollectiveMatches,
    domains: Mapping[str, tuple[int, ...]],
    notes: tuple[str, ...],
) -> ClockAlignment:
    clock = _uncorrected(ranks, domains, notes)
    ends = _ends(ranks, matches, clock)
    if ends is None:
        return clock
    pairs = _pairs(ends)
    reference = int(np.median(ends.end_ns))
    clock = replace(clock, reference_ns=reference)
    if pairs:
        lines = {key: fit_line(b - reference, b - a) for key, (a, b) in pairs.items()}
        clock = _with_drift(clock, lines)
        clock = _with_offset(clock, pairs)
    edges = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
    component = components_of(len(domains), edges).astype(np.int32)
    clock = replace(clock, component=component)
    return replace(clock, residual_ns=_residuals(clock, ends))


def _pairs(ends: _Ends) -> dict[tuple[int, int], tuple[Int64Array, Int64Array]]:
    """Own ends of the same collectives in two domains, for pairs that meet in collectives.

    In each collective every domain is compared with the lowest one in it, so that the pairs grow
    with the members, not with their square.
    """
    order = np.lexsort((ends.domain, ends.instance))
    domain, instance = ends.domain[order], ends.instance[order]
    new = np.concatenate(([True], (domain[1:] != domain[:-1]) | (instance[1:] != instance[:-1])))
    first = np.flatnonzero(new)
    end = _mean_ns(ends.end_ns[order], first)
    domain, instance = domain[first], instance[first]
    index = np.arange(len(domain))
    leads = np.concatenate(([True], instance[1:] != instance[:-1]))
    leader = np.maximum.accumulate(np.where(leads, index, 0))
    others = np.flatnonzero(~leads)
    key = domain[leader[others]] * (int(domain.max()) + 1) + domain[others]
    by_key = others[np.argsort(key, kind="stable")]
    distinct, begin = np.unique(np.sort(key), return_index=True)
    result = {}
    for part in np.split(by_key, begin[1:]) if len(distinct) else []:
        a, b = int(domain[leader[part[0]]]), int(domain[part[0]])
        result[a, b] = (end[leader[part]], end[part])
    return result


def _mean_ns(values: Int64Array, first: Int64Array) -> Int64Array:
    """Mean of each run of values, without the sum of epoch times overflowing."""
    counts = np.diff(np.append(first, len(values)))
    base = values[first]
    shifted = np.add.reduceat(values - np.repeat(base, counts), first)
    means: Int64Array = base + np.rint(shifted / counts).astype(np.int64)
    return means


def _with_drift(clock: ClockAlignment, lines: Mapping[tuple[int, int], Line]) -> ClockAlignment:
    """Drift per domain, zero where it does not stand out of its error."""
    known = {key: line for key, line in lines.items() if np.isfinite(line.slope_error)}
    if not known:
        return clock
    edges = np.array(list(known), dtype=np.int64)
    slope = np.array([line.slope for line in known.values()])
    error = np.array([line.slope_error for line in known.values()])
    drift, drift_error = solve_graph(len(clock.domains), edges, slope, error)
    certain = (np.abs(drift) > _DRIFT_SIGMAS * drift_error) & (np.abs(drift) < _MAX_DRIFT)
    return replace(clock, drift_ratio=np.where(certain, drift, 0.0))


def _with_offset(
    clock: ClockAlignment, pairs: Mapping[tuple[int, int], tuple[Int64Array, Int64Array]]
) -> ClockAlignment:
    """Offset per domain at the reference time, given the drifts."""
    edges = np.array(list(pairs), dtype=np.int64)
    values, errors = np.zeros(len(edges)), np.zeros(len(edges))
    for i, ((a, b), (end_a, end_b)) in enumerate(pairs.items()):
        drifted = clock.drift_ratio[b] * (end_b - clock.reference_ns)
        drifted -= clock.drift_ratio[a] * (end_a - clock.reference_ns)
        base = int(end_b[0] - end_a[0])  # floats lose nanoseconds of large offsets
        center, errors[i] = location((end_b - end_a - base) - drifted)
        values[i] = base + center
    offset, _ = solve_graph(len(clock.domains), edges, values, errors)
    return replace(clock, offset_ns=offset)


def _deviations(clock: ClockAlignment, ends: _Ends) -> NDArray[np.float64]:
    """Distance of each member's corrected end from the end its partners show, signed, in ns.

    The common end is the members' median. A member has a part in it, so the distance is scaled to
    what it would be from the others alone: two members are as far apart as they are.
    """
    common = member_to_common(clock, ends.domain, ends.end_ns)
    first = ends.first
    counts = np.diff(np.append(first, len(common)))
    order = np.lexsort((common, ends.instance))
    ordered = common[order]
    low, high = ordered[first + (counts - 1) // 2], ordered[first + counts // 2]
    middle = low + (high - low) / 2.0 - common[first]  # relative: floats hold it exactly
    relative = (common - np.repeat(common[first], counts)) - np.repeat(middle, counts)
    scaled: NDArray[np.float64] = relative * np.repeat(counts / np.maximum(counts - 1, 1), counts)
    return scaled


def _residuals(clock: ClockAlignment, ends: _Ends) -> Int64Array:
    deviation = np.abs(_deviations(clock, ends))
    order = np.argsort(ends.domain, kind="stable")
    domains, begin = np.unique(ends.domain[order], return_index=True)
    residual = np.full(len(clock.domains), ABSENT, np.int64)
    for domain, part in zip(domains.tolist(), np.split(order, begin[1:]), strict=True):
        residual[domain] = int(np.ceil(np.percentile(deviation[part], _RESIDUAL_PERCENTILE)))
    return residual


def _torn_domains(
    ranks: Sequence[Rank], matches: CollectiveMatches, clock: ClockAlignment
) -> dict[int, float]:
    """Domains whose ranks' ends differ by more than clocks of one host do, with the difference."""
    ends = _ends(ranks, matches, clock)
    if ends is None:
        return {}
    deviation = _deviations(clock, ends)
    order = np.argsort(ends.rank, kind="stable")
    numbers, begin = np.unique(ends.rank[order], return_index=True)
    typical: dict[int, list[tuple[float, float]]] = {}
    for rank, part in zip(numbers.tolist(), np.split(order, begin[1:]), strict=True):
        typical.setdefault(clock.domain_of(rank), []).append(location(deviation[part]))
    torn = {}
    for domain, centers in typical.items():
        values = [center for center, _ in centers]
        apart, error = max(values) - min(values), max(error for _, error in centers)
        if apart > max(_SPLIT_NS, 10 * error):
            torn[domain] = apart
    return torn


def _check(
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
    checked = symmetric | message
    violated = (symmetric & early) | (message & early_receipt)
    notes = list(clock.notes)
    if len(set(clock.component.tolist())) > 1:
        notes.append(
            "No collective connects "
            + ", ".join(_component_names(clock))
            + ": times are not compared between them."
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
