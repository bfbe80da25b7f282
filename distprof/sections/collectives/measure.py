"""Measures the cost of collectives per class: transfer, waiting and bus bandwidth.

The transfer of an instance lasts from the start of its last member to its end. The wait of a member
lasts from its own start to the start of the last member (formula sheet, "Measured from traces").
Both need members matched across ranks on clocks that can be compared. The duration of a single
member is neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from distprof.artefacts.fabric_file import FabricFile
from distprof.artefacts.record import grouped
from distprof.costs.collectives import bus_factor
from distprof.costs.fabric import expected_busbw
from distprof.join.waits import blocks_of, positions_by_code, spans
from distprof.run.run import Rank, Run
from distprof.run.tables import DistinctRows, encode
from distprof.run.topology import GroupNames, ProcessGroup, Topology, is_unnamed
from distprof.schema import ABSENT, Coded, Int64Array, Table
from distprof.sections.collectives import CollectiveClass, CollectivesResult
from distprof.sections.collectives.rows import (  # noqa: F401 - parts of a rank
    collective_trains,
    rank_collective_step,
    rank_exposed,
    rank_row_among_kernels,
    rank_row_begins_overlapped,
    rank_row_overlapped_ns,
    rank_trains,
)
from distprof.sections.context import RankAnalyses
from distprof.sections.matched import Members, RowIndex, median_by_code, segment_median
from distprof.terms import CollectiveKind
from distprof.units import NS_PER_S, few_names, fold_ranks, format_bytes

MAX_SIZES = 32
"""Above this number of sizes for one kind in one group, sizes are folded into powers of two."""


_ONE_SENDER = (
    CollectiveKind.BROADCAST,
    CollectiveKind.REDUCE,
    CollectiveKind.SCATTER,
    CollectiveKind.GATHER,
)
"""Kinds in which ranks of a group send different amounts."""


def analyze_collectives(
    run: Run, analyses: RankAnalyses, profile: FabricFile | None = None
) -> CollectivesResult:
    """Aggregate collectives per class over the analysed steps, with expectations from a profile."""
    result = _class_table(run, analyses)
    result = replace(
        result,
        trains=collective_trains(
            ((analysis.rank, analysis.trains) for analysis in analyses.values()),
            result.num_ranks * result.num_steps,
        ),
    )
    if profile is None:
        return result
    return with_expectations(result, profile, is_cpu=analyses.is_cpu)


def _class_table(run: Run, analyses: RankAnalyses) -> CollectivesResult:
    index = RowIndex.of(run, analyses)
    num_steps = max((len(analyses[rank.rank].steps) for rank in index.ranks), default=0)
    if len(index) == 0:
        why = ("no collective was recorded",) if index.ranks else ("no rank was analysed",)
        return CollectivesResult(
            num_ranks=len(index.ranks), num_steps=num_steps, classes=(), unavailable=why
        )
    keys = _Keys(GroupNames(run.topology.groups))
    members = index.members(run.matches)
    size = _class_bytes(index, members)
    unit = np.concatenate([keys.encode(rank, size(rank)) for rank in index.ranks])
    keys.fold_sizes()
    class_code = np.asarray(keys.class_of_unit, dtype=np.int32)[unit]
    rows = _Rows(index, analyses, class_code, unit)
    matched_row = np.zeros(len(rows.unit), dtype=np.bool_)
    for span in spans(len(members.row)):
        matched_row[members.row[span]] = True
    first = members.first_row
    some_inside = _any_member(rows.inside, members)
    all_timed = ~_any_member(~rows.timed, members)
    keep = some_inside & (first >= 0)
    transfer = segment_median(index.column(rows.after_last_start_of), members.offsets, members.row)
    last = members.row[np.maximum(members.offsets[1:] - 1, 0)][keep]
    code = rows.class_code[first[keep]]
    other_end = rows.class_code[last]
    instances = _Instances(
        class_code=code,
        received=other_end[rows.is_receipt[last]],
        transfer_ns=transfer[keep],
        timed=all_timed[keep],
        matched_row=matched_row,
    )
    samples = len(index.ranks) * max(num_steps, 1)
    classes = _classes(run, analyses, keys, rows, instances, size, samples)
    return CollectivesResult(
        num_ranks=len(index.ranks),
        num_steps=num_steps,
        classes=tuple(sorted(classes, key=_most_exposed)),
        unavailable=tuple(_unavailable(rows)),
    )


_OfRank: TypeAlias = "Callable[[Rank], NDArray[Any]]"  # A column of a rank's COLLECTIVES rows


def _class_bytes(index: RowIndex, members: Members) -> _OfRank:
    """Bytes of each row. Members of an all-to-all may send different amounts: they get the mean."""
    kind = index.column(lambda rank: rank.collectives["kind"])
    first = members.first_row
    uneven = np.flatnonzero((first >= 0) & (kind[first] == CollectiveKind.ALL_TO_ALL))
    if len(uneven) == 0:
        return lambda rank: rank.collectives["bytes"]
    size: Int64Array = index.column(lambda rank: rank.collectives["bytes"]).copy()
    lengths = np.diff(members.offsets)[uneven]
    begin = np.cumsum(lengths) - lengths
    inside = np.arange(int(lengths.sum())) - np.repeat(begin - members.offsets[uneven], lengths)
    rows = members.row[inside]
    known = np.minimum.reduceat(size[rows], begin) >= 0
    mean = np.where(known, np.add.reduceat(size[rows], begin) // lengths, ABSENT)
    size[rows] = np.repeat(mean, lengths)
    parts = np.split(size, index.base[1:-1])
    of_rank = {rank.rank: part for rank, part in zip(index.ranks, parts, strict=True)}
    return lambda rank: of_rank[rank.rank]


class _ClassKey(msgspec.Struct, frozen=True):
    """Collectives with equal keys are comparable."""

    kind: int
    group: str
    group_size: int
    bytes: int  # if sizes are folded: the power of two above


class _Keys:
    """Numbers classes and units. A unit is one size within one concrete process group."""

    def __init__(self, names: GroupNames) -> None:
        self._names = names
        self.classes: dict[_ClassKey, int] = {}
        self.class_of_unit: list[int] = []
        self._units: dict[tuple[_ClassKey, str, str], int] = {}
        self._rows = DistinctRows()
        self._last: tuple[Int64Array, tuple[Coded, ...], NDArray[np.int32]] | None = None

    def fold_sizes(self) -> None:
        """Number the classes. If sizes vary, they form one class per power of two."""
        sizes: dict[_ClassKey, set[int]] = {}
        for key, _, _ in self._units:
            sizes.setdefault(replace(key, bytes=0), set()).add(key.bytes)
        for key, _, _ in self._units:
            varies = key.bytes > 0 and len(sizes[replace(key, bytes=0)]) > MAX_SIZES
            folded = replace(key, bytes=1 << key.bytes.bit_length()) if varies else key
            self.class_of_unit.append(self.classes.setdefault(folded, len(self.classes)))

    def encode(self, rank: Rank, size: Int64Array) -> NDArray[np.int32]:
        """Unit of each COLLECTIVES row of a rank. ``size`` is the size that decides its class."""
        table = rank.collectives
        groups = tuple(table.coded(name) for name in ("group", "group_desc", "group_ranks"))
        numbers = (table["kind"], table["group_size"], size)
        first, code = self._rows.of([*numbers, *(group.codes for group in groups)])
        last = self._last
        if last is None or last[0] is not code or _values(last[1]) != _values(groups):
            units = self._units_at(first, table, groups, size)
            self._last = last = code, groups, np.asarray(units, dtype=np.int32)[code]
        return last[2]

    def _units_at(
        self, rows: Int64Array, table: Table, groups: tuple[Coded, ...], size: Int64Array
    ) -> list[int]:
        name, desc, ranks = groups
        return [
            self._unit(
                _ClassKey(
                    kind=int(table["kind"][i]),
                    group=self._names.of(name.values[name.codes[i]], ranks.values[ranks.codes[i]])
                    or group_label(name.values[name.codes[i]], desc.values[desc.codes[i]]),
                    group_size=int(table["group_size"][i]),
                    bytes=int(size[i]),
                ),
                name.values[name.codes[i]],
                ranks.values[ranks.codes[i]],
            )
            for i in rows.tolist()
        ]

    def _unit(self, key: _ClassKey, group: str, ranks: str) -> int:
        return self._units.setdefault((key, group, ranks), len(self._units))


def _values(groups: tuple[Coded, ...]) -> tuple[tuple[str, ...], ...]:
    return tuple(group.values for group in groups)


def group_label(name: str, description: str) -> str:
    """Name of a group in tables: its description, or its own name without a useful description."""
    return name if description in ("", "undefined") else description


class _Rows:
    """All ranks' rows; ``inside`` marks the analysed windows.

    The wait and the time after the last start are valid only where ``timed``, durations only where
    ``executed``. Time columns are built on demand: all of them at once would take 50 bytes per row.
    """

    def __init__(
        self,
        index: RowIndex,
        analyses: RankAnalyses,
        class_code: NDArray[np.int32],
        unit: NDArray[np.int32],
    ) -> None:
        self.index, self._wait_ends = index, analyses.wait_ends
        self.class_code, self.unit = class_code, unit
        self.timed = index.column(lambda rank: analyses.wait_ends[rank.rank] != ABSENT)
        self.executed = index.column(lambda rank: rank.collectives["is_timed"])
        self.inside = index.column(lambda rank: analyses[rank.rank].collective_step >= 0)
        self.is_receipt = index.column(lambda rank: rank.collectives["kind"] == CollectiveKind.RECV)

    def duration_of(self, rank: Rank) -> Int64Array:
        """From start to end."""
        duration: Int64Array = rank.collectives["end_ns"] - rank.collectives["start_ns"]
        return duration

    def wait_of(self, rank: Rank) -> Int64Array:
        """From the row's start to the start of the last member."""
        wait = self._wait_ends[rank.rank] - rank.collectives["start_ns"]
        np.maximum(wait, 0, out=wait)
        clipped: Int64Array = np.minimum(wait, self.duration_of(rank), out=wait)
        return clipped

    def transfer_of(self, rank: Rank) -> Int64Array:
        """Duration without the wait."""
        return self.duration_of(rank) - self.wait_of(rank)

    def after_last_start_of(self, rank: Rank) -> Int64Array:
        """From the last member's start to the row's end."""
        return np.maximum(rank.collectives["end_ns"] - self._wait_ends[rank.rank], 0)

    @cached_property
    def by_class(self) -> list[NDArray[Any]]:
        """Rows of each class."""
        return positions_by_code(self.class_code)

    def of_classes(self, of: _OfRank, chosen: NDArray[np.bool_]) -> Iterator[Int64Array]:
        """The chosen values of each class, from a column of each rank."""
        values = self.index.column(of)
        every = bool(chosen.all())
        for of_class in self.by_class:
            yield values[of_class if every else of_class[chosen[of_class]]]

    def medians(self, of: _OfRank, chosen: NDArray[np.bool_]) -> list[int | None]:
        """Median of the chosen values of each class, rounded down; None without chosen values."""
        return [
            int(np.median(values, overwrite_input=True)) if len(values) else None
            for values in self.of_classes(of, chosen)
        ]

    def means(self, of: _OfRank, chosen: NDArray[np.bool_], samples: int) -> list[int]:
        """Sum of the chosen values of each class, divided by ``samples``; exact in int64."""
        return [int(values.sum()) // samples for values in self.of_classes(of, chosen)]


class _Instances(msgspec.Struct, frozen=True, kw_only=True):
    """Matched instances inside the analysed windows.

    ``matched_row`` marks the rows that belong to an instance. ``received`` holds the classes of the
    receiving ends of messages.
    """

    class_code: NDArray[np.int32]
    received: NDArray[np.int32]
    transfer_ns: Int64Array
    timed: NDArray[np.bool_]
    matched_row: NDArray[np.bool_]


def _any_member(flag: NDArray[np.bool_], members: Members) -> NDArray[np.bool_]:
    some = np.zeros(members.count, np.bool_)
    for low, high in blocks_of(members.offsets):
        begin = members.offsets[low : high + 1]
        hits = np.cumsum(flag[members.row[begin[0] : begin[-1]]])
        some[low:high] = np.diff(np.concatenate(([0], hits))[begin - begin[0]]) > 0
    return some


def _classes(
    run: Run,
    analyses: RankAnalyses,
    keys: _Keys,
    rows: _Rows,
    instances: _Instances,
    size: _OfRank,
    samples: int,
) -> list[CollectiveClass]:
    """One record per class; ``samples`` is ranks times steps."""
    num = len(keys.classes)
    inside, timed = rows.inside, rows.inside & rows.timed
    executed, usable = inside & rows.executed, instances.timed
    ends = np.concatenate((instances.class_code, instances.received))
    matched = np.bincount(ends, minlength=num)

    def exposed_wait_of(rank: Rank) -> Int64Array:
        return analyses[rank.rank].exposed.wait_ns

    matched_wait = timed & (rows.index.column(exposed_wait_of) >= 0)
    columns: dict[str, Sequence[Any]] = {
        "bytes": rows.medians(size, inside),
        "bytes_mean": [
            None if (values < 0).any() else int(values.sum()) / samples
            for values in rows.of_classes(size, inside)
        ],
        "count": (matched + _unmatched(keys, rows, ~instances.matched_row & inside)).tolist(),
        "matched": matched.tolist(),
        "num_rows": [int(np.count_nonzero(inside[chosen])) for chosen in rows.by_class],
        "has_times": [bool(executed[chosen].any()) for chosen in rows.by_class],
        "wait": rows.medians(rows.wait_of, timed),
        "wait_mean": rows.means(rows.wait_of, timed, samples),
        "transfer": median_by_code(
            instances.class_code[usable], instances.transfer_ns[usable], num
        ),
        "exposed_wait_mean": rows.means(exposed_wait_of, matched_wait, samples),
        "duration": rows.medians(rows.duration_of, executed),
        "exposed_mean": rows.means(lambda rank: analyses[rank.rank].exposed.ns, executed, samples),
        "transfer_mean": rows.means(rows.transfer_of, timed, samples),
    }
    names = GroupNames(run.topology.groups)
    axes = {
        name_of_group(group, names): group.axis.value
        for group in run.topology.groups
        if group.axis is not None
    }
    nodes = _nodes_spanned(run.topology)
    return [
        _record(
            key,
            axes.get(key.group),
            nodes.get(key.group),
            {name: values[code] for name, values in columns.items()},
        )
        for key, code in keys.classes.items()
        if columns["num_rows"][code]  # a class seen only outside the analysed windows is left out
    ]


def _unmatched(keys: _Keys, rows: _Rows, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Unmatched instances of each class: in each group, the most chosen rows of any rank."""
    busiest = np.zeros(len(keys.class_of_unit), dtype=np.int64)
    result = np.zeros(len(keys.classes), dtype=np.int64)
    if chosen.any():
        for low, high in pairwise(rows.index.base.tolist()):
            units, code = encode(rows.unit[low:high][chosen[low:high]])
            busiest[units] = np.maximum(busiest[units], np.bincount(code, minlength=len(units)))
    np.add.at(result, np.asarray(keys.class_of_unit), busiest)
    return result


def _record(
    key: _ClassKey, axis: str | None, num_nodes: int | None, of: Mapping[str, Any]
) -> CollectiveClass:
    size, transfer, factor = of["bytes"], of["transfer"], _factor(key)
    algbw = size * NS_PER_S / transfer if size > 0 and transfer else None
    is_split = transfer is not None
    return CollectiveClass(
        kind=CollectiveKind(key.kind).label,
        group=key.group,
        group_size=None if key.group_size == ABSENT else key.group_size,
        axis=axis,
        bytes=None if size == ABSENT else size,
        count=of["count"],
        num_matched=of["matched"],
        duration_ns_median=of["duration"],
        transfer_ns_median=transfer,
        wait_ns_median=of["wait"] if is_split else None,
        wait_ns_per_step=of["wait_mean"] if is_split else None,
        transfer_ns_per_step=of["transfer_mean"] if is_split else None,
        exposed_ns_per_step=of["exposed_mean"] if of["has_times"] else None,
        exposed_wait_ns_per_step=of["exposed_wait_mean"] if is_split else None,
        algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=algbw * factor if algbw and factor else None,
        expected_busbw_bytes_per_s=None,
        sent_bytes_per_step=_sent_bytes(key, of["bytes_mean"]),
        num_nodes=num_nodes,
    )


def _sent_bytes(key: _ClassKey, bytes_per_step: float | None) -> float | None:
    """Bytes that a rank sends per step; None if they are unknown or differ between ranks."""
    kind = CollectiveKind(key.kind)
    if kind is CollectiveKind.RECV:
        return 0.0
    if bytes_per_step is None or kind in _ONE_SENDER:
        return None
    if kind is CollectiveKind.SEND:
        return bytes_per_step
    factor = _factor(key)
    return None if factor is None else factor * bytes_per_step


def _nodes_spanned(topology: Topology) -> dict[str, int]:
    """Largest number of nodes per group label; labels with an unknown node are left out."""
    names = GroupNames(topology.groups)
    spanned = grouped(
        [(name_of_group(group, names), topology.num_nodes_of(group)) for group in topology.groups]
    )
    return {name: max(n or 0 for n in of) for name, of in spanned.items() if None not in of}


def name_of_group(group: ProcessGroup, names: GroupNames) -> str:
    """Name of a group in the class table: its description, else its ranks, else torch's name."""
    by_ranks = names.of(group.name, fold_ranks(group.ranks)) if is_unnamed(group) else ""
    return by_ranks or group_label(group.name, group.description)


def _factor(key: _ClassKey) -> float | None:
    """Bus factor of the group size, never of the world size."""
    if key.group_size < 2:
        return None
    return bus_factor(CollectiveKind(key.kind), key.group_size)


def _most_exposed(record: CollectiveClass) -> tuple[int, int, str, str, int]:
    """Sort key: exposed time, then total time, then names for a stable order."""
    total = (record.duration_ns_median or 0) * record.count
    exposed = record.exposed_ns_per_step or 0
    return (-exposed, -total, record.kind, record.group, record.bytes or 0)


def _unavailable(rows: _Rows) -> Iterator[str]:
    posted = int((rows.inside & ~rows.executed).sum())
    if posted:
        yield (
            f"the transfer time of {posted:,} sends and receives is not recorded: gloo only shows "
            "when they were posted and when a rank blocked in one"
        )
    inside = int((rows.inside & rows.executed).sum())
    timed = int((rows.inside & rows.executed & rows.timed).sum())
    if inside != timed:
        share = "no collective" if timed == 0 else f"only {timed} of {inside} collectives"
        yield (
            f"waiting and transfer are separated for {share}: the others have no partner among the "
            "recorded ranks, or clocks that cannot be compared"
        )


# The bus bandwidth that each class of collectives should reach, from a fabric profile -----------

_MAX_NAMED = 3


def with_expectations(
    result: CollectivesResult, profile: FabricFile, *, is_cpu: bool
) -> CollectivesResult:
    """Add the bus bandwidth that the profile expects; None for classes that it does not cover.

    A profile of GPUs says nothing about ranks that computed on CPUs, nor the reverse.
    ``unavailable`` lists classes with a bandwidth that the profile does not cover.
    """
    if not profile.curves:  # measured with --compute
        return result
    if (profile.device == "cpu") != is_cpu:
        measured, ran = ("CPUs", "GPUs") if not is_cpu else ("GPUs", "CPUs")
        why = f"the fabric profile is not used: it was measured on {measured}, the run used {ran}"
        return replace(result, unavailable=(*result.unavailable, why))
    classes = tuple(_with_expectation(record, profile) for record in result.classes)
    not_covered = [
        record
        for record in classes
        if record.busbw_bytes_per_s is not None and record.expected_busbw_bytes_per_s is None
    ]
    return replace(
        result,
        classes=classes,
        unavailable=(
            *result.unavailable,
            *([_not_covered_text(not_covered)] if not_covered else []),
        ),
    )


def _with_expectation(record: CollectiveClass, profile: FabricFile) -> CollectiveClass:
    if record.group_size is None or record.bytes is None or record.num_nodes is None:
        return record
    expected = expected_busbw(
        profile,
        CollectiveKind[record.kind.upper()],
        group_size=record.group_size,
        num_nodes=record.num_nodes,
        num_bytes=record.bytes,
    )
    return replace(record, expected_busbw_bytes_per_s=expected)


def _not_covered_text(records: Sequence[CollectiveClass]) -> str:
    names = [
        f"{record.kind} of {format_bytes(record.bytes)} over {record.group_size} ranks"
        for record in records
    ]
    return f"the fabric profile does not cover {few_names(names, _MAX_NAMED)}"
