"""Decides whether neighbours that send each other equally many messages form a pipeline.

They may also be a ring: with context parallelism on two ranks, each rank sends to the other and
receives from it as often as in a pipeline. Two facts separate them:

- *Order.* In each step the earlier stage sends activations before it receives gradients, and ends
  with a receive; the later stage does the opposite. In a ring all ranks send and receive at once.
- *Work.* Ranks that alternate strictly, one message each, do not overlap micro-batches. They are a
  pipeline only if they run different kernels, because only the last stage computes the loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec
import numpy as np

from distprof.run.run import Run
from distprof.schema import ABSENT
from distprof.sections.context import RankAnalysis
from distprof.terms import CollectiveKind

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
