"""How much a rank's all-to-alls carry: the tokens that its experts receive and return."""

from __future__ import annotations

import re

import numpy as np

from distprof.schema import Coded, Table
from distprof.terms import CollectiveKind

_SIZE = re.compile(r"[0-9]{1,9}")  # longer numbers are damaged


def carried(collectives: Table, *, both_ways: bool = False) -> float | None:
    """Mean amount per all-to-all of the rank: the larger of what it sends and receives.

    The traffic of a busy expert's rank is larger in both directions: dispatch brings its tokens,
    and combine returns them.

    Args:
        collectives: COLLECTIVES table of the rank.
        both_ways: Use the mean of what it sends and receives instead. Its mean over all members is
            what each would carry if all carried the same.

    Returns:
        Tokens if splits are recorded, else bytes; None without any all-to-all of known size.
    """
    rows = np.flatnonzero(collectives["kind"] == CollectiveKind.ALL_TO_ALL)
    if len(rows) == 0:
        return None
    sent, got = (_totals(collectives.coded(name))[rows] for name in ("in_splits", "out_splits"))
    tokens = (sent + got) / 2 if both_ways else np.maximum(sent, got)
    if (tokens > 0).any():
        return float(tokens[tokens > 0].mean())
    size = collectives["bytes"][rows]
    return float(size[size > 0].mean()) if (size > 0).any() else None


def _totals(splits: Coded) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Sum of each row's split; 0 if none is recorded."""
    totals = [_total(text) for text in splits.values] or [0.0]
    result: np.ndarray[tuple[int], np.dtype[np.float64]] = np.array(totals)[splits.codes]
    return result


def _total(text: str) -> float:
    numbers = text.split(",")
    return float(sum(map(int, numbers))) if all(map(_SIZE.fullmatch, numbers)) else 0.0
