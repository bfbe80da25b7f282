"""How much a rank's all-to-alls carry: the tokens that its experts receive and return.

And how much longer an all-to-all takes whose busiest member carries more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from distprof.run.run import Run
from distprof.schema import Coded, Int64Array, Table
from distprof.sections.context import RankAnalysis
from distprof.sections.matched import Members, RowIndex, places, segment_median, transfer_of
from distprof.terms import CollectiveKind

_Floats = NDArray[np.float64]

_DOUBT = 0.5
"""Standard deviation of the elasticity that is expected before anything is measured."""

_EXACT = 1e-12
"""Least sum of squares that a regression leaves, so that an exact one has a finite precision."""

_SIZE = re.compile(r"[0-9]{1,9}")  # longer numbers are damaged


def carried(collectives: Table, *, both_ways: bool = False) -> float | None:
    """Mean amount per all-to-all of the rank: the larger of what it sends and receives.

    The traffic of a busy expert's rank is larger in both directions: dispatch brings its tokens,
    and combine returns them.

    The result is in tokens if splits are recorded, else in bytes; None without any all-to-all of
    known size. With ``both_ways`` it is the mean of what the rank sends and receives, whose mean
    over all members is what each would carry if all carried the same.
    """
    amounts = _amounts(collectives, both_ways=both_ways)
    known = amounts[amounts > 0]
    return float(known.mean()) if len(known) else None


def _amounts(collectives: Table, *, both_ways: bool = False) -> _Floats:
    """What each all-to-all carries: tokens if any has splits, else bytes; other rows have 0."""
    result = np.zeros(len(collectives))
    rows = np.flatnonzero(collectives["kind"] == CollectiveKind.ALL_TO_ALL)
    if len(rows):
        sent, got = (_totals(collectives.coded(name))[rows] for name in ("in_splits", "out_splits"))
        tokens = (sent + got) / 2 if both_ways else np.maximum(sent, got)
        result[rows] = tokens if (tokens > 0).any() else collectives["bytes"][rows]
    return result


def elasticity(
    run: Run, analyses: Mapping[int, RankAnalysis], wait_ends: Mapping[int, Int64Array]
) -> float:
    """Relative growth of an all-to-all per relative growth of its busiest member's share.

    It is 1 if bandwidth bounds transfers, and 0 if latency does: the slope of a regression over the
    steps in which a call occurs, weighed by its precision against the expected 1, because routing
    that hardly varies shows nothing. ``wait_ends`` is when the last member of each collective
    started, on each rank's own clock.
    """
    index = RowIndex.of(run, analyses)
    members = index.members(run.matches)
    step = index.column(lambda rank: analyses[rank.rank].collective_step)[members.first_row]
    transfer = segment_median(
        index.column(lambda rank: transfer_of(rank, wait_ends)), members.offsets, members.row
    )
    chosen = run.matches.complete & (run.matches.kind == CollectiveKind.ALL_TO_ALL)
    chosen &= (np.diff(members.offsets) == np.diff(run.matches.offsets)) & (step >= 0)
    of = np.flatnonzero(chosen & (transfer > 0))
    shares = _busiest(index, members, of)
    of, shares = of[shares > 0], shares[shares > 0]
    call = _call_in_step(places(run.matches)[of], step[of])
    return _slope(_less_mean(np.log(shares), call), _less_mean(np.log(transfer[of]), call), call)


def _busiest(index: RowIndex, members: Members, of: Int64Array) -> _Floats:
    """Amount of each instance's busiest member over the mean of all, 0 if nothing is known."""
    most = index.column(lambda rank: _amounts(rank.collectives))[members.row]
    even = index.column(lambda rank: _amounts(rank.collectives, both_ways=True))[members.row]
    spans = [slice(*members.offsets[at : at + 2]) for at in of]
    means = np.array([even[span].mean() for span in spans], dtype=np.float64)
    largest = np.array([most[span].max() for span in spans], dtype=np.float64)
    return np.divide(largest, means, out=np.zeros_like(means), where=means > 0)


def _call_in_step(place: Int64Array, step: Int64Array) -> Int64Array:
    """Number of each row's place and ordinal in its step: that of the same call in other steps."""
    order = np.lexsort((np.arange(len(place)), step, place))
    begins = np.ones(len(order), dtype=np.bool_)
    begins[1:] = (np.diff(place[order]) != 0) | (np.diff(step[order]) != 0)
    at = np.arange(len(order))
    ordinal = np.empty(len(order), dtype=np.int64)
    ordinal[order] = at - np.maximum.accumulate(np.where(begins, at, 0))
    keys = np.stack((place, ordinal))
    return np.unique(keys, axis=1, return_inverse=True)[1].ravel().astype(np.int64)


def _less_mean(values: _Floats, code: Int64Array) -> _Floats:
    mean = np.bincount(code, weights=values) / np.maximum(np.bincount(code), 1)
    return np.asarray(values - mean[code], dtype=np.float64)


def _slope(amount: _Floats, time: _Floats, call: Int64Array) -> float:
    spread, freedom = float(amount @ amount), len(amount) - len(np.unique(call)) - 1
    if spread <= 0 or freedom < 1:
        return 1.0
    slope = float(amount @ time) / spread
    rest = time - slope * amount
    precision, expected = spread * freedom / max(float(rest @ rest), _EXACT), 1 / _DOUBT**2
    weighed = (slope * precision + expected) / (precision + expected)
    return min(max(weighed, 0.0), 1.0)


def _totals(splits: Coded) -> _Floats:
    """Sum of each row's split; 0 if none is recorded."""
    totals = np.array([_total(text) for text in splits.values] or [0.0], dtype=np.float64)
    return np.asarray(totals[splits.codes], dtype=np.float64)


def _total(text: str) -> float:
    numbers = text.split(",")
    return float(sum(map(int, numbers))) if all(map(_SIZE.fullmatch, numbers)) else 0.0
