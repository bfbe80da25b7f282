"""Who sends whom how much in the all-to-alls of experts, in global ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from distprof.analyzers.moe.exchange import GroupExchanges
from distprof.analyzers.moe.result import MoeExchange, MoePair
from distprof.costs.moe import load_imbalance
from distprof.schema import ABSENT

__all__ = ["MOST", "exchange_of", "pairs_of"]

MOST = 2.0**62
"""Bytes in a step: damaged traces may say more than an integer of a report holds."""

_Floats = NDArray[np.float64]


def exchange_of(group: GroupExchanges, num_steps: int) -> MoeExchange:
    """What a group exchanges, and how evenly.

    Args:
        group: Its exchanges.
        num_steps: Analysed steps.
    """
    whole = _amounts(group)
    unit = "bytes" if _has_bytes(group) else "tokens"
    forward = group.dispatch[group.is_first]
    off_rank = whole[forward if len(forward) else slice(None)] * ~np.eye(
        len(group.ranks), dtype=np.bool_
    )
    sent, received = off_rank.sum(axis=2), off_rank.sum(axis=1)
    known = ~np.isnan(off_rank).any(axis=(1, 2)) & (sent.sum(axis=1) > 0)
    sent, received = sent[known], received[known]
    total = np.nan_to_num(whole).sum(axis=0)
    return MoeExchange(
        ranks=group.ranks,
        num_per_step=len(group.step) / num_steps,
        num_sections_per_step=len(group.dispatch) / num_steps,
        unit=unit,
        amount_per_step=round(min((total.sum() - np.trace(total)) / num_steps, MOST)),
        sent_max_over_mean=float(load_imbalance(sent).mean()) if len(sent) else None,
        received_max_over_mean=float(load_imbalance(received).mean()) if len(sent) else None,
        busiest_sender=group.ranks[int(sent.sum(axis=0).argmax())] if len(sent) else None,
        busiest_receiver=group.ranks[int(received.sum(axis=0).argmax())] if len(sent) else None,
        transfer_ns_per_step=_transfer_ns(group, num_steps),
    )


def pairs_of(groups: Sequence[GroupExchanges], num_steps: int) -> tuple[MoePair, ...]:
    """Every pair of ranks of a group that moves something, senders ascending."""
    pairs = []
    for group in groups:
        amounts = np.nan_to_num(_amounts(group))
        total = np.rint(np.minimum(amounts.sum(axis=0) / num_steps, MOST)).astype(np.int64)
        forward = amounts[group.dispatch[group.is_first]]
        dispatched = np.rint(np.minimum(forward.sum(axis=0) / num_steps, MOST)).astype(np.int64)
        pairs += [
            MoePair(
                sender=group.ranks[sender],
                receiver=group.ranks[receiver],
                amount_per_step=int(total[sender, receiver]),
                dispatched_per_step=int(dispatched[sender, receiver]),
            )
            for sender, receiver in np.argwhere(total > 0).tolist()
        ]
    return tuple(sorted(pairs, key=lambda pair: (pair.sender, pair.receiver)))


def _amounts(group: GroupExchanges) -> _Floats:
    """Sender by receiver in each exchange, shape ``(n, g, g)``, in bytes if they are all known.

    Members that were not recorded are known by what the others sent and got.
    """
    size = len(group.ranks)
    if np.isnan(group.sent).all():
        return np.broadcast_to(np.nan, (len(group.step), size, size))
    amounts = np.full((len(group.step), size, size), np.nan)
    amounts[:, :, group.members] = group.received.swapaxes(1, 2)
    amounts[:, group.members, :] = np.where(
        np.isnan(group.sent), amounts[:, group.members, :], group.sent
    )
    if _has_bytes(group):
        amounts = amounts * np.nan_to_num(group.unit_bytes)[:, np.newaxis, np.newaxis]
    return amounts


def _has_bytes(group: GroupExchanges) -> bool:
    moves = np.nansum(group.sent, axis=(1, 2)) > 0
    return bool(moves.any()) and not np.isnan(group.unit_bytes[moves]).any()


def _transfer_ns(group: GroupExchanges, num_steps: int) -> int | None:
    """Mean of the members' time after the last had come; None where that is not known."""
    if (group.wait_ns == ABSENT).any():
        return None
    transfer = np.maximum(group.duration_ns - group.wait_ns, 0)
    return round(float(transfer.mean(axis=1).sum()) / num_steps)
