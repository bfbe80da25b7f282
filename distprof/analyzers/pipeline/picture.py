"""The picture of one step: its slots as rows."""

from __future__ import annotations

import numpy as np

from distprof.analyzers.pipeline.observed import ObservedPipeline
from distprof.analyzers.pipeline.rows import PictureRow
from distprof.terms import SlotKind

__all__ = ["MAX_ROWS", "picture_of"]

MAX_ROWS = 4_000
"""Beyond it only some ranks are kept, evenly spread, the first and the last among them."""


def picture_of(observed: ObservedPipeline, *, comparable: bool) -> tuple[PictureRow, ...]:
    """Slots of the step of median length, by position of the rank and start.

    Args:
        observed: The pipeline.
        comparable: Whether all ranks share one time line; else each rank begins at 0.
    """
    length = observed.end_ns.max(axis=0) - observed.start_ns.min(axis=0)
    column = int(np.argsort(length, kind="stable")[(len(length) - 1) // 2])
    start, end = observed.start_ns[:, column], observed.end_ns[:, column]
    orders = observed.orders
    rows = np.flatnonzero(np.isin(orders.rank, _kept(observed)))
    rows = rows[:MAX_ROWS]
    zero = np.full(len(observed.ranks), start.min())
    if not comparable:
        first = np.flatnonzero(np.diff(orders.rank, prepend=-1))
        zero = np.minimum.reduceat(start, first)
    low = start - zero[orders.rank]
    high = end - zero[orders.rank]
    return tuple(
        PictureRow(
            rank=observed.ranks[place],
            stage=stage,
            kind=SlotKind(kind).name.lower(),
            micro_batch=batch,
            start_ns=begins,
            end_ns=ends,
        )
        for place, stage, kind, batch, begins, ends in zip(
            *(
                column[rows].tolist()
                for column in (
                    orders.rank,
                    orders.stage,
                    orders.kind,
                    orders.micro_batch,
                    low,
                    high,
                )
            ),
            strict=True,
        )
    )


def _kept(observed: ObservedPipeline) -> list[int]:
    """Positions to draw."""
    count = np.bincount(observed.orders.rank)
    fits = max(1, int(MAX_ROWS // max(count.max(initial=1), 1)))
    places = np.linspace(0, len(count) - 1, min(fits, len(count)))
    return sorted({int(place) for place in np.rint(places)})
