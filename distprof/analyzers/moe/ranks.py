"""Each rank that shares experts: its tokens, its time at them, and what it sends and gets."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from distprof.analyzers.moe.calls import CallLabels
from distprof.analyzers.moe.exchange import GroupExchanges
from distprof.analyzers.moe.pairs import MOST
from distprof.analyzers.moe.result import MoeRank
from distprof.schema import ABSENT, Int64Array

__all__ = ["ranks_of"]

_Floats = NDArray[np.float64]


def ranks_of(
    group: GroupExchanges, label: CallLabels, loads: _Floats | None, num_steps: int
) -> Iterator[MoeRank]:
    """A row per recorded rank of a group.

    Args:
        group: Its exchanges.
        label: Layers of its sections.
        loads: Tokens of each recorded rank in each section, ``(s, m)``; None where not known.
        num_steps: Analysed steps.
    """
    if not num_steps:
        return
    tokens = None if loads is None else loads[label.is_first].sum(axis=0) / num_steps
    expert = group.section_ns.sum(axis=0)
    waits = group.wait_ns[group.dispatch + 1]
    sent, received = _moved_bytes(group)
    for at, member in enumerate(group.members.tolist()):
        yield MoeRank(
            rank=group.ranks[member],
            group=group.ranks,
            tokens_per_step=None if tokens is None else float(tokens[at]),
            load_ratio=None if tokens is None else _over_mean(tokens, at),
            expert_ns_per_step=round(expert[at] / num_steps) if len(group.dispatch) else None,
            combine_wait_ns_per_step=_wait(waits[:, at], num_steps),
            sent_bytes_per_step=_per_step(sent, at, num_steps),
            received_bytes_per_step=_per_step(received, at, num_steps),
        )


def _per_step(amount: _Floats | None, at: int, num_steps: int) -> int | None:
    return None if amount is None else round(min(float(amount[at]) / num_steps, MOST))


def _over_mean(tokens: _Floats, at: int) -> float | None:
    return float(tokens[at] / tokens.mean()) if tokens.sum() > 0 else None


def _wait(waits: Int64Array, num_steps: int) -> int | None:
    if not len(waits) or (waits == ABSENT).any():
        return None
    return round(int(waits.sum()) / num_steps)


def _moved_bytes(group: GroupExchanges) -> tuple[_Floats | None, _Floats | None]:
    """Bytes that each member sent to others and got from them; None where not all is known."""
    if not len(group.sent) or np.isnan(group.sent).any() or np.isnan(group.received).any():
        return None, None
    empty = group.sent.sum(axis=(1, 2)) == 0
    if (np.isnan(group.unit_bytes) & ~empty).any():
        return None, None
    unit = np.nan_to_num(group.unit_bytes)[:, np.newaxis]
    at = np.arange(len(group.members))
    sent, received = (
        ((sizes.sum(axis=2, dtype=np.float64) - sizes[:, at, group.members]) * unit).sum(axis=0)
        for sizes in (group.sent, group.received)
    )
    return sent, received
