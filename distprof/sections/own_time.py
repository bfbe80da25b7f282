"""What each rank does while it waits for no other rank, compared with its peers.

A rank makes others wait because some part of its own time is longer than theirs: it computes, waits
for input, or leaves its device idle. A part does not hold the disturbances of the others, nor any
error of the clocks, so in few steps it tells more than who came last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.run.run import Run
from distprof.schema import Int64Array
from distprof.sections.context import RankAnalysis
from distprof.sections.pipeline.sources import places_by_messages
from distprof.terms import MeshAxis

__all__ = [
    "COMPUTATION",
    "HOST",
    "INPUT",
    "OwnTime",
    "chance_of_mean",
    "held_stages",
    "mean_step_of",
    "over_peers",
    "same_stages",
]


def held_stages(
    analyses: Mapping[int, RankAnalysis], run: Run | None = None
) -> Mapping[int, tuple[int, ...]]:
    """Rank to the stages that it holds; an empty tuple for all where nothing tells.

    Marks say it; without marks the position of a rank in its group along the pipeline's axis does,
    and without such a group its place in a chain of messages.

    Args:
        analyses: Of all ranks.
        run: For its process groups and messages; None to go by marks alone.
    """
    marked = {rank: analysis.stage_numbers for rank, analysis in analyses.items()}
    if run is None or any(marked.values()):
        return marked
    positions = {
        rank: (position,)
        for group in run.topology.groups
        if group.axis is MeshAxis.PP and len(group.ranks) > 1
        for position, rank in enumerate(group.ranks)
    }
    if not positions:
        places = places_by_messages(run, analyses)
        positions = {rank: (place,) for rank, place in places.items()}
    return {rank: positions.get(rank, ()) for rank in analyses}


_POINTS = 4_001


def chance_of_mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """One-sided Student's t test of each row: the chance of such a mean if the true one is 0.

    Args:
        values: Shape ``(rows, samples)``. Samples of a row are taken as independent and about
            normal; heavy tails make the test careful, since they widen the deviation.

    Returns:
        Shape ``(rows,)``; 1 for rows whose mean is not positive, or with fewer than three samples.

    Source:
        Student, "The probable error of a mean", Biometrika 6 (1908).
    """
    rows, samples = values.shape
    if samples < 3:
        return np.ones(rows)
    mean, error = values.mean(axis=1), values.std(axis=1, ddof=1) / np.sqrt(samples)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(mean > 0, mean / error, 0.0)  # infinite without any deviation
    chance = np.ones(rows)
    chance[mean > 0] = _upper_tail(t[mean > 0], samples - 1)
    return chance


def _upper_tail(t: NDArray[np.float64], freedom: int) -> NDArray[np.float64]:
    """Area of Student's density beyond ``t``: with t = tan(a)·√freedom, cos(a)**(freedom - 1)."""
    start = np.arctan(t / np.sqrt(freedom))
    share = np.linspace(0.0, 1.0, _POINTS)
    angle = start[:, None] + (np.pi / 2 - start)[:, None] * share
    tail = np.trapezoid(np.cos(angle) ** (freedom - 1), angle, axis=1)
    whole = np.linspace(-np.pi / 2, np.pi / 2, _POINTS)
    area = np.trapezoid(np.cos(whole) ** (freedom - 1), whole)
    result: NDArray[np.float64] = np.clip(tail / area, 0.0, 1.0)
    return result


COMPUTATION = "computation"

INPUT = "waiting for input"

HOST = "idling for the host"


class OwnTime(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Parts of own time, P ranks, S analysed steps.

    Args:
        ranks: Global rank of each position.
        parts: Name of the part to int64 ns, shape ``(P, S)``.
        peers: For each position, positions it is compared with, itself among them.
        hidden: int64 ns, shape ``(P, S)``: late launches that waiting for other ranks hid; part of
            idling for the host.
    """

    ranks: tuple[int, ...]
    parts: Mapping[str, Int64Array]
    peers: tuple[tuple[int, ...], ...]
    hidden: Int64Array

    @property
    def num_steps(self) -> int:
        """Number of analysed steps."""
        return int(self.hidden.shape[1])

    @staticmethod
    def of(
        analyses: Mapping[int, RankAnalysis],
        stages: Mapping[int, tuple[int, ...]] | None = None,
    ) -> OwnTime:
        """Of all analysed ranks; a step that a rank lacks counts nothing.

        Args:
            analyses: By global rank.
            stages: Pipeline stages that each rank holds; None to go by its marks.
        """
        held = held_stages(analyses) if stages is None else stages
        longest = max((len(analysis.steps) for analysis in analyses.values()), default=0)

        def part(values: list[Int64Array]) -> Int64Array:
            table = np.zeros((len(values), longest), dtype=np.int64)
            for row, of_rank in zip(table, values, strict=True):
                row[: len(of_rank)] = of_rank
            return table

        ranks = list(analyses.values())
        # one measure for all: what is the same on every rank cancels out
        counts_all = any(_is_mostly_the_hosts(analysis) for analysis in ranks)
        idle = [_idle_for_host(analysis, counts_all=counts_all) for analysis in ranks]
        # Pipeline stages wait for each other by design, which hides nothing that costs time.
        one_program = len(same_stages(held[rank] for rank in analyses)) == 1
        exposed = part([_exposed(analysis) for analysis in ranks])
        # a transfer is exposed on every rank, waiting for another one is not
        transfer = exposed.min(axis=0, initial=np.iinfo(np.int64).max)
        hidden = np.maximum(part([_held(analysis) for analysis in ranks]) - transfer, 0)
        hidden *= one_program
        return OwnTime(
            ranks=tuple(analyses),
            peers=_peers([held[rank] for rank in analyses]),
            parts={
                COMPUTATION: part([analysis.computation_ns for analysis in ranks]),
                INPUT: part([analysis.input_ns for analysis in ranks]),
                # a rank would idle as long if the others came in time
                HOST: part(idle) + hidden,
            },
            hidden=hidden,
        )

    @cached_property
    def excess(self) -> Mapping[str, NDArray[np.float64]]:
        """Name of the part to what each rank spends beyond the median of its peers, ns."""
        return {name: self.beyond_peers(values) for name, values in self.parts.items()}

    def chance(self, name: str) -> NDArray[np.float64]:
        """Of each rank, that its part is beyond its peers' so clearly by chance alone.

        Of computation the logarithm is compared, because a slow device and a busy machine stretch
        it by a factor; the other parts as they are.
        """
        excess, own = self.excess[name], self.parts[name]
        if name == COMPUTATION:
            return chance_of_mean(np.log(np.maximum(own, 1) / np.maximum(own - excess, 1)))
        return chance_of_mean(excess)

    @cached_property
    def total_excess(self) -> NDArray[np.float64]:
        """All parts together, beyond the median of peers, shape ``(P, S)``."""
        return self.beyond_peers(np.sum(list(self.parts.values()), axis=0, dtype=np.int64))

    def without(self, slow: Collection[int], asked: Collection[int] | None = None) -> OwnTime:
        """The same with these positions compared with peers that are not among them.

        A rank all of whose peers are slow is compared with all other ranks.

        Args:
            slow: Positions of slow ranks.
            asked: Those of them that are compared anew; None for all.
        """
        everybody = tuple(range(len(self.ranks)))
        left_out, anew = frozenset(slow), frozenset(slow if asked is None else asked)

        def others(position: int) -> tuple[int, ...]:
            for group in (self.peers[position], everybody):
                left = {other for other in group if other not in left_out}
                if left - {position}:
                    return tuple(sorted({*left, position}))
            return self.peers[position]

        return OwnTime(
            ranks=self.ranks,
            parts=self.parts,
            hidden=self.hidden,
            peers=tuple(
                others(position) if position in anew else self.peers[position]
                for position in everybody
            ),
        )

    def beyond_peers(self, values: Int64Array) -> NDArray[np.float64]:
        """Each value, shape ``(P, S)``, less the median of its rank's peers in the step."""
        result = np.zeros(values.shape)
        for group, members in self.groups:
            rows = np.searchsorted(group, members)
            result[members] = over_peers(values[list(group)])[rows]
        return result

    @cached_property
    def groups(self) -> tuple[tuple[tuple[int, ...], list[int]], ...]:
        """Peers, and the positions that are compared with them.

        Ranks of a group share one tuple: to compare what tuples hold would be quadratic in ranks.
        """
        members: dict[int, list[int]] = {}
        for row, peers in enumerate(self.peers):
            members.setdefault(id(peers), []).append(row)
        return tuple((self.peers[rows[0]], rows) for rows in members.values())


def _peers(stages: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Ranks that hold the same pipeline stages; all where no other rank does, or none is known."""
    everybody = tuple(range(len(stages)))
    result = [everybody] * len(stages)
    for group in same_stages(stages):
        for position in group if len(group) > 1 else ():
            result[position] = group
    return tuple(result)


def same_stages(held: Iterable[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Positions of the ranks that hold the same pipeline stages, a group for each."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for position, stages in enumerate(held):
        groups.setdefault(stages, []).append(position)
    return tuple(map(tuple, groups.values()))


def over_peers(values: Int64Array) -> NDArray[np.float64]:
    """Each value less the median of the others in its column; 0 where there are no others."""
    number = len(values)
    if number < 2 or values.size == 0:
        return np.zeros(values.shape)
    order = np.argsort(values, axis=0, kind="stable")
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(number)[:, None], axis=0)
    ordered = np.take_along_axis(values, order, axis=0).astype(np.float64)

    def of_others(position: int) -> NDArray[np.float64]:
        """The value at this place of the others in order, for each value."""
        result: NDArray[np.float64] = np.where(
            place <= position, ordered[position + 1], ordered[position]
        )
        return result

    low, high = (number - 2) // 2, (number - 1) // 2
    return values - (of_others(low) + of_others(high)) / 2


def _is_mostly_the_hosts(analysis: RankAnalysis) -> bool:
    """Whether most idle time but input is the host's. Where nothing is known, none is."""
    cause = analysis.idle
    if cause is None:
        return False
    return cause.host_ns + cause.sync_ns >= cause.comm_wait_ns + cause.unknown_ns


def _idle_for_host(analysis: RankAnalysis, *, counts_all: bool) -> Int64Array:
    """Idle time per step that the host is to blame for, ns.

    Where the host itself computes, all of it is but input and waiting for communication.

    Args:
        analysis: Of one rank.
        counts_all: Whether all that is not input counts: a host that synchronises and then stalls
            shows as both causes, and both are its lateness.
    """
    idle = np.array([step.idle_ns for step in analysis.steps], dtype=np.int64)
    if analysis.is_cpu and analysis.idle is not None:
        own: Int64Array = np.maximum(idle - analysis.input_ns - analysis.idle_comm_wait_ns, 0)
        return own
    if analysis.idle is None or not counts_all:
        return analysis.idle_host_ns
    rest: Int64Array = idle - analysis.input_ns
    return rest


def _held(analysis: RankAnalysis) -> Int64Array:
    """How much longer launches would make each step than own time, ns."""
    line, num_steps = analysis.line, len(analysis.steps)
    if line is None or len(line.held_ns) != num_steps:
        return np.zeros(num_steps, dtype=np.int64)
    return line.held_ns


def _exposed(analysis: RankAnalysis) -> Int64Array:
    return np.array([step.exposed_comm_ns for step in analysis.steps], dtype=np.int64)


def mean_step_of(analyses: Mapping[int, RankAnalysis]) -> float:
    """What all shares of a report are shares of."""
    spans = [step.span_ns for analysis in analyses.values() for step in analysis.steps]
    return max(sum(spans) / len(spans) if spans else 1.0, 1.0)
