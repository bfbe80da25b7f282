"""Names of slots in traces: the probes' marks, and torch's own annotations of its schedules.

Grammar of torch 2.13, ``torch/distributed/pipelining/schedules.py``: ``PP:`` and an action, which
is ``<stage><type><micro-batch>`` with type F, I, B or W (``PP:0F3``, ``PP:1B2``), or two of them
as ``PP:(0F3;1B2)OVERLAP_F_B``; ScheduleGPipe writes ``Forward 3`` and ``Backward 3`` without a
stage; Schedule1F1B writes nothing. ``SEND_F``, ``RECV_B``, ``UNSHARD`` and the like are no work.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from distprof.terms import SlotKind

__all__ = ["UNKNOWN_STAGE", "SlotName", "parse_mark", "parse_torch"]

UNKNOWN_STAGE = -1
"""Where the name does not say the stage: there is one on the rank, and the group says which."""

_MARK = re.compile(r"^distprof:pp stage=(\d{1,6}) op=([FBIWL]) mb=(\d{1,9})\Z")
_TORCH = re.compile(r"^PP:(\d{1,6})([FBIW])(\d{1,9})\Z")
_PAIR = re.compile(r"^PP:\((\d{1,6})F(\d{1,9});(\d{1,6})([BI])(\d{1,9})\)OVERLAP_F_B\Z")
_PLAIN = re.compile(r"^(Forward|Backward) (\d{1,9})\Z")

_KINDS = {
    "F": SlotKind.FORWARD,
    "B": SlotKind.BACKWARD,
    "I": SlotKind.BACKWARD_INPUT,
    "W": SlotKind.BACKWARD_WEIGHT,
    "L": SlotKind.LOSS,
}


class SlotName(NamedTuple):
    """What a name says; ``part`` is the share of the range that the slot takes, from, to."""

    stage: int
    kind: SlotKind
    micro_batch: int
    part: tuple[float, float] = (0.0, 1.0)


Parser = Callable[[str], Sequence[SlotName]]


def parse_mark(name: str) -> tuple[SlotName, ...]:
    """The slot of a probe's mark; empty for any other name."""
    found = _MARK.match(name)
    return (SlotName(int(found[1]), _KINDS[found[2]], int(found[3])),) if found else ()


def parse_torch(name: str) -> tuple[SlotName, ...]:
    """The slot, or the two, of torch's annotation; empty for any other name.

    A forward and a backward under one name run one after the other; the forward is taken for the
    first third.
    """
    if found := _TORCH.match(name):
        return (SlotName(int(found[1]), _KINDS[found[2]], int(found[3])),)
    if found := _PAIR.match(name):
        return (
            SlotName(int(found[1]), SlotKind.FORWARD, int(found[2]), (0.0, 1 / 3)),
            SlotName(int(found[3]), _KINDS[found[4]], int(found[5]), (1 / 3, 1.0)),
        )
    if found := _PLAIN.match(name):
        kind = SlotKind.FORWARD if found[1] == "Forward" else SlotKind.BACKWARD
        return (SlotName(UNKNOWN_STAGE, kind, int(found[2])),)
    return ()
