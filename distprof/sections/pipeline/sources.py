"""Pipelines without marks: stages and micro-batches inferred from messages between ranks.

Neighbours in a pipeline send to each other in both directions, activations one way and gradients
the other, equally often in every step. They therefore form a chain whose ends have one neighbour
each. If ranks hold several stages, the last rank also sends to the first, one round less often.
Ring exchanges of other axes send in one direction only, or equally often between the last and the
first rank.

On two ranks a ring looks like a chain. The order of messages in a step separates them: the first
stage sends before it can receive gradients and receives last, and its neighbour does the opposite
(:mod:`distprof.sections.pipeline.sources`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.run.evidence import OperationLog
from distprof.run.run import Run
from distprof.schema import ABSENT, Int64Array, Table
from distprof.sections.context import RankAnalysis, StageSlots
from distprof.sections.pipeline import PipelineGroup, StageDetail
from distprof.sections.pipeline.groups import PipelineSlots
from distprof.terms import CollectiveKind, Confidence, SlotKind

SOURCE = "messages between ranks"

NOTE = (
    "Stages and micro-batches are inferred from messages: neighbours in a chain send each other "
    "equally many in every step. Idle is all time of a step without computation, and the optimizer "
    "counts as computation."
)

Traffic = Mapping[tuple[int, int], float]


def groups_from_messages(
    run: Run, analyses: Mapping[int, RankAnalysis]
) -> tuple[PipelineGroup, ...]:
    """Chains of ranks that form a pipeline; those of one shape are one group."""
    return tuple(
        _group(chains, batches, virtual, analyses)
        for (_, batches, virtual), chains in sorted(_by_shape(run, analyses).items())
    )


def places_by_messages(run: Run, analyses: Mapping[int, RankAnalysis]) -> dict[int, int]:
    """Rank to its place in its pipeline, from 0; empty if messages show no pipeline."""
    shapes = _by_shape(run, analyses).values()
    return {
        rank: place for chains in shapes for chain in chains for place, rank in enumerate(chain)
    }


_Shape: TypeAlias = tuple[int, int, int]  # Ranks of a pipeline, micro-batches, and stages per rank


def _by_shape(
    run: Run, analyses: Mapping[int, RankAnalysis]
) -> dict[_Shape, list[tuple[int, ...]]]:
    """Pipelines of each shape, as tuples of ranks in stage order."""
    # messages per step from rank to rank, as recorded by the sender, else by the receiver
    sent: dict[tuple[int, int], float] = {}
    received: dict[tuple[int, int], float] = {}
    tables = {rank.rank: rank.collectives for rank in run.ranks}
    for rank, analysis in analyses.items():
        rows = tables.get(rank)
        if rows is None or len(rows) != len(analysis.collective_step):
            continue
        inside = (analysis.collective_step != ABSENT) & (rows["peer"] != ABSENT)
        steps = max(len(analysis.steps), 1)
        for kind, counts in ((CollectiveKind.SEND, sent), (CollectiveKind.RECV, received)):
            of_kind = (rows["kind"] == kind) | (rows["kind"] == CollectiveKind.SEND_RECV)
            peers = rows["peer"][inside & of_kind].tolist()
            for peer, count in Counter(peers).items():
                pair = (rank, peer) if kind is CollectiveKind.SEND else (peer, rank)
                counts[pair] = count / steps
    traffic = received | sent
    by_shape: dict[_Shape, list[tuple[int, ...]]] = {}
    for neighbours in _chains(traffic):
        chain = as_pipeline(neighbours, run, analyses)
        shape = chain and _shape(chain, traffic)
        if chain and shape and set(chain) <= analyses.keys():
            batches, virtual = shape
            by_shape.setdefault((len(chain), batches, virtual), []).append(chain)
    return by_shape


def _chains(traffic: Traffic) -> list[tuple[int, ...]]:
    both = {pair for pair in traffic if (pair[1], pair[0]) in traffic and pair[0] != pair[1]}
    near: dict[int, set[int]] = {}
    for source, target in both:
        near.setdefault(source, set()).add(target)
    chains, seen = [], set[int]()
    for rank in sorted(near):
        if rank in seen:
            continue
        part, todo = {rank}, [rank]
        while todo:
            new = near[todo.pop()] - part
            part |= new
            todo.extend(new)
        seen |= part
        chain = _ordered(part, near, traffic)
        if chain is not None:
            chains.append(chain)
    return chains


def _ordered(
    part: set[int], near: Mapping[int, set[int]], traffic: Traffic
) -> tuple[int, ...] | None:
    """The chain, or None. A ring is cut at a link that carries less than the others."""
    if len(part) < 2 or any(len(near[rank]) > 2 for rank in part):
        return None
    links = {rank: set(near[rank]) for rank in part}
    ends = sorted(rank for rank in part if len(links[rank]) == 1)
    if not ends:
        weakest = min(((a, b) for a in part for b in links[a]), key=lambda pair: traffic[pair])
        if len(part) < 3 or traffic[weakest] >= max(traffic[a, b] for a in part for b in links[a]):
            return None
        links[weakest[0]].discard(weakest[1])
        links[weakest[1]].discard(weakest[0])
        ends = sorted(weakest)
    chain = [ends[0]]
    while True:
        following = links[chain[-1]] - set(chain)
        if not following:
            return tuple(chain) if len(chain) == len(part) else None
        chain.append(min(following))


def _shape(chain: tuple[int, ...], traffic: Traffic) -> tuple[int, int] | None:
    """Micro-batches and stages per rank; None if the message counts do not fit together."""
    counts = {traffic[pair] for pair in pairwise(chain)}
    counts |= {traffic[b, a] for a, b in pairwise(chain)}
    if len(counts) != 1:
        return None
    inner = counts.pop()
    back = traffic.get((chain[-1], chain[0]), 0.0) if len(chain) > 2 else 0.0
    batches = inner - back
    if batches < 1 or batches != int(batches) or inner % batches:
        return None
    return int(batches), int(inner // batches)


def _group(
    chains: list[tuple[int, ...]], batches: int, virtual: int, analyses: Mapping[int, RankAnalysis]
) -> PipelineGroup:
    chain = chains[0]
    work = np.array([float(np.mean(analyses[rank].computation_ns)) for rank in chain])
    step = float(np.mean([step.span_ns for rank in chain for step in analyses[rank].steps]))
    waits = [analyses[rank].message_wait_ns for rank in chain]
    means = [float(wait.mean()) for wait in waits if wait is not None and len(wait)]
    idle = max(int(step) - int(work.mean()), 0)
    exposed = min(int(np.mean(means)), idle) if means else None
    return PipelineGroup(
        schedule="unknown order",
        ranks=chain,
        replicas=tuple(chains),
        stages=len(chain) * virtual,
        virtual_stages=virtual,
        num_micro_batches=batches,
        source=SOURCE,
        confidence=Confidence.INFERRED,
        comparable_clocks=False,
        num_steps=len(analyses[chain[0]].steps),
        step_ns=int(step),
        span_ns=int(step),
        work_ns=int(work.mean()),
        idle_ns=idle,
        bubble_fraction=_share(idle, step),
        imbalance_ratio=float(work.max() / work.mean()) if work.mean() > 0 else None,
        limiting_rank=chain[int(work.argmax())] if work.any() else None,
        limiting_stage=int(work.argmax()) if work.any() and virtual == 1 else None,
        stages_detail=tuple(
            StageDetail(
                stage=place,
                rank=rank,
                position=place,
                work_ns_per_step=int(work[place]),
                forward_ns=None,
                backward_ns=None,
                bubble_fraction=_share(step - float(work[place]), step),
                in_flight=None,
            )
            for place, rank in enumerate(chain)
            if virtual == 1
        ),
        notes=(NOTE,)
        if exposed is None
        else (
            NOTE,
            f"{exposed / 1e6:,.3g} ms of the idle time per rank and step is in sends and receives.",
        ),
    )


def _share(part: float, whole: float) -> float | None:
    return min(max(part / whole, 0.0), 1.0) if whole > 0 else None


# Pipelines of logs that hold one row per operation: Megatron timelines, operation tables ---------

_KINDS = {
    "forward-compute": SlotKind.FORWARD,
    "backward-compute": SlotKind.BACKWARD,
    "backward-input-compute": SlotKind.BACKWARD_INPUT,
    "backward-weight-compute": SlotKind.BACKWARD_WEIGHT,
}


def pipelines_of_log(log: OperationLog) -> Iterator[PipelineSlots]:
    """One pipeline per data-parallel rank; none if the log has no stages.

    Chunk c on pipeline rank p of P is stage c · P + p, as Megatron lays them out.
    """
    rows = log.operations
    known = rows.coded("kind").isin(_KINDS)
    table = rows.take(known & (rows["stage"] >= 0) & (rows["micro_batch"] >= 0))
    if not len(table):
        return
    step_ns = int(np.mean(list(log.step_ns.values()))) if log.step_ns else None
    steps, inverse = np.unique(rows["step"], return_inverse=True)
    length = np.zeros(len(steps), np.int64)
    np.maximum.at(length, inverse, rows["end_ns"])
    offsets = steps, np.cumsum(length) - length
    place = table["stage"]
    num_places = max(int(place.max()) + 1, log.mesh.get("pp", 0))
    stage = (np.maximum(table["chunk"], 0) * num_places + place).astype(np.int32)
    replica = np.maximum(table["dp_rank"], 0)
    for number in np.unique(replica).tolist():
        mine = replica == number
        distinct, first = np.unique(table["rank"][mine], return_index=True)
        order = np.lexsort((distinct, place[mine][first]))
        ranks = tuple(distinct[order].tolist())
        slots = {
            rank: _slots(table, np.flatnonzero(mine & (table["rank"] == rank)), stage, offsets, log)
            for rank in ranks
        }
        yield PipelineSlots(
            members=(*ranks, *[-1] * (num_places - len(ranks))),
            slots=slots,
            comparable=log.shares_clock,
            step_ns=step_ns,
        )


def _slots(
    table: Table,
    rows: NDArray[np.intp],
    stage: NDArray[np.int32],
    offsets: tuple[Int64Array, Int64Array],
    log: OperationLog,
) -> StageSlots:
    steps, begin = offsets
    index = np.searchsorted(steps, table["step"][rows])
    start = table["start_ns"][rows] + begin[index]
    end = table["end_ns"][rows] + begin[index]
    names = table.coded("kind")
    kinds = np.array([_KINDS.get(name, -1) for name in names.values], np.int8)
    order = np.lexsort((end, start))
    return StageSlots(
        origin=log.origin,
        stage=stage[rows][order],
        kind=kinds[names.codes[rows]][order],
        micro_batch=table["micro_batch"][rows][order],
        step=index[order].astype(np.int64),
        start_ns=start[order],
        end_ns=end[order],
        work_ns=(end - start)[order],
    )


MOST_STEPS = 0.5
"""Share of steps that must have a pipeline's order. The capture may have cut some steps."""


class _Exchanges(msgspec.Struct, frozen=True):
    """Messages of one rank with a neighbour, per step."""

    # For each step, the kinds of its messages by start: ``S`` for a send, ``R`` for a receive,
    # ``B`` if a send and a receive start at the same time.
    orders: tuple[str, ...]
    has_directions: bool = True  # Whether every message is recorded as a send or a receive.

    def share(self, first: str, last: str) -> float:
        """Share of the steps that begin and end with these kinds."""
        fits = [order[0] == first and order[-1] == last for order in self.orders]
        return float(np.mean(fits)) if fits else 0.0

    @property
    def alternates(self) -> bool:
        """Whether sends and receives alternate strictly in all steps."""
        return all(a != b for order in self.orders for a, b in pairwise(order))


def as_pipeline(
    chain: Sequence[int], run: Run, analyses: Mapping[int, RankAnalysis]
) -> tuple[int, ...] | None:
    """The chain from the first stage to the last; None if it is not a pipeline."""
    links = [
        (_exchanges(run, analyses, a, b), _exchanges(run, analyses, b, a))
        for a, b in pairwise(chain)
    ]
    if not all(one.has_directions and other.has_directions for one, other in links):
        return tuple(chain)
    back = [(other, one) for one, other in reversed(links)]
    for ordered, sides in ((tuple(chain), links), (tuple(reversed(chain)), back)):
        if all(_fits(one, "S", "R") and _fits(other, "R", "S") for one, other in sides):
            alternates = all(one.alternates for one, _ in sides)
            return None if alternates and _run_same_kernels(ordered, analyses) else ordered
    return None


def _fits(exchanges: _Exchanges, first: str, last: str) -> bool:
    """Whether the order fits. True without records: those of the other side then decide."""
    return not exchanges.orders or exchanges.share(first, last) >= MOST_STEPS


def _exchanges(run: Run, analyses: Mapping[int, RankAnalysis], rank: int, peer: int) -> _Exchanges:
    analysis, recorded = analyses.get(rank), run.find(rank)
    if analysis is None or recorded is None:
        return _Exchanges(())
    table = recorded.collectives
    if len(table) != len(analysis.collective_step):
        return _Exchanges(())
    kinds = (CollectiveKind.SEND, CollectiveKind.RECV, CollectiveKind.SEND_RECV)
    chosen = (table["peer"] == peer) & np.isin(table["kind"], kinds)
    rows = np.flatnonzero(chosen & (analysis.collective_step != ABSENT))
    if (table["kind"][rows] == CollectiveKind.SEND_RECV).any():
        return _Exchanges((), has_directions=False)
    steps: dict[int, dict[int, str]] = {}
    columns = (analysis.collective_step, table["start_ns"], table["kind"])
    for step, start, kind in zip(*(column[rows].tolist() for column in columns), strict=True):
        letter = "S" if kind == CollectiveKind.SEND else "R"
        first = steps.setdefault(step, {}).setdefault(start, letter)
        steps[step][start] = letter if first == letter else "B"
    return _Exchanges(
        tuple("".join(letters[start] for start in sorted(letters)) for letters in steps.values())
    )


def _run_same_kernels(ranks: Sequence[int], analyses: Mapping[int, RankAnalysis]) -> bool:
    """Whether all ranks run the same kernels equally often, as ranks of one stage do."""
    counts = []
    for rank in ranks:
        kernels = analyses[rank].kernel_steps if rank in analyses else None
        if kernels is None or not kernels.names:
            return False
        counts.append(dict(zip(kernels.names, kernels.count.sum(axis=1).tolist(), strict=True)))
    return all(other == counts[0] for other in counts[1:])
