"""Data-parallel traffic: which gradients are reduced, when, how often and at which precision.

This covers DistributedDataParallel, which marks its forward in the trace. :mod:`.traffic` explains
how its collectives are identified. A *reduction* is all buckets of one backward. An optimizer
update needs one reduction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.costs.fabric import fit_buckets
from distprof.run.run import Run
from distprof.run.tables import ends_of_runs
from distprof.run.topology import Topology
from distprof.schema import ABSENT, Int64Array
from distprof.sections.context import RankAnalyses, RankAnalysis, RankGradients
from distprof.sections.gradients import GradientGroup, GradientsResult
from distprof.sections.gradients.traffic import rank_gradients  # noqa: F401 - part of a rank

_NO_REDUCTION = (
    "DistributedDataParallel is used, but no floating-point all-reduce of known size was recorded "
    "between forward and update"
)

_SAME_BYTES = 0.01
"""Relative difference in bytes up to which two reductions carry the same gradients."""


def analyze_gradients(run: Run, analyses: RankAnalyses) -> GradientsResult:
    """Combine the reductions of all ranks; no groups if no rank marks DDP."""
    marked = [analysis for analysis in analyses.values() if analysis.gradients is not None]
    if not marked:
        return GradientsResult()
    axes = {name for analysis in marked for name in _axes_of(analysis)}
    groups = [_group(run.topology, axis, _pooled(axis, marked)) for axis in sorted(axes)]
    samples = max(sum(len(analysis.steps) for analysis in marked), 1)
    found = [analysis.gradients for analysis in marked if analysis.gradients is not None]
    return GradientsResult(
        groups=tuple(sorted(groups, key=lambda group: -group.bytes_per_step)),
        search_ns_per_step=sum(own.search_ns for own in found) // samples,
        search_exposed_ns_per_step=sum(own.search_exposed_ns for own in found) // samples,
        unavailable=() if groups else (_NO_REDUCTION,),
    )


def needless_rows(analysis: RankAnalysis) -> NDArray[np.bool_]:
    """Mask of the COLLECTIVES rows whose gradients are reduced again before their update."""
    result = np.zeros(len(analysis.collective_step), dtype=np.bool_)
    own = analysis.gradients
    if own is None or not own.marks_updates:
        return result
    again = np.zeros(len(own.axis), dtype=np.bool_)
    for number in own.dtypes:
        reductions = np.flatnonzero(own.axis == number)
        again[reductions] = _repeats(own, reductions)[1]
    result[own.rows[np.repeat(again, own.num_buckets)]] = True
    return result


BUCKET_BYTES = 25 << 20  # Size of DistributedDataParallel's default bucket
BUCKETS = 10  # Number of buckets for a small model's gradients, of which all but one can overlap


def unhidden_rows(analysis: RankAnalysis) -> NDArray[np.float32]:
    """Share of each COLLECTIVES row that stays exposed in any order of backward: the last bucket.

    The last bucket is ready when backward has ended. If all gradients are in one bucket or in many
    tiny ones, the share is that of a last bucket of the default size, for every row.
    """
    result = np.zeros(len(analysis.collective_step), dtype=np.float32)
    own = analysis.gradients
    if own is None or not len(own.rows):
        return result
    usual = np.minimum(BUCKET_BYTES, own.bytes / BUCKETS) / np.maximum(own.bytes, 1)
    in_buckets = (own.num_buckets > 1) & (own.num_buckets * usual <= 1)
    share = np.repeat(np.where(in_buckets, 0.0, usual), own.num_buckets)
    share[(np.cumsum(own.num_buckets) - 1)[in_buckets]] = 1.0
    result[own.rows] = share
    return result


def _axes_of(analysis: RankAnalysis) -> list[str]:
    own = analysis.gradients
    return [] if own is None else [analysis.row_axis_names[number] for number in own.dtypes]


class _Pooled(msgspec.Struct, frozen=True, kw_only=True):
    """Reductions of all ranks along one axis, one after another.

    ``update`` is distinct across ranks; ``is_last`` marks the last reduction of each update, and
    ``is_again`` the earlier ones with the same gradients.
    """

    axis: str
    ranks: tuple[int, ...]
    columns: Mapping[str, Int64Array]
    dtypes: tuple[str, ...]
    is_last: NDArray[np.bool_]
    is_again: NDArray[np.bool_]
    num_updates: int
    num_steps: int
    marks_updates: bool
    bucket_bytes: Int64Array
    bucket_moving_ns: Int64Array


_COLUMNS = (
    "update", "num_buckets", "bytes", "exposed_ns", "wait_ns", "transfer_ns", "last_bytes",
    "last_exposed_ns", "before_first_ns", "backward_ns", "num_forwards",
)  # fmt: skip


def _pooled(axis: str, analyses: Sequence[RankAnalysis]) -> _Pooled:
    parts: dict[str, list[Int64Array]] = {name: [] for name in _COLUMNS}
    dtypes: set[str] = set()
    last: list[NDArray[np.bool_]] = []
    again: list[NDArray[np.bool_]] = []
    buckets: list[NDArray[np.int64]] = []
    ranks, updates, steps, marks = [], 0, 0, True
    for analysis in analyses:
        own = analysis.gradients
        if own is None or axis not in _axes_of(analysis):
            continue
        number = analysis.row_axis_names.index(axis)
        rows = np.flatnonzero(own.axis == number)
        for name, values in parts.items():
            values.append(getattr(own, name)[rows])
        is_last, is_again = _repeats(own, rows)
        last.append(is_last)
        again.append(is_again)
        mine = np.repeat(own.axis == number, own.num_buckets)
        buckets.append(np.stack([own.row_bytes[mine], own.row_moving_ns[mine]]))
        dtypes.update(own.dtypes[number])
        ranks.append(analysis.rank)
        updates += int(is_last.sum())
        steps += len(analysis.steps)
        marks &= own.marks_updates
    return _Pooled(
        axis=axis,
        ranks=tuple(sorted(ranks)),
        columns={name: np.concatenate(values) for name, values in parts.items()},
        dtypes=tuple(sorted(dtypes)),
        is_last=np.concatenate(last),
        is_again=np.concatenate(again),
        num_updates=updates,
        num_steps=steps,
        marks_updates=marks,
        bucket_bytes=np.concatenate([one[0] for one in buckets]),
        bucket_moving_ns=np.concatenate([one[1] for one in buckets]),
    )


def _repeats(
    own: RankGradients, rows: NDArray[np.intp]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Masks of the last reduction of each update and of earlier ones with the same gradients."""
    update, count, size = own.update[rows], own.num_buckets[rows], own.bytes[rows]
    is_last = ends_of_runs(update)
    last = np.flatnonzero(is_last)[np.cumsum(is_last) - is_last]
    same = (count == count[last]) & (abs(size - size[last]) <= _SAME_BYTES * size[last])
    return is_last, same & ~is_last


def _group(topology: Topology, axis: str, pooled: _Pooled) -> GradientGroup:
    columns, last, again = pooled.columns, pooled.is_last, pooled.is_again
    size, nodes, is_whole = _extent(topology, axis, pooled.ranks)
    is_split = is_whole and bool((columns["wait_ns"] != ABSENT).all())
    exposed = columns["exposed_ns"] - (columns["wait_ns"] if is_split else 0)
    steps = max(pooled.num_steps, 1)
    updates = max(pooled.num_updates, 1)
    known = pooled.bucket_moving_ns > 0
    bucket = fit_buckets(
        pooled.bucket_bytes[known].tolist(), pooled.bucket_moving_ns[known].tolist()
    )
    own = bucket if is_split else None
    return GradientGroup(
        axis=axis,
        ranks=pooled.ranks,
        group_size=size,
        num_nodes=nodes,
        dtypes=pooled.dtypes,
        num_updates=pooled.num_updates / len(pooled.ranks),
        micro_batches=float(columns["num_forwards"][last].mean()),
        times_reduced=1 + int(again.sum()) / updates if pooled.marks_updates else None,
        num_buckets=int(np.median(columns["num_buckets"])),
        bytes=int(np.median(columns["bytes"])),
        bytes_per_step=float(columns["bytes"].sum()) / steps,
        last_bucket_ratio=float(np.median(columns["last_bytes"] / columns["bytes"])),
        is_split=is_split,
        exposed_ns_per_step=int(exposed.sum()) // steps,
        redundant_ns_per_step=int(exposed[again].sum()) // steps,
        last_bucket_ns_per_step=int(columns["last_exposed_ns"][last].sum()) // steps,
        backward_ns=_mean_where_known(columns["backward_ns"][last]),
        before_first_ns=_mean_where_known(columns["before_first_ns"][last]),
        transfer_ns=_mean_where_known(columns["transfer_ns"][last]) if is_split else None,
        bucket_latency_ns=own.latency_ns if own else None,
        bucket_ns_per_byte=own.ns_per_byte if own else None,
        bucket_fixed_ns=bucket.latency_ns if bucket else None,
    )


def _mean_where_known(values: Int64Array) -> int | None:
    """The mean; None if any value is unknown, because it may differ from the others."""
    if not len(values) or (values == ABSENT).any():
        return None
    return int(values.mean())


def _extent(
    topology: Topology, axis: str, ranks: Sequence[int]
) -> tuple[int | None, int | None, bool]:
    """Size and nodes of the largest group along the axis, and whether all were recorded.

    A member that was not recorded may have arrived last, so waiting and transfer cannot be
    separated.
    """
    here = frozenset(ranks)
    held = [
        group
        for group in topology.groups
        if axis in (group.axis, group.description) and not here.isdisjoint(group.ranks)
    ]
    if not held:
        return None, None, True
    group = max(held, key=lambda group: group.size or len(group.ranks))
    is_whole = all(here.issuperset(group.ranks) for group in held)
    return group.size or len(group.ranks) or None, topology.num_nodes_of(group), is_whole
