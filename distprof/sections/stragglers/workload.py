"""Unequal work: sequences of different lengths, and all-to-alls whose busiest member carries more.

Most work grows with the number of tokens, attention with the square of a sequence's length. Each
step draws new batches, so the rank with the most work changes. Its excess computation follows its
tokens (if the step log has them), or is in attention far more than in the rest of its computation.
A device that is slow for a while slows all of its kernels equally.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import numpy as np

from distprof.intervals import Intervals, covered, union
from distprof.run.run import Run
from distprof.run.tables import intervals_of, numbers_in
from distprof.schema import Coded, Floats, Int64Array, Table
from distprof.sections.context import RankAnalysis
from distprof.sections.idle.measure import HostPauses
from distprof.sections.matched import RowIndex, places, segment_median, transfer_of
from distprof.sections.own_time import COMPUTATION, OwnTime
from distprof.sections.stragglers import SequenceImbalance
from distprof.terms import ActivityKind, CollectiveKind

ATTENTION = ("flash", "fmha", "attention", "sdpa", "scaled_dot_product")
"""Words in names of kernels and operators whose time grows with the square of a sequence's length,
in lower case. A regular expression takes 11 times as long to reject a kernel's name."""

FOLLOWS = 0.9
"""Correlation from which computation follows attention or tokens."""

MORE_SPREAD = 1.3
"""Spread of attention over that of the rest from which lengths explain the difference."""

ONE_STEP = 0.8
"""Share of the variance in one step of several from which a kernel stalled: lengths vary in all."""

PERSISTS = 0.5
"""Share of the variance that lasting differences between ranks may explain."""

MIN_POINTS = 8
"""Ranks times steps below which values correlate by chance."""

MIN_SHARE = 0.01

_DOUBT = 0.5
"""Standard deviation of the elasticity that is expected before anything is measured."""

_EXACT = 1e-12
"""Least sum of squares that a regression leaves, so that an exact one has a finite precision."""

_SIZE = re.compile(r"[0-9]{1,9}")  # longer numbers are damaged


def rank_attention_ns(activity: Table, windows: Intervals) -> Int64Array:
    """Time in attention kernels inside each window; 0 if no kernel is named like one."""
    names = activity.coded("name")
    are_attention = [is_attention(name) for name in names.values]
    if not any(are_attention):
        return np.zeros(windows.size, dtype=np.int64)
    rows = names.where(are_attention) & (activity["kind"] == ActivityKind.COMPUTATION)
    return covered(windows, union(intervals_of(activity.take(rows))))


def is_attention(name: str) -> bool:
    """Whether a kernel or operator of this name computes attention."""
    lowered = name.lower()
    return any(word in lowered for word in ATTENTION)


def find_sequence_imbalance(
    analyses: Mapping[int, RankAnalysis],
    own_time: OwnTime,
    pauses: Mapping[int, HostPauses],
    mean_step_ns: float,
) -> SequenceImbalance | None:
    """Time lost to sequences of different lengths; None if it is unknown or small."""
    work = own_time.parts[COMPUTATION].astype(np.float64)
    if work.size == 0 or (len(work) - 1) * work.shape[1] < MIN_POINTS:
        return None
    more = _beyond_mean(work, own_time)
    most = np.stack([more[list(peers)].max(axis=0) for peers, _ in own_time.groups])
    lost = float(most.max(axis=0).mean())
    if lost < MIN_SHARE * mean_step_ns or _persists(more) or _is_of_one_step(more):
        return None
    attention = np.zeros(work.shape)
    for row, rank in zip(attention, own_time.ranks, strict=True):
        values = analyses[rank].attention_ns
        row[: len(values)] = values
    spreads = None  # unknown, unless all ranks run attention kernels
    if (attention.mean(axis=1) > 0).all():
        rest = np.maximum(work - attention, 0.0)
        spreads = _spread(attention, own_time), _spread(rest, own_time)
    evidence: Literal["tokens", "attention"] = "tokens"
    tokens = _tokens(analyses, own_time, pauses)
    correlation = 0.0 if tokens is None else _correlation(more, _beyond_mean(tokens, own_time))
    if correlation < FOLLOWS and spreads is not None and spreads[0] >= MORE_SPREAD * spreads[1]:
        evidence = "attention"
        correlation = _correlation(more, _beyond_mean(attention, own_time))
    if correlation < FOLLOWS:
        return None
    return SequenceImbalance(
        evidence=evidence,
        correlation=correlation,
        max_over_mean=float((1 + more / np.maximum(work - more, 1.0)).max(axis=0).mean()),
        attention_spread=spreads[0] if spreads else None,
        rest_spread=spreads[1] if spreads else None,
        lost_ns_per_step=int(lost),
        share_of_step_ratio=lost / max(mean_step_ns, 1.0),
        ranks=own_time.ranks,
    )


def _is_of_one_step(more: Floats) -> bool:
    """Whether differences in one step outweigh those in all others."""
    of_step = (more**2).sum(axis=0)
    return len(of_step) > 2 and float(of_step.max()) > ONE_STEP * float(of_step.sum())


def _beyond_mean(values: Floats, own_time: OwnTime) -> Floats:
    """Each value less the mean of its rank's peers in the step."""
    result = np.empty_like(values)
    for peers, members in own_time.groups:
        result[members] = values[members] - values[list(peers)].mean(axis=0)
    return result


def _persists(more: Floats) -> bool:
    """Whether the excess is mostly on the same ranks in all steps."""
    lasting = more.shape[1] * float((more.mean(axis=1) ** 2).sum())
    return bool(lasting > PERSISTS * float((more**2).sum()))


def _correlation(a: Floats, b: Floats) -> float:
    """Correlation of values that are already differences from a mean; 0 if one is constant."""
    scale = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum()) / scale if scale > 0 else 0.0


def _tokens(
    analyses: Mapping[int, RankAnalysis], own_time: OwnTime, pauses: Mapping[int, HostPauses]
) -> Floats | None:
    """Tokens of each rank in each step; None unless all ranks log them."""
    table = np.zeros(own_time.parts[COMPUTATION].shape)
    for row, rank in zip(table, own_time.ranks, strict=True):
        logged = pauses[rank].tokens if rank in pauses else None
        if logged is None:
            return None
        steps = analyses[rank].steps
        row[: len(steps)] = [logged.get(step.step, 0) for step in steps]
    return table


def _spread(values: Floats, own_time: OwnTime) -> float:
    """Standard deviation over mean, between peers."""
    more = _beyond_mean(values, own_time)
    return float(np.sqrt((more**2).mean())) / max(float(values.mean()), 1.0)


# All-to-alls --------------------------------------------------------------------------------------


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


def _amounts(collectives: Table, *, both_ways: bool = False) -> Floats:
    """What each all-to-all carries: tokens if any has splits, else bytes; other rows have 0."""
    result = np.zeros(len(collectives))
    rows = np.flatnonzero(collectives["kind"] == CollectiveKind.ALL_TO_ALL)
    if len(rows):
        sent, got = (_totals(collectives.coded(name))[rows] for name in ("in_splits", "out_splits"))
        tokens = (sent + got) / 2 if both_ways else np.maximum(sent, got)
        result[rows] = tokens if (tokens > 0).any() else collectives["bytes"][rows]
    return result


def _totals(splits: Coded) -> Floats:
    """Sum of each row's split; 0 if none is recorded."""
    rows = [text.split(",") for text in splits.values or ("",)]
    totals = [sum(map(int, row)) if all(map(_SIZE.fullmatch, row)) else 0 for row in rows]
    return np.asarray(np.array(totals, dtype=np.float64)[splits.codes], dtype=np.float64)


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
    # Amount of each instance's busiest member over the mean of all, 0 if nothing is known.
    most = index.column(lambda rank: _amounts(rank.collectives))[members.row]
    even = index.column(lambda rank: _amounts(rank.collectives, both_ways=True))[members.row]
    spans = [slice(*members.offsets[at : at + 2]) for at in of]
    means = np.array([even[span].mean() for span in spans], dtype=np.float64)
    largest = np.array([most[span].max() for span in spans], dtype=np.float64)
    shares = np.divide(largest, means, out=np.zeros_like(means), where=means > 0)
    of, shares = of[shares > 0], shares[shares > 0]
    call = _call_in_step(places(run.matches)[of], step[of])
    return _slope(_less_mean(np.log(shares), call), _less_mean(np.log(transfer[of]), call), call)


def _call_in_step(place: Int64Array, step: Int64Array) -> Int64Array:
    """Number of each row's place and ordinal in its step: that of the same call in other steps."""
    keys = np.stack((place, numbers_in(place, step)))
    return np.unique(keys, axis=1, return_inverse=True)[1].ravel().astype(np.int64)


def _less_mean(values: Floats, code: Int64Array) -> Floats:
    mean = np.bincount(code, weights=values) / np.maximum(np.bincount(code), 1)
    return np.asarray(values - mean[code], dtype=np.float64)


def _slope(amount: Floats, time: Floats, call: Int64Array) -> float:
    spread, freedom = float(amount @ amount), len(amount) - len(np.unique(call)) - 1
    if spread <= 0 or freedom < 1:
        return 1.0
    slope = float(amount @ time) / spread
    rest = time - slope * amount
    precision, expected = spread * freedom / max(float(rest @ rest), _EXACT), 1 / _DOUBT**2
    weighed = (slope * precision + expected) / (precision + expected)
    return min(max(weighed, 0.0), 1.0)
