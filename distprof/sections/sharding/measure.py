"""Traffic of sharded parameters and tensor parallelism, and when it happens.

Ranks that shard the parameters of a model gather a *unit* of them (a block, for example) before
they compute with it, and reduce-scatter its gradients afterwards. Forward and backward each gather
every unit (ZeRO-3), or only one of them does (ZeRO-2). Gathering every unit once is a *pass*. The
number of passes per step follows from the order of operations: forward gathers many units in a row,
backward has a reduce-scatter after each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence, Set
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.artefacts.fabric_file import FabricFile
from distprof.artefacts.record import grouped
from distprof.costs.operators import element_bytes
from distprof.run.run import Rank, Run
from distprof.run.tables import distinct, runs_of
from distprof.run.topology import Topology
from distprof.schema import ABSENT, Int64Array
from distprof.sections.context import RankAnalyses, RankAnalysis
from distprof.sections.sharding import (
    ShardedAxis,
    ShardingResult,
    SharedStream,
    TensorTraffic,
    Variable,
)
from distprof.terms import CollectiveKind, MeshAxis

_VARIABLES = ("CUDA_DEVICE_MAX_CONNECTIONS", "NCCL_")


def analyze_sharding(
    run: Run, analyses: RankAnalyses, profile: FabricFile | None = None
) -> ShardingResult:
    """Traffic of sharded parameters and tensor parallelism, and when it happens.

    Only the environment and device if no rank shards parameters or tensors. The profile provides
    the start-up time of a gather.

    Source:
        Formula sheet, "Volume per training step" (FSDP, TP).
    """
    traffic = [traffic_of(analyses[r.rank], r) for r in run.ranks if r.rank in analyses]
    if profile is not None and (profile.device == "cpu") != analyses.is_cpu:
        profile = None
    known = run.job.environment if run.job is not None else {}
    axes = sharded_axes(traffic, run.topology, profile)
    return ShardingResult(
        axes=axes,
        tensor=tensor_traffic(traffic),
        shared_streams=shared_streams(traffic, {axis.axis for axis in axes}),
        is_environment_known=run.job is not None,
        environment=tuple(
            Variable(name=name, value=value)
            for name, value in sorted(known.items())
            if name.startswith(_VARIABLES)
        ),
        device=run.ranks[0].device.name if run.ranks else "",
    )


# Collectives of one rank by axis, in launch order ----------------------

Flags = NDArray[np.bool_]

_OVERLAP_RATIO = 0.05

_FLOATS = {"float", "float32", "half", "float16", "bfloat16", "double", "float64"}
"""Element types of parameters and gradients. Bytes may be packed data of any type."""


class AxisRows:
    """Collectives of one rank along one axis inside its windows, in launch order.

    Columns are read from the rank's tables on access. ``elements`` is ABSENT if size or type is
    unknown, and ``wait_ns`` if members were not matched. ``among_kernels`` is empty on a CPU.
    """

    def __init__(
        self, analysis: RankAnalysis, rank: Rank, axis: str, rows: NDArray[np.int32]
    ) -> None:
        self._analysis, self._table, self._rows = analysis, rank.collectives, rows
        sizes = distinct(self._table["group_size"][rows])
        self.axis = axis
        self.group_size = int(sizes[0]) if len(sizes) == 1 and sizes[0] > 0 else None
        self.num_steps = len(analysis.steps)

    def of(self, *kinds: CollectiveKind) -> Flags:
        """Mask of the rows of these kinds."""
        return np.isin(self.kind, kinds)

    @property
    def kind(self) -> NDArray[np.int8]:
        """The CollectiveKind."""
        return self._table["kind"][self._rows]

    @cached_property
    def step(self) -> NDArray[Any]:
        """Index of the analysed window."""
        return self._analysis.collective_step[self._rows]

    @property
    def bytes(self) -> Int64Array:
        """Size of the full buffer."""
        return self._table["bytes"][self._rows]

    @cached_property
    def elements(self) -> Int64Array:
        """Number of elements of the full buffer."""
        dtype = self._table.coded("dtype")
        plain = [name.lower().removeprefix("c10::").removeprefix("torch.") for name in dtype.values]
        width = [(name in _FLOATS and element_bytes(name)) or 0 for name in plain] or [0]
        of_row = np.array(width, dtype=np.int64)[dtype.codes[self._rows]]
        size: Int64Array = self._table["bytes"][self._rows]
        return np.where((of_row > 0) & (size >= 0), size // np.maximum(of_row, 1), ABSENT)

    @property
    def duration_ns(self) -> Int64Array:
        """Time from start to end."""
        duration: Int64Array = (self._table["end_ns"] - self._table["start_ns"])[self._rows]
        return duration

    @property
    def hidden_ns(self) -> Int64Array:
        """Part of the duration that overlaps with computation."""
        return self._analysis.row_overlapped_ns[self._rows]

    @property
    def ahead(self) -> Flags:
        """Whether it began during computation or overlaps with it for a twentieth of its time."""
        during = self._analysis.row_begins_overlapped[self._rows]
        return during | (self.hidden_ns >= _OVERLAP_RATIO * self.duration_ns)

    @property
    def exposed_ns(self) -> Int64Array:
        """Exposed time."""
        return self._analysis.exposed.ns[self._rows]

    @property
    def wait_ns(self) -> Int64Array:
        """Part of the exposed time that is waiting."""
        return self._analysis.exposed.wait_ns[self._rows]

    @property
    def among_kernels(self) -> Flags:
        """Whether it runs on a compute stream."""
        among = self._analysis.row_among_kernels
        return among[self._rows] if len(among) else among


def traffic_of(analysis: RankAnalysis, rank: Rank) -> list[AxisRows]:
    """Traffic of one rank by axis; only axes with rows inside the windows."""
    table = rank.collectives
    if not len(table) or len(analysis.row_overlapped_ns) != len(table):
        return []
    enqueued = np.where(table["enqueue_ns"] == ABSENT, table["start_ns"], table["enqueue_ns"])
    inside = np.flatnonzero((analysis.collective_step >= 0) & table["is_timed"])
    enqueued = enqueued[inside]
    if (enqueued[1:] < enqueued[:-1]).any():
        inside = inside[np.argsort(enqueued, kind="stable")]
    inside = inside.astype(np.int32)  # held for all ranks at once
    axis = analysis.row_axis[inside]
    return [
        AxisRows(analysis, rank, analysis.row_axis_names[number], inside[axis == number])
        for number in range(len(analysis.row_axis_names))
        if (axis == number).any()
    ]


_LONG_RATIO = 0.6  # Length from which a run of gathers counts as forward, relative to the longest


class Passes(msgspec.Struct, frozen=True, kw_only=True):
    """How often a step gathers and reduces all parameters."""

    longest_run: int  # Largest number of gathers in a row.
    gathers: float | None  # Passes of gathers, by elements; None if types or sizes are unknown.
    # Passes of reduce-scatters; None if there are none or their number is unclear.
    scatters: int | None
    units: int | None  # Units per pass; None as for ``scatters``.


_NOTHING = Passes(longest_run=0, gathers=None, scatters=None, units=None)


def passes(rows: AxisRows) -> Passes:
    """Median passes of one rank's steps.

    Forward gathers unit after unit. In backward a reduce-scatter separates two gathers, or two
    pairs of them. So each long run of gathers is a forward. Without reduce-scatters in between
    (``no_sync``) several forwards form one run.
    """
    gathers = rows.of(CollectiveKind.ALL_GATHER)
    scatters = rows.of(CollectiveKind.REDUCE_SCATTER)
    either = np.flatnonzero(gathers | scatters)
    steps = [
        _passes_of_step(rows, gathers, either[rows.step[either] == step])
        for step in sorted(set(rows.step[either].tolist()))
    ]
    known = [step for step in steps if step.scatters is not None]
    if not known:
        return max(steps, key=lambda step: step.longest_run, default=_NOTHING)
    return sorted(known, key=lambda step: step.scatters or 0)[len(known) // 2]


def _passes_of_step(rows: AxisRows, gathers: Flags, order: NDArray[np.intp]) -> Passes:
    lengths = _runs(gathers[order])
    longest = max(lengths, default=0)
    num_scatters = int((~gathers[order]).sum())
    if not lengths or not num_scatters:
        return Passes(longest_run=longest, gathers=None, scatters=None, units=None)
    if longest > 1:
        scatters = sum(length >= _LONG_RATIO * longest for length in lengths)
    else:
        scatters = num_scatters if num_scatters == 1 else 0
    if not scatters or num_scatters % scatters:
        return Passes(longest_run=longest, gathers=None, scatters=None, units=None)
    gathered, scattered = (_amount(rows, order[mask]) for mask in (gathers[order], ~gathers[order]))
    ratio = gathered * scatters / scattered if gathered and scattered else None
    return Passes(
        longest_run=longest, gathers=ratio, scatters=scatters, units=num_scatters // scatters
    )


def _runs(gathers: Flags) -> list[int]:
    """Lengths of runs of gathers; the last run continues in the first, as steps repeat."""
    if gathers.all():
        return [len(gathers)] if len(gathers) else []
    turned = np.roll(gathers, -int(np.flatnonzero(~gathers)[0]))
    begins, lengths = runs_of(turned)
    return [int(length) for length in lengths[turned[begins]]]


def _amount(rows: AxisRows, chosen: NDArray[np.intp]) -> int:
    """Number of elements; 0 if one is unknown."""
    elements = rows.elements[chosen]
    return 0 if (elements < 0).any() else int(elements.sum())


_OTHERS = frozenset({MeshAxis.TP, MeshAxis.CP, MeshAxis.EP, MeshAxis.PP})
"""Collectives of these axes do not gather parameters."""

_DATA = frozenset({MeshAxis.DP, MeshAxis.DP_REPLICATE, MeshAxis.DP_SHARD})

_OVERLAPPABLE = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
)

_LEAST_RUN = 3
"""Gathers in a row that identify parameters if the axis does not: gathered activations (sequence
parallelism) are scattered again before the next ones."""


# Axes of parameters ------------------------------------------------------------------------------


def sharded_axes(
    traffic: Iterable[Sequence[AxisRows]], topology: Topology, profile: FabricFile | None
) -> tuple[ShardedAxis, ...]:
    """Axes along which parameters are sharded, most gathered bytes first."""
    by_axis: dict[str, list[AxisRows]] = defaultdict(list)
    for of_rank in traffic:
        for rows in of_rank:
            if rows.axis not in _OTHERS and rows.of(CollectiveKind.ALL_GATHER).any():
                by_axis[rows.axis].append(rows)
    found = [
        _axis(ranks, _spanned(topology, axis), profile)
        for axis, ranks in by_axis.items()
        if axis == MeshAxis.DP_SHARD or _shows_parameters(ranks[0])
    ]
    return tuple(sorted(found, key=lambda axis: -(axis.gather_bytes_per_step or 0)))


def _shows_parameters(rows: AxisRows) -> bool:
    """Whether gathers follow each other in a pattern that only parameters show."""
    passes_of = passes(rows)
    return passes_of.longest_run >= _LEAST_RUN and passes_of.scatters is not None


def _spanned(topology: Topology, axis: str) -> int | None:
    """The most nodes that a group of the axis spans; None if a group is not placed."""
    groups = [group for group in topology.groups if group.axis is not None and group.axis == axis]
    spanned = [topology.num_nodes_of(group) for group in groups]
    return None if None in spanned else max((number or 0 for number in spanned), default=None)


def _axis(
    ranks: Sequence[AxisRows], num_nodes: int | None, profile: FabricFile | None
) -> ShardedAxis:
    every = _Sums(ranks)
    gathers, scatters = every.of(CollectiveKind.ALL_GATHER), every.of(CollectiveKind.REDUCE_SCATTER)
    size = ranks[0].group_size
    of_first = passes(ranks[0])
    values = every.column(lambda rows: rows.bytes)[gathers]
    median = None if len(values) == 0 or (values < 0).any() else int(np.median(values))
    return ShardedAxis(
        axis=ranks[0].axis,
        group_size=size,
        num_nodes=num_nodes,
        gathers_per_step=every.count(gathers),
        gather_bytes_per_step=every.size(gathers),
        gather_bytes_median=median,
        scatters_per_step=every.count(scatters),
        scatter_bytes_per_step=every.size(scatters),
        gather_passes=of_first.gathers,
        scatter_passes=of_first.scatters,
        num_units=of_first.units,
        ahead_ratio=_ahead(every, gathers),
        gather_exposed_ns_per_step=every.exposed(gathers),
        gather_wait_ns_per_step=every.wait(gathers),
        scatter_exposed_ns_per_step=every.exposed(scatters),
        scatter_wait_ns_per_step=every.wait(scatters),
        latency_ns_per_gather=_latency(profile, size, num_nodes),
    )


def _latency(profile: FabricFile | None, size: int | None, num_nodes: int | None) -> int | None:
    if profile is None or size is None or num_nodes is None:
        return None
    from distprof.costs.fabric import expected_latency_ns  # only with a profile

    return expected_latency_ns(
        profile, CollectiveKind.ALL_GATHER, group_size=size, num_nodes=num_nodes
    )


def _ahead(every: _Sums, gathers: Flags) -> float | None:
    size = every.column(lambda rows: rows.bytes)[gathers]
    weight = np.ones(len(size)) if (size < 0).any() or not size.any() else size.astype(np.float64)
    return (
        float(weight[every.column(lambda rows: rows.ahead)[gathers]].sum() / weight.sum())
        if len(size)
        else None
    )


def shared_streams(
    traffic: Iterable[Sequence[AxisRows]], sharded: Set[str]
) -> tuple[SharedStream, ...]:
    """Data-parallel axes whose collectives run on compute streams, most exposed time first."""
    shared = [rows for of_rank in traffic for rows in of_rank if len(rows.among_kernels)]
    judged = (rows for rows in shared if rows.axis in _DATA or rows.axis in sharded)
    found = [_shared_stream(of) for of in grouped([(one.axis, one) for one in judged]).values()]
    kept = [one for one in found if one.per_step]
    return tuple(sorted(kept, key=lambda one: -one.exposed_ns_per_step))


def _shared_stream(ranks: Sequence[AxisRows]) -> SharedStream:
    every = _Sums(ranks)
    overlappable = np.logical_or.reduce([every.of(kind) for kind in _OVERLAPPABLE])
    among = overlappable & every.column(lambda rows: rows.among_kernels)
    return SharedStream(
        axis=ranks[0].axis,
        per_step=every.count(among),
        share_ratio=float(among.sum() / max(overlappable.sum(), 1)),
        exposed_ns_per_step=every.exposed(among),
        wait_ns_per_step=every.wait(among),
    )


# Tensor parallelism ------------------------------------------------------------------------------


def tensor_traffic(traffic: Iterable[Sequence[AxisRows]]) -> TensorTraffic | None:
    """Traffic along the tensor axis; None if there is none."""
    ranks = [rows for of_rank in traffic for rows in of_rank if rows.axis == MeshAxis.TP]
    if not ranks:
        return None
    every = _Sums(ranks)
    reduces = every.of(CollectiveKind.ALL_REDUCE)
    gathers, scatters = every.of(CollectiveKind.ALL_GATHER), every.of(CollectiveKind.REDUCE_SCATTER)
    pairs = gathers | scatters
    rows = reduces | pairs
    busy = int(every.column(lambda one: one.duration_ns)[rows].sum())
    hidden = int(every.column(lambda one: one.hidden_ns)[rows].sum())
    return TensorTraffic(
        group_size=ranks[0].group_size,
        all_reduces_per_step=every.count(reduces),
        all_reduce_bytes_per_step=every.size(reduces),
        all_reduce_exposed_ns_per_step=every.exposed(reduces),
        all_reduce_wait_ns_per_step=every.wait(reduces),
        all_gathers_per_step=every.count(gathers),
        reduce_scatters_per_step=every.count(scatters),
        pair_bytes_per_step=every.size(pairs),
        pair_exposed_ns_per_step=every.exposed(pairs),
        pair_wait_ns_per_step=every.wait(pairs),
        overlap_ratio=hidden / busy if busy else None,
    )


class _Sums:
    """Rows of all ranks of an axis, and their means over ranks and steps."""

    def __init__(self, ranks: Sequence[AxisRows]) -> None:
        self._ranks = ranks
        self._samples = max(sum(rows.num_steps for rows in ranks), 1)
        self._kind = self.column(lambda rows: rows.kind)

    def of(self, kind: CollectiveKind) -> Flags:
        """Mask of the rows of this kind."""
        mask: Flags = self._kind == kind
        return mask

    def column(self, of: Callable[[AxisRows], NDArray[Any]]) -> NDArray[Any]:
        """A column, concatenated over all ranks."""
        return np.concatenate([of(rows) for rows in self._ranks])

    def count(self, mask: Flags) -> float:
        """Number of rows per step."""
        return float(mask.sum() / self._samples)

    def size(self, mask: Flags) -> int | None:
        """Their bytes per step; None if one is unknown."""
        size = self.column(lambda rows: rows.bytes)[mask]
        return None if (size < 0).any() else int(size.sum()) // self._samples

    def exposed(self, mask: Flags) -> int:
        """Their exposed time per step."""
        return int(self.column(lambda rows: rows.exposed_ns)[mask].sum()) // self._samples

    def wait(self, mask: Flags) -> int | None:
        """Their exposed waiting per step; None unless most of them were matched."""
        wait = self.column(lambda rows: rows.wait_ns)[mask]
        known = wait[wait != ABSENT]
        if 2 * len(known) < len(wait) or not len(wait):
            return None
        return int(known.sum()) // self._samples
