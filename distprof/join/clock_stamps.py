"""Clocks by time stamps that ranks exchanged, as a check of the alignment or in its place.

Ends of collectives and stamps are independent evidence. Collectives end at one moment only as far
as their library makes them: over gloo ranks notice the end milliseconds apart, where a stamp is
right within half of its way there and back. So the smaller uncertainty wins, where both agree
within theirs; clocks that no collective connects are related by stamps alone; and where stamps and
collectives contradict each other, collectives stay and the contradiction is said.

Source: D. Mills et al., RFC 5905 (NTP), section 8: the offset of two clocks is right within half of
the delay; of several exchanges those of least delay are best.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from distprof.run.run import ClockAlignment
from distprof.schema import ABSENT, Int64Array, Table
from distprof.units import format_duration

__all__ = ["StampedClock", "clock_of_stamps", "with_stamps"]

_FAR_NS = 120_000_000_000  # exchanges farther from the capture than this say less than nearer ones
_MAX_NAMED = 5
_TIMES_BEST = 1.5  # exchanges that took at most this much longer than the fastest count


@dataclass(frozen=True, slots=True, kw_only=True)
class StampedClock:
    """A rank's clock against rank 0's.

    Args:
        offset_ns: Own clock minus rank 0's.
        error_ns: What it may be off by.
    """

    offset_ns: int
    error_ns: int


def clock_of_stamps(stamps: Table, around_ns: int) -> StampedClock | None:
    """The offset that one rank's exchanges tell, near a moment; None without any.

    Args:
        stamps: CLOCK_STAMPS table.
        around_ns: Middle of the capture, own clock.
    """
    sent, received = stamps["t_sent_ns"], stamps["t_received_ns"]
    if len(sent) == 0:
        return None
    near = np.abs(sent - around_ns) <= max(_FAR_NS, int(np.abs(sent - around_ns).min()))
    sent, received, server = sent[near], received[near], stamps["t_server_ns"][near]
    delay = received - sent
    good = delay <= _TIMES_BEST * delay.min()
    offset = (sent - server)[good] + delay[good] // 2
    base = int(offset[0])  # floats lose nanoseconds of large offsets
    middle = base + round(float(np.median(offset - base)))
    spread = int(np.abs(offset - middle).max())
    return StampedClock(offset_ns=middle, error_ns=max(int(delay.min()) // 2, spread, 1))


def with_stamps(clock: ClockAlignment, stamped: Mapping[int, StampedClock]) -> ClockAlignment:
    """The alignment with stamps used where they are better, and what they say of it.

    Args:
        clock: By the ends of collectives.
        stamped: Rank to its clock against rank 0's; rank 0 itself has no offset.
    """
    told = _by_domain(clock, {0: StampedClock(offset_ns=0, error_ns=0), **stamped})
    if len(clock.domains) < 2 or len(told) < 2:
        return clock
    anchor, result, agreed = min(told), clock, []
    notes = list(clock.notes)
    for domain in sorted(set(told) - {min(told)}):
        offset = told[domain].offset_ns - told[anchor].offset_ns + float(clock.offset_ns[anchor])
        error = told[domain].error_ns + told[anchor].error_ns
        name = clock.names[domain]
        residual = int(max(clock.residual_ns[domain], clock.residual_ns[anchor]))
        apart = abs(offset - float(clock.offset_ns[domain]))
        if result.component[domain] != result.component[anchor]:
            result = _connected(result, anchor, domain, offset, error)
            notes.append(
                f"The clock of {name} is known by time stamps only (± {format_duration(error)})."
            )
        elif apart > residual + error:
            notes.append(
                f"Time stamps put the clock of {name} {format_duration(apart)} off what "
                "collectives say, more than either may be off: collectives are believed."
            )
        else:
            agreed.append(name)
            result = _replaced(result, domain, offset, error) if error < residual else result
    if agreed:
        notes.append(f"Time stamps confirm the clocks of {', '.join(agreed[:_MAX_NAMED])}.")
    return replace(_with_anchor_error(result, anchor), notes=tuple(notes))


def _by_domain(
    clock: ClockAlignment, stamped: Mapping[int, StampedClock]
) -> dict[int, StampedClock]:
    """The surest of each domain's ranks."""
    found: dict[int, StampedClock] = {}
    for domain, ranks in enumerate(clock.domains):
        known = [stamped[rank] for rank in ranks if rank in stamped]
        if known:
            found[domain] = min(known, key=lambda told: told.error_ns)
    return found


def _connected(
    clock: ClockAlignment, anchor: int, domain: int, offset: float, error: int
) -> ClockAlignment:
    """All domains of one component moved so that ``domain`` has its offset, and joined."""
    moved = clock.component == clock.component[domain]
    shift = offset - float(clock.offset_ns[domain])
    residual = np.where(moved, np.maximum(clock.residual_ns, 0) + error, clock.residual_ns)
    return replace(
        clock,
        offset_ns=np.where(moved, clock.offset_ns + shift, clock.offset_ns),
        component=np.where(moved, clock.component[anchor], clock.component).astype(np.int32),
        residual_ns=residual.astype(np.int64),
    )


def _replaced(clock: ClockAlignment, domain: int, offset: float, error: int) -> ClockAlignment:
    offsets, residual = clock.offset_ns.copy(), clock.residual_ns.copy()
    offsets[domain], residual[domain] = offset, error
    return replace(clock, offset_ns=offsets, residual_ns=residual)


def _with_anchor_error(clock: ClockAlignment, anchor: int) -> ClockAlignment:
    """The anchor's own clock is what the others are measured by: it is as sure as the surest."""
    residual: Int64Array = clock.residual_ns.copy()
    others = np.delete(residual, anchor)
    known = others[others != ABSENT]
    if len(known) and (residual[anchor] == ABSENT or residual[anchor] > known.min()):
        residual[anchor] = known.min()
    return replace(clock, residual_ns=residual)
