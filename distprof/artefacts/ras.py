"""A rank in trouble, as stored in reports. Separate, because rules must not import numpy."""

from __future__ import annotations

from distprof.artefacts.record import Record


class TroubledRank(Record, frozen=True, kw_only=True):
    """A rank with a problem."""

    # ``dead``, ``unresponsive``, ``error``, ``status`` (its status differs from that of the other
    # ranks), or ``behind`` (it has launched fewer operations than the others).
    kind: str
    rank: int | None  # Global rank, None if unknown.
    place: str  # Readable location: process, GPU and node.
    communicator: str  # Hash of the communicator; empty for a process of the job.
    size: int | None  # Ranks of the communicator, None if unknown.
    text: str  # Error, status, or the number of operations launched.
