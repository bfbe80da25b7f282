"""Own time: what each rank does while it waits for no other rank, compared with its peers.

A rank makes others wait because some part of its own time is longer than theirs: computation,
copies, waiting for input, or leaving its GPU idle. Neither disturbances of other ranks nor clock
errors affect these parts, so over few steps they show more than the order of arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property

import msgspec
import numpy as np
from msgspec.structs import replace

from distprof.artefacts.record import grouped
from distprof.join.gpu_waits import medians_of_others
from distprof.run.run import Run
from distprof.schema import Floats, Int64Array
from distprof.sections.context import RankAnalysis
from distprof.sections.pipeline.sources import places_by_messages
from distprof.terms import IdleCause, MeshAxis


def held_stages(
    analyses: Mapping[int, RankAnalysis], run: Run | None = None
) -> Mapping[int, tuple[int, ...]]:
    """Pipeline stages that each rank holds; empty tuples if nothing shows them.

    They are read from marks. Without marks, the position of a rank in its pipeline-parallel group
    counts, and without such a group, its place in a chain of messages; both need the run.
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


def chance_of_mean(values: Floats) -> Floats:
    """One-sided Student's t test of each row: probability of the mean if the true mean is 0.

    ``values`` has shape ``(rows, samples)``. Samples of a row are assumed to be independent and
    about normal. Heavy tails make the test conservative, because they widen the deviation. The
    result is 1 for rows whose mean is not positive, or with fewer than three samples.

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
    # Area of Student's density beyond ``t``: with t = tan(a)·√freedom, cos(a)**(freedom - 1)
    freedom = samples - 1
    start = np.arctan(t[mean > 0] / np.sqrt(freedom))
    share = np.linspace(0.0, 1.0, _POINTS)
    angle = start[:, None] + (np.pi / 2 - start)[:, None] * share
    tail = np.trapezoid(np.cos(angle) ** (freedom - 1), angle, axis=1)
    whole = np.linspace(-np.pi / 2, np.pi / 2, _POINTS)
    area = np.trapezoid(np.cos(whole) ** (freedom - 1), whole)
    result: Floats = np.clip(tail / area, 0.0, 1.0)
    chance[mean > 0] = result
    return chance


COMPUTATION = "computation"
COPYING = "copying alone"
INPUT = "waiting for input"
HOST = "idling for its CPU"


class OwnTime(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Parts of own time, P ranks, S analysed steps."""

    ranks: tuple[int, ...]  # Global rank of each position.
    parts: Mapping[str, Int64Array]  # int64 ns, shape ``(P, S)``, by name of the part.
    # For each position, the positions that it is compared with, itself included.
    peers: tuple[tuple[int, ...], ...]
    # int64 ns, shape ``(P, S)``: late launches hidden by waiting for other ranks; part of idling
    # for the CPU.
    hidden: Int64Array

    @property
    def num_steps(self) -> int:
        """Number of analysed steps."""
        return int(self.hidden.shape[1])

    @staticmethod
    def of(
        analyses: Mapping[int, RankAnalysis], stages: Mapping[int, tuple[int, ...]] | None = None
    ) -> OwnTime:
        """Own time of all analysed ranks; steps that a rank lacks are 0.

        Stages that a rank holds are given, or read from its marks.
        """
        held = held_stages(analyses) if stages is None else stages
        ranks = list(analyses.values())
        longest = max((len(analysis.steps) for analysis in ranks), default=0)

        def part(of: Callable[[RankAnalysis], Int64Array | list[int]]) -> Int64Array:
            table = np.zeros((len(ranks), longest), dtype=np.int64)
            for row, analysis in zip(table, ranks, strict=True):
                values = of(analysis)
                row[: len(values)] = values
            return table

        # one measure for all ranks: time that is equal on every rank cancels out
        counts_all = any(_is_mostly_host(analysis) for analysis in ranks)
        idling = part(lambda analysis: _idle_for_host(analysis, counts_all=counts_all))
        # Pipeline stages wait for each other by design, and that hides no time that would be lost.
        one_program = len(same_stages(held[rank] for rank in analyses)) == 1
        exposed = part(lambda analysis: [step.exposed_comm_ns for step in analysis.steps])
        # a transfer is exposed on every rank, waiting for another one is not
        transfer = exposed.min(axis=0, initial=np.iinfo(np.int64).max)
        hidden = np.maximum(part(_held) - transfer, 0) * one_program
        if not one_program:
            # Stages finish a step one after another, so no rank waits for one that is done with it
            # while another stage still works on it.
            tails = part(lambda analysis: analysis.tail_ns)
            done = part(lambda analysis: [step.span_ns for step in analysis.steps]) - tails
            slack = np.minimum(done.max(axis=0, initial=0) - done, tails)
            idling = np.maximum(idling - slack, 0)
        return OwnTime(
            ranks=tuple(analyses),
            peers=_peers([held[rank] for rank in analyses]),
            parts={
                COMPUTATION: part(lambda analysis: analysis.computation_ns),
                COPYING: part(lambda analysis: [s.exposed_copy_ns for s in analysis.steps]),
                INPUT: part(lambda analysis: analysis.idle_ns[IdleCause.INPUT]),
                # a rank would also idle for this time if the others came in time
                HOST: idling + hidden,
            },
            hidden=hidden,
        )

    @cached_property
    def excess(self) -> Mapping[str, Floats]:
        """Time that each rank spends above the median of its peers, ns, by name of the part."""
        return {name: self.beyond_peers(values) for name, values in self.parts.items()}

    def chance(self, name: str) -> Floats:
        """Probability, for each rank, that its part exceeds its peers' this clearly by chance.

        For computation, logarithms are compared, because a slow GPU or a busy machine stretches it
        by a factor. Other parts are compared directly.
        """
        excess, own = self.excess[name], self.parts[name]
        if name == COMPUTATION:
            return chance_of_mean(np.log(np.maximum(own, 1) / np.maximum(own - excess, 1)))
        return chance_of_mean(excess)

    @cached_property
    def total_excess(self) -> Floats:
        """All parts together, above the median of peers, ns, shape ``(P, S)``."""
        return self.beyond_peers(np.sum(list(self.parts.values()), axis=0, dtype=np.int64))

    def without(self, slow: Collection[int], asked: Collection[int] | None = None) -> OwnTime:
        """The same own time, with slow ranks compared only with ranks that are not slow.

        If all peers of a rank are slow, it is compared with all other ranks. Both arguments are
        positions; ``asked`` are the slow ones whose peers are replaced, None for all.
        """
        all_positions = tuple(range(len(self.ranks)))
        left_out, replaced = frozenset(slow), frozenset(slow if asked is None else asked)

        def others(position: int) -> tuple[int, ...]:
            for group in (self.peers[position], all_positions):
                left = {other for other in group if other not in left_out}
                if left - {position}:
                    return tuple(sorted({*left, position}))
            return self.peers[position]

        peers = tuple(
            others(position) if position in replaced else self.peers[position]
            for position in all_positions
        )
        return replace(self, peers=peers)

    def beyond_peers(self, values: Int64Array) -> Floats:
        """Each value, shape ``(P, S)``, less the median of its rank's peers in the step."""
        result = np.zeros(values.shape)
        for group, members in self.groups:
            rows = np.searchsorted(group, members)
            result[members] = over_peers(values[list(group)])[rows]
        return result

    @cached_property
    def groups(self) -> tuple[tuple[tuple[int, ...], list[int]], ...]:
        """Peers, and the positions that are compared with them.

        Ranks of a group share one tuple object: comparing contents would be quadratic in ranks.
        """
        members = grouped([(id(peers), row) for row, peers in enumerate(self.peers)])
        return tuple((self.peers[rows[0]], rows) for rows in members.values())


def _peers(stages: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Ranks that hold the same pipeline stages; all ranks if no other rank does."""
    all_positions = tuple(range(len(stages)))
    result = [all_positions] * len(stages)
    for group in same_stages(stages):
        for position in group if len(group) > 1 else ():
            result[position] = group
    return tuple(result)


def same_stages(held: Iterable[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Positions of the ranks that hold the same pipeline stages, a group for each."""
    groups = grouped([(stages, position) for position, stages in enumerate(held)])
    return tuple(map(tuple, groups.values()))


def over_peers(values: Int64Array) -> Floats:
    """Each value less the median of the others in its column; 0 if there are no others."""
    if len(values) < 2 or values.size == 0:
        return np.zeros(values.shape)
    return values - medians_of_others(values)


def _is_mostly_host(analysis: RankAnalysis) -> bool:
    """Whether the CPU causes most idle time other than input; False if causes are unknown."""
    cause = analysis.idle
    if cause is None:
        return False
    return cause.host_ns + cause.sync_ns + cause.pause_ns >= cause.comm_wait_ns + cause.unknown_ns


def _idle_for_host(analysis: RankAnalysis, *, counts_all: bool) -> Int64Array:
    """Idle time per step that the CPU is to blame for, ns."""
    # If the CPU itself computes, it is all idle time except input and waiting for communication.
    idle = np.array([step.idle_ns for step in analysis.steps], dtype=np.int64)
    if analysis.is_cpu and analysis.idle is not None:
        blamed = analysis.idle_ns
        own: Int64Array = idle - blamed[IdleCause.INPUT] - blamed[IdleCause.COMM_WAIT]
        return np.maximum(own, 0)
    if analysis.idle is None or not counts_all:
        return analysis.idle_ns[IdleCause.HOST]
    return idle - analysis.idle_ns[IdleCause.INPUT]


def _held(analysis: RankAnalysis) -> Int64Array:
    """How much longer than its own time launches would make each step, ns."""
    line, num_steps = analysis.line, len(analysis.steps)
    if line is None or len(line.held_ns) != num_steps:
        return np.zeros(num_steps, dtype=np.int64)
    return line.held_ns


def mean_step_of(analyses: Mapping[int, RankAnalysis]) -> float:
    """Mean step, ns, which all shares of a report refer to."""
    spans = [step.span_ns for analysis in analyses.values() for step in analysis.steps]
    return max(sum(spans) / len(spans) if spans else 1.0, 1.0)
