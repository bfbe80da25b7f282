"""What ranks did within a group, in order, with tokens that are equal for like operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distprof.ingest.found import MESSAGES, SAME_BYTES
from distprof.ingest.rows import NO_STEP, Rows
from distprof.schema import ABSENT, Int64Array
from distprof.terms import CollectiveKind

__all__ = ["TIMED", "Operations", "compatible", "middle_of_overlap", "operations_of"]

SAMPLES = 512  # pairs looked at per shift

TIMED = [kind for kind in CollectiveKind if kind.is_symmetric]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """What one rank did, in order.

    Args:
        token: int64, equal for operations that could be the same.
        end_ns: int64, ends on the rank's own clock.
        step: int64, step number or NO_STEP.
        is_timed: bool, whether the operation ends on both ranks at once, so that its end tells.
    """

    token: Int64Array
    end_ns: Int64Array
    step: Int64Array
    is_timed: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.token)

    def part(self, low: int, high: int) -> Operations:
        """The operations at positions ``low`` to ``high``."""
        return Operations(
            token=self.token[low:high],
            end_ns=self.end_ns[low:high],
            step=self.step[low:high],
            is_timed=self.is_timed[low:high],
        )


def compatible(a: Operations, b: Operations, i: Int64Array, j: Int64Array) -> NDArray[np.bool_]:
    """Whether two operations could be one: same token, and no two known steps that differ."""
    step_a, step_b = a.step[i], b.step[j]
    same_step = (step_a == step_b) | (step_a == NO_STEP) | (step_b == NO_STEP)
    could: NDArray[np.bool_] = (a.token[i] == b.token[j]) & same_step
    return could


def middle_of_overlap(a: Operations, b: Operations, shift: int) -> Int64Array:
    """Positions in the middle of the overlap: neighbours, to see the difference of ends change."""
    low, high = max(0, -shift), min(len(a), len(b) - shift)
    first = low + max(0, (high - low - SAMPLES) // 2)
    return np.arange(first, min(high, first + SAMPLES))


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
