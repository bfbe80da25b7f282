"""Whether neighbours that send each other equally many messages are stages of a pipeline.

A ring exchange does the same on all of its ranks: context parallelism on two ranks sends to the
other rank and receives from it as often as a pipeline does. Two facts separate them:

- *Order.* In each step the earlier stage sends activations before it receives gradients, and ends
  with a receive; the later stage does the opposite. In a ring all ranks send and receive at once.
- *Work.* Ranks that take turns strictly, one message each, overlap no micro-batches. They are a
  pipeline only if they compute unlike kernels: the loss is on the last stage alone.
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

__all__ = ["as_pipeline"]

MOST_STEPS = 0.5
"""Share of the steps that must have a pipeline's order: single steps may be cut by the capture."""


class _Exchanges(msgspec.Struct, frozen=True):
    """What one rank exchanges with a neighbour, step by step.

    Args:
        orders: Of each step, the kinds of its messages: ``S`` and ``R`` by their starts, ``B``
            where a send and a receive start at the same time.
        has_directions: Whether every message says which of the two it is.
    """

    orders: tuple[str, ...]
    has_directions: bool = True

    def share(self, first: str, last: str) -> float:
        """Share of the steps that begin and end with these kinds."""
        fits = [order[0] == first and order[-1] == last for order in self.orders]
        return float(np.mean(fits)) if fits else 0.0

    @property
    def takes_turns(self) -> bool:
        """Whether sends and receives alternate strictly in all steps."""
        return all(a != b for order in self.orders for a, b in pairwise(order))


def as_pipeline(
    chain: Sequence[int], run: Run, analyses: Mapping[int, RankAnalysis]
) -> tuple[int, ...] | None:
    """The chain from the first stage to the last; None where it is no pipeline.

    Args:
        chain: Neighbours by their numbers of messages.
        run: For the messages.
        analyses: For steps and kernels.
    """
    links = [
        (_exchanges(run, analyses, a, b), _exchanges(run, analyses, b, a))
        for a, b in pairwise(chain)
    ]
    if not all(one.has_directions and other.has_directions for one, other in links):
        return tuple(chain)
    back = [(other, one) for one, other in reversed(links)]
    for ordered, sides in ((tuple(chain), links), (tuple(reversed(chain)), back)):
        if all(_fits(one, "S", "R") and _fits(other, "R", "S") for one, other in sides):
            in_turn = all(one.takes_turns for one, _ in sides)
            return None if in_turn and _compute_the_same(ordered, analyses) else ordered
    return None


def _fits(exchanges: _Exchanges, first: str, last: str) -> bool:
    """Also where nothing was recorded: the other side's records must do."""
    return not exchanges.orders or exchanges.share(first, last) >= MOST_STEPS


def _exchanges(run: Run, analyses: Mapping[int, RankAnalysis], rank: int, peer: int) -> _Exchanges:
    analysis, found = analyses.get(rank), run.find(rank)
    if analysis is None or found is None:
        return _Exchanges(())
    table = found.collectives
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
        known = steps.setdefault(step, {}).setdefault(start, letter)
        steps[step][start] = letter if known == letter else "B"
    return _Exchanges(
        tuple("".join(letters[start] for start in sorted(letters)) for letters in steps.values())
    )


def _compute_the_same(ranks: Sequence[int], analyses: Mapping[int, RankAnalysis]) -> bool:
    """Whether all ranks run the same kernels equally often, as those of one stage do."""
    counts = []
    for rank in ranks:
        kernels = analyses[rank].kernel_steps if rank in analyses else None
        if kernels is None or not kernels.names:
            return False
        counts.append(dict(zip(kernels.names, kernels.count.sum(axis=1).tolist(), strict=True)))
    return all(other == counts[0] for other in counts[1:])
