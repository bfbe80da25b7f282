"""Whether ranks compute for different times because their sequences differ in length.

Most work grows with the number of tokens, attention with the square of a sequence's length. Each
step draws new batches, so the rank with the most work changes. Its excess computation follows its
tokens (if the step log has them), or is in attention far more than in the rest of its computation.
A device that is slow for a while slows all of its kernels equally.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from distprof.intervals import Intervals, covered, union
from distprof.run.tables import intervals_of
from distprof.schema import Int64Array, Table
from distprof.sections.context import RankAnalysis
from distprof.sections.idle.measure import HostPauses
from distprof.sections.own_time import COMPUTATION, OwnTime
from distprof.sections.stragglers.result import SequenceImbalance
from distprof.terms import ActivityKind

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
    lost = float(_most(more, own_time).max(axis=0).mean())
    if lost < MIN_SHARE * mean_step_ns or _persists(more) or _is_of_one_step(more):
        return None
    match = _by_tokens(more, analyses, own_time, pauses) or _by_attention(
        more, work, analyses, own_time
    )
    if match is None:
        return None
    evidence, correlation = match
    spreads = _spreads(work, analyses, own_time)
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


def _is_of_one_step(more: NDArray[np.float64]) -> bool:
    """Whether differences in one step outweigh those in all others."""
    of_step = (more**2).sum(axis=0)
    return len(of_step) > 2 and float(of_step.max()) > ONE_STEP * float(of_step.sum())


def _beyond_mean(values: NDArray[np.float64], own_time: OwnTime) -> NDArray[np.float64]:
    """Each value less the mean of its rank's peers in the step."""
    result = np.empty_like(values)
    for peers, members in own_time.groups:
        result[members] = values[members] - values[list(peers)].mean(axis=0)
    return result


def _most(more: NDArray[np.float64], own_time: OwnTime) -> NDArray[np.float64]:
    """The largest excess of each set of peers, one row each."""
    return np.stack([more[list(peers)].max(axis=0) for peers, _ in own_time.groups])


def _persists(more: NDArray[np.float64]) -> bool:
    """Whether the excess is mostly on the same ranks in all steps."""
    lasting = more.shape[1] * float((more.mean(axis=1) ** 2).sum())
    return bool(lasting > PERSISTS * float((more**2).sum()))


def _correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Correlation of values that are already differences from a mean; 0 if one is constant."""
    scale = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum()) / scale if scale > 0 else 0.0


def _by_tokens(
    more: NDArray[np.float64],
    analyses: Mapping[int, RankAnalysis],
    own_time: OwnTime,
    pauses: Mapping[int, HostPauses],
) -> tuple[Literal["tokens", "attention"], float] | None:
    logged = [getattr(pauses.get(rank), "tokens", None) for rank in own_time.ranks]
    if any(tokens is None for tokens in logged):
        return None
    table = np.zeros(more.shape)
    for row, rank, tokens in zip(table, own_time.ranks, logged, strict=True):
        steps = analyses[rank].steps
        row[: len(steps)] = [(tokens or {}).get(step.step, 0) for step in steps]
    correlation = _correlation(more, _beyond_mean(table, own_time))
    return ("tokens", correlation) if correlation >= FOLLOWS else None


def _by_attention(
    more: NDArray[np.float64],
    work: NDArray[np.float64],
    analyses: Mapping[int, RankAnalysis],
    own_time: OwnTime,
) -> tuple[Literal["tokens", "attention"], float] | None:
    spreads = _spreads(work, analyses, own_time)
    if spreads is None or spreads[0] < MORE_SPREAD * spreads[1]:
        return None
    attention = _attention(work, analyses, own_time)
    correlation = _correlation(more, _beyond_mean(attention, own_time))
    return ("attention", correlation) if correlation >= FOLLOWS else None


def _attention(
    work: NDArray[np.float64], analyses: Mapping[int, RankAnalysis], own_time: OwnTime
) -> NDArray[np.float64]:
    table = np.zeros(work.shape)
    for row, rank in zip(table, own_time.ranks, strict=True):
        values = analyses[rank].attention_ns
        row[: len(values)] = values
    return table


def _spreads(
    work: NDArray[np.float64], analyses: Mapping[int, RankAnalysis], own_time: OwnTime
) -> tuple[float, float] | None:
    """Standard deviation over mean between peers, of attention and the rest; None if unknown."""
    attention = _attention(work, analyses, own_time)
    if not (attention.mean(axis=1) > 0).all():
        return None
    rest = np.maximum(work - attention, 0.0)

    def spread(values: NDArray[np.float64]) -> float:
        more = _beyond_mean(values, own_time)
        return float(np.sqrt((more**2).mean())) / max(float(values.mean()), 1.0)

    return spread(attention), spread(rest)
