"""A rank in trouble, as reports hold it; without numpy, which rules do not load."""

from __future__ import annotations

from distprof.artefacts.record import Record

__all__ = ["TroubledRank"]


class TroubledRank(Record, frozen=True, kw_only=True):
    """A rank with which something is wrong.

    Args:
        kind: ``dead``, ``unresponsive``, ``error``, ``status`` (one that the others do not have),
            or ``behind`` (it has launched fewer operations than others).
        rank: Global rank, None where it is not known.
        place: For people: process, GPU and node.
        communicator: Hash, empty for a process of the job.
        size: Ranks of the communicator, None where not told.
        text: Error, status, or what it has launched of how much.
    """

    kind: str
    rank: int | None
    place: str
    communicator: str
    size: int | None
    text: str
