"""Ranks compared with their peers, section by section.

A section is a rank's own time between two collectives that it issues. Peers are ranks that hold the
same pipeline stages and exchange the same number of messages. Sections are cut by the collectives
that peers issue in the same order within a window (:mod:`~distprof.sections.whatif.delays`).
Without any, whole windows are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from distprof.schema import Bools, Floats, Int64Array
from distprof.sections.own_time import over_peers
from distprof.sections.whatif.trace_graph import TraceGraph
from distprof.terms import MESSAGES, CollectiveKind, MeshAxis

OUTSIDE = -1

MAX_CLASSES = 8
"""Classes of collectives that are tried as cuts; the others are too rare to cut much."""

_TINY_RATIO = 0.05
_ITERATIONS = 30

Measure = Callable[[Floats], Floats]
"""Function from values, shape ``(ranks, sections)``, to target values."""


def median_of_others(values: Floats) -> Floats:
    """The median of the other ranks, for each rank."""
    whole = np.rint(values).astype(np.int64)
    return whole - over_peers(whole)


def mean_of_peers(values: Floats) -> Floats:
    """The mean of all ranks, for each rank."""
    return np.broadcast_to(values.mean(axis=0), values.shape)


def evened(values: Floats) -> Floats:
    """Values of each rank without its constant difference from its peers.

    Batches of different sizes lengthen all computation of a rank by one factor, in proportion to
    the affected work in each section. The factor is the leading component of the differences from
    the mean, found by power iteration. Random variation of kernels does not have this form and
    stays.
    """
    apart = values - values.mean(axis=0)
    rank = apart.sum(axis=1)
    for _ in range(_ITERATIONS):
        section = rank @ apart
        length = float(np.linalg.norm(section))
        if length == 0:
            return values
        section /= length
        rank = apart @ section
    return np.maximum(values - np.outer(rank, section), 0)


class Sections(msgspec.Struct, frozen=True, kw_only=True):
    """Sections of all ranks and windows, C of them."""

    of_segment: Int64Array  # int64 per segment, its section; ``OUTSIDE`` between windows.
    first: Int64Array  # int64, shape ``(P, W)``: the first section of each window.
    count: Int64Array  # int64, shape ``(P, W)``.
    peers: tuple[tuple[int, ...], ...]  # Positions of peers, by group; every rank is in one group.
    # Pipeline stages that each global rank holds; empty tuples if none are known.
    stages: Mapping[int, tuple[int, ...]]
    # bool per section: between sending tokens to experts and getting them back.
    is_expert: Bools

    @staticmethod
    def of(
        graph: TraceGraph, stages: Mapping[int, tuple[int, ...]], *, has_experts: bool = False
    ) -> Sections:
        """Cut the windows of all ranks.

        Unless all all-to-alls are known to exchange tokens, only those along the expert axis do.
        """
        low = np.searchsorted(graph.issued_segment, graph.opens)
        high = np.searchsorted(graph.issued_segment, graph.closes)
        groups: dict[tuple[object, ...], list[int]] = {}
        for position, rank in enumerate(graph.ranks):
            kinds = graph.issued_kind[low[position, 0] : high[position, 0]]
            exchanged = tuple(int((kinds == kind).sum()) for kind in MESSAGES)
            groups.setdefault((stages[rank], exchanged), []).append(position)
        peers = tuple(map(tuple, groups.values()))
        program = (
            graph.issued_kind.astype(np.int64) * (len(graph.axis_names) + 1) + graph.issued_axis
        )
        cuts = common_cuts(program, peers, low, high)
        before = np.concatenate(([0], np.cumsum(cuts)))
        count = before[high] - before[low] + 1
        first = (np.cumsum(count) - count.ravel()).reshape(count.shape)
        mark = np.zeros(graph.num_segments + 1, dtype=np.int64)
        number = np.broadcast_to(np.arange(1, graph.opens.shape[1] + 1), graph.opens.shape)
        np.add.at(mark, graph.opens, number)
        np.subtract.at(mark, graph.closes, number)
        window = np.cumsum(mark)[:-1] - 1
        known = window != OUTSIDE
        cell = graph.owner[known], window[known]
        issued = before[np.searchsorted(graph.issued_segment, np.flatnonzero(known))]
        of_segment = np.full(graph.num_segments, OUTSIDE, dtype=np.int64)
        of_segment[known] = first[cell] + issued - before[low][cell]
        # collectives that send tokens to experts or back; small ones only exchange counts
        exchange: Bools = graph.issued_kind == CollectiveKind.ALL_TO_ALL
        if not has_experts:
            of_experts = [name == MeshAxis.EP for name in graph.axis_names]
            exchange &= np.array([*of_experts, False], dtype=np.bool_)[graph.issued_axis]
        if exchange.any():
            exchange &= graph.issued_bytes >= _TINY_RATIO * graph.issued_bytes[exchange].max()
        return Sections(
            of_segment=of_segment,
            first=first,
            count=count,
            peers=peers,
            stages=stages,
            is_expert=_expert_sections(exchange[cuts], before[low], before[high], first),
        )

    @property
    def has_peers(self) -> bool:
        """Whether any rank has peers."""
        return any(len(group) > 1 for group in self.peers)

    def totals(self, values: Int64Array) -> Floats:
        """Sum over the segments of each section, shape ``(C,)``."""
        inside = self.of_segment != OUTSIDE
        return np.bincount(
            self.of_segment[inside], weights=values[inside], minlength=int(self.count.sum())
        ).astype(np.float64)

    def by_window(self, values: Int64Array) -> Floats:
        """Sum over the segments of each window, shape ``(P, W)``."""
        totals = np.add.reduceat(self.totals(values), self.first.ravel())
        return totals.reshape(self.first.shape)

    def of_windows(self, values: Floats) -> Floats:
        """A value per window, shape ``(P, W)``, for each segment; 1 between windows."""
        window = np.searchsorted(self.first.ravel(), self.of_segment, side="right") - 1
        inside = self.of_segment != OUTSIDE
        return np.where(inside, values.ravel()[window], 1.0)

    def mean(self, values: Int64Array) -> Int64Array:
        """Values per segment that give every section the mean of the rank's peers."""
        totals = self.totals(values)
        return self.scaled(values, totals, self.targets(totals, mean_of_peers))

    def targets(self, totals: Floats, measure: Measure) -> Floats:
        """Target time of each section, from those of peers; its own time without peers."""
        result = totals.copy()
        for group in self.peers:
            if len(group) < 2:
                continue
            for window in range(self.first.shape[1]):
                rows = list(group)
                first, count = self.first[rows, window], int(self.count[rows[0], window])
                cells = first[:, None] + np.arange(count)
                result[cells] = measure(totals[cells])
        return result

    def limited(self, parts: Int64Array, target: Floats) -> Int64Array:
        """Own time per segment with no section longer than its target, from shape ``(S, kinds)``.

        A section gives up what peers have less of, wherever it is: a pause of the CPU leaves one
        segment, while kernels that are slower become faster in all.
        """
        kinds = [parts[:, kind] for kind in np.flatnonzero(parts.any(axis=0))]
        totals = [self.totals(part) for part in kinds]
        beyond = [np.maximum(own - self.targets(own, median_of_others), 0) for own in totals]
        less = np.maximum(sum(totals) - target, 0)
        share = np.minimum(less / np.maximum(sum(beyond), 1), 1)
        left = [
            self.scaled(part, own, own - more * share)
            for part, own, more in zip(kinds, totals, beyond, strict=True)
        ]
        rest: Int64Array = np.sum(left, axis=0, dtype=np.int64)
        remaining = self.totals(rest)
        return self.scaled(rest, remaining, np.minimum(remaining, target))

    def scaled(self, values: Int64Array, totals: Floats, target: Floats) -> Int64Array:
        """Values per segment that give every section its target time.

        If a section has none of this time, its first segment gets the target. If it has no segment,
        because two collectives were issued at once, that of the section before gets it.
        """
        ratio = np.divide(target, totals, out=np.ones_like(target), where=totals > 0)
        inside = self.of_segment != OUTSIDE
        result = values.astype(np.float64)
        result[inside] *= ratio[self.of_segment[inside]]
        lacking = np.flatnonzero((totals <= 0) & (target > 0))
        if len(lacking):
            cells, where = np.unique(self.of_segment, return_index=True)
            at = np.searchsorted(cells, lacking, side="right") - 1
            known = (at >= 0) & (cells[np.maximum(at, 0)] != OUTSIDE)
            np.add.at(result, where[at[known]], target[lacking[known]])
        return np.rint(result).astype(np.int64)


def _expert_sections(
    exchange: Bools, low: Int64Array, high: Int64Array, first: Int64Array
) -> Bools:
    """Sections between the two all-to-alls of each pair, from a mask of the cutting collectives."""
    result = np.zeros(int((high - low + 1).sum()), dtype=np.bool_)
    for cell in np.ndindex(low.shape) if exchange.any() else ():
        at = np.flatnonzero(exchange[low[cell] : high[cell]])
        for begin, end in at[: len(at) // 2 * 2].reshape(-1, 2).tolist():
            result[first[cell] + begin + 1 : first[cell] + end + 1] = True
    return result


def common_cuts(
    program: Int64Array, peers: Sequence[Sequence[int]], low: Int64Array, high: Int64Array
) -> Bools:
    """Mask of the collectives that peers issue in the same order in their window.

    ``program`` is the class of each collective, in order of rank and start; ``low`` and ``high``
    are the bounds of each rank's windows in it, shape ``(P, W)``.
    """
    result = np.zeros(len(program), dtype=np.bool_)
    for group in peers:
        for window in range(low.shape[1]):
            rows = [slice(low[rank, window], high[rank, window]) for rank in group]
            programs = [program[row] for row in rows]
            classes, count = np.unique(programs[0], return_counts=True)
            kept = classes.tolist()
            if not _are_equal(programs):
                kept = []
                for candidate in classes[np.argsort(-count, kind="stable")][:MAX_CLASSES].tolist():
                    tried = [*kept, candidate]
                    if _are_equal([of_rank[np.isin(of_rank, tried)] for of_rank in programs]):
                        kept = tried
            for row, of_rank in zip(rows, programs, strict=True):
                result[row] = np.isin(of_rank, kept)
    return result


def _are_equal(programs: Sequence[Int64Array]) -> bool:
    return all(np.array_equal(programs[0], program) for program in programs[1:])
