"""When a pipeline stage needs what it was sent: at the start of the slot that works on it.

A message that came early held nobody up, but would if its receiver were faster. The k-th message
from a rank is for the k-th forward or the k-th backward of a stage: for the forwards if each had
come before its forward began, else for the backwards. Where neither fits (ranks with several
stages) it is taken to be needed by the next slot.
"""

from __future__ import annotations

import numpy as np

from distprof.analyzers.context import StageSlots
from distprof.schema import ABSENT, Int64Array, Table
from distprof.terms import CollectiveKind, SlotKind

__all__ = ["needed_at"]

_RECEIVES = (CollectiveKind.RECV, CollectiveKind.SEND_RECV)
_BACKWARDS = (SlotKind.BACKWARD, SlotKind.BACKWARD_INPUT)


def needed_at(collectives: Table, slots: StageSlots, since_ns: int) -> Int64Array:
    """For each row of COLLECTIVES the start of the slot that needs it, own clock.

    Args:
        collectives: The rank's COLLECTIVES table.
        slots: What its stages did when; at least one.
        since_ns: Messages that came before are for slots that are not analysed.

    Returns:
        int64 ns; ABSENT for all but messages that were received, timed, in time for some slot.
    """
    needed = np.full(len(collectives), ABSENT, dtype=np.int64)
    received = np.isin(collectives["kind"], _RECEIVES) & collectives["is_timed"]
    starts = np.unique(slots.start_ns)
    received &= (collectives["end_ns"] > since_ns) & (collectives["end_ns"] <= starts[-1])
    for peer in np.unique(collectives["peer"][received]):
        rows = np.flatnonzero(received & (collectives["peer"] == peer))
        rows = rows[np.argsort(collectives["end_ns"][rows], kind="stable")]
        end = collectives["end_ns"][rows]
        exact = _of_one_kind(slots, end)
        if exact is None:
            exact = starts[np.searchsorted(starts, end)]
        needed[rows] = exact
    return needed


def _of_one_kind(slots: StageSlots, end: Int64Array) -> Int64Array | None:
    """Starts of the forwards, or of the backwards, if each message came before its own."""
    if len(np.unique(slots.stage)) > 1:
        return None
    for kinds in ((SlotKind.FORWARD,), _BACKWARDS):
        starts = np.sort(slots.start_ns[np.isin(slots.kind, kinds)])
        if len(starts) == len(end) and (end <= starts).all():
            return starts
    return None
