"""What other tools tell in tables, without a time line: collectives by rank, readiness of input."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distprof.schema import Int64Array
from distprof.terms import CollectiveKind

__all__ = ["CollectiveSummary", "InputReadiness", "SummaryClass"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryClass:
    """Collectives that are alike.

    Args:
        group: Name of the process group.
        ranks: Its members as the table lists them; empty where it does not.
        kind: Operation.
        dtype: As the table spells it.
        num_bytes: Of the full buffer, None where not told.
    """

    group: str
    ranks: tuple[int, ...]
    kind: CollectiveKind
    dtype: str
    num_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveSummary:
    """Durations of collectives by rank and class; one entry per row of the table.

    Args:
        classes: Classes of collectives.
        class_index: int64, index into ``classes``.
        rank: int64, global rank.
        num_calls: int64.
        mean_ns: int64, mean duration of a call on that rank.
        notes: What was left out, one sentence each.
    """

    classes: tuple[SummaryClass, ...]
    class_index: Int64Array
    rank: Int64Array
    num_calls: Int64Array
    mean_ns: Int64Array
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InputReadiness:
    """How ready each rank's input was, over time: 1 where the loader was never waited for.

    Args:
        time_s: int64, shape ``(samples,)``, seconds since 1970, ascending.
        ranks: Global ranks, ascending.
        ratio: float64, shape ``(ranks, samples)``, 0 to 1, NaN where missing.
        notes: What was left out, one sentence each.
    """

    time_s: Int64Array
    ranks: tuple[int, ...]
    ratio: NDArray[np.float64]
    notes: tuple[str, ...] = ()
