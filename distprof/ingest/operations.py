"""What ranks did within a group, in order, with tokens that are equal for like operations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distprof.ingest.found import MESSAGES, SAME_BYTES
from distprof.ingest.rows import Rows
from distprof.ingest.shifts import Operations
from distprof.schema import ABSENT, Int64Array
from distprof.terms import CollectiveKind

__all__ = ["TIMED", "operations_of"]

TIMED = [kind for kind in CollectiveKind if kind.is_symmetric]


def operations_of(rows: Rows, parts: Sequence[Int64Array]) -> list[Operations]:
    """The operations of several ranks, to be compared with each other.

    Args:
        rows: The rows of all ranks.
        parts: Positions in ``rows`` of each rank's operations, ascending.
    """
    tokens = _tokens(rows, np.concatenate(parts))
    ends = np.cumsum([len(part) for part in parts])[:-1]
    return [
        Operations(
            token=token,
            end_ns=rows.end_ns[part],
            step=rows.step[part],
            is_timed=np.isin(rows.kind[part], TIMED),
        )
        for part, token in zip(parts, np.split(tokens, ends), strict=True)
    ]


def _tokens(rows: Rows, index: Int64Array) -> Int64Array:
    """Numbers that are equal for operations of equal kind, element type and (if it tells) bytes."""
    kind = rows.kind[index].astype(np.int64)
    size = np.where(np.isin(kind, (*SAME_BYTES, *MESSAGES)), rows.bytes[index], ABSENT)
    sizes, size_code = np.unique(size, return_inverse=True)
    dtype = rows.dtype[index].astype(np.int64)
    token: Int64Array = (dtype * 64 + kind) * len(sizes) + size_code
    return token
