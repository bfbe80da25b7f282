"""Measures the cost of collectives per class: transfer, waiting and bus bandwidth.

The transfer of an instance lasts from the start of its last member to its end. The wait of a member
lasts from its own start to the start of the last member (formula sheet, "Measured from traces").
Both need members matched across ranks on clocks that can be compared. The duration of a single
member is neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from distprof.artefacts.fabric_file import FabricFile
from distprof.costs.collectives import bus_factor
from distprof.costs.fabric import expected_busbw
from distprof.run.run import Rank, Run
from distprof.run.topology import GroupNames, ProcessGroup, Topology, is_unnamed
from distprof.schema import ABSENT, Coded, Int64Array, Table
from distprof.sections.collectives.result import CollectiveClass, CollectivesResult
from distprof.sections.collectives.rows import (
    rank_collective_step,
    rank_exposed_ns,
    rank_exposed_rows,
    rank_exposed_wait_ns,
    rank_row_among_kernels,
    rank_row_begins_beside,
    rank_row_hidden_ns,
)
from distprof.sections.collectives.trains import collective_trains, rank_trains
from distprof.sections.context import RankAnalyses, RankAnalysis
from distprof.sections.matched import Members, RowIndex, median_by_code, segment_median
from distprof.terms import CollectiveKind
from distprof.units import NS_PER_S, fold_ranks, format_bytes

__all__ = [
    "MAX_SIZES",
    "analyze_collectives",
    "name_of_group",
    "rank_collective_step",
    "rank_exposed_ns",
    "rank_exposed_rows",
    "rank_exposed_wait_ns",
    "rank_row_among_kernels",
    "rank_row_begins_beside",
    "rank_row_hidden_ns",
    "rank_trains",
    "with_expectations",
]

MAX_SIZES = 32
"""Above this number of sizes for one kind in one group, sizes are folded into powers of two."""


_ONE_SENDER = frozenset(
    {
        CollectiveKind.BROADCAST,
        CollectiveKind.REDUCE,
        CollectiveKind.SCATTER,
        CollectiveKind.GATHER,
    }
)
"""Kinds in which ranks of a group send different amounts."""


def analyze_collectives(
    run: Run, analyses: RankAnalyses, profile: FabricFile | None = None
) -> CollectivesResult:
    """The class table over the analysed steps, with the expectations of a fabric profile.

    Args:
        run: The recording.
        analyses: Per-rank analyses by rank; ranks without one are left out.
        profile: Profile of the machines of the run; None if there is none.

    Returns:
        Classes by exposed time, most first. ``unavailable`` says where waiting and transfer could
        not be separated.
    """
    result = _class_table(run, analyses)
    result = msgspec.structs.replace(
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
    unit = np.concatenate(
        [
            keys.encode(rank, size[low:high])
            for rank, low, high in zip(
                index.ranks, index.base[:-1].tolist(), index.base[1:].tolist(), strict=True
            )
        ]
    )
    keys.fold_sizes()
    class_code = np.asarray(keys.class_of_unit, dtype=np.int32)[unit]
    rows = _rows(index, analyses, class_code, unit, analyses.wait_ends, size)
    instances = _instances(rows, members)
    classes = _classes(run, keys, rows, instances, len(index.ranks) * max(num_steps, 1))
    return CollectivesResult(
        num_ranks=len(index.ranks),
        num_steps=num_steps,
        classes=tuple(sorted(classes, key=_most_exposed)),
        unavailable=_unavailable(rows),
    )


def _class_bytes(index: RowIndex, members: Members) -> Int64Array:
    """Bytes of each row; members of one all-to-all, which send unlike amounts, get their mean."""
    size: Int64Array = index.column(lambda rank: rank.collectives["bytes"]).copy()
    kind = index.column(lambda rank: rank.collectives["kind"])
    first = members.first_row
    uneven = np.flatnonzero((first >= 0) & (kind[first] == CollectiveKind.ALL_TO_ALL))
    lengths = np.diff(members.offsets)[uneven]
    if len(uneven) == 0:
        return size
    begin = np.cumsum(lengths) - lengths
    inside = np.arange(int(lengths.sum())) - np.repeat(begin - members.offsets[uneven], lengths)
    rows = members.row[inside]
    known = np.minimum.reduceat(size[rows], begin) >= 0
    mean = np.where(known, np.add.reduceat(size[rows], begin) // lengths, ABSENT)
    size[rows] = np.repeat(mean, lengths)
    return size


class _ClassKey(msgspec.Struct, frozen=True):
    """What makes two collectives comparable."""

    kind: int
    group: str
    group_size: int
    bytes: int  # of a folded class: the power of two


class _Keys:
    """Numbers classes, and units: one size within one concrete process group."""

    def __init__(self, names: GroupNames) -> None:
        self._names = names
        self.classes: dict[_ClassKey, int] = {}
        self.class_of_unit: list[int] = []
        self._units: dict[tuple[_ClassKey, str, str], int] = {}
        self._last: tuple[_Said, NDArray[np.int32]] | None = None

    def fold_sizes(self) -> None:
        """Number the classes; sizes that vary form one class per power of two."""
        sizes: dict[_ClassKey, set[int]] = {}
        for key, _, _ in self._units:
            sizes.setdefault(replace(key, bytes=0), set()).add(key.bytes)
        for key, _, _ in self._units:
            varies = key.bytes > 0 and len(sizes[replace(key, bytes=0)]) > MAX_SIZES
            folded = replace(key, bytes=1 << key.bytes.bit_length()) if varies else key
            self.class_of_unit.append(self.classes.setdefault(folded, len(self.classes)))

    def encode(self, rank: Rank, size: Int64Array) -> NDArray[np.int32]:
        """The unit of each COLLECTIVES row of a rank; ``size`` determines its class.

        Ranks of one group communicate alike: what the rank before said need not be looked at again.
        """
        said = _Said.of(rank.collectives, size)
        if self._last is None or not said.equals(self._last[0]):
            self._last = said, self._encoded(rank.collectives, said, size)
        return self._last[1]

    def _encoded(self, table: Table, said: _Said, size: Int64Array) -> NDArray[np.int32]:
        name, desc, ranks = said.groups
        first, inverse = _unique_rows(said.columns)
        units = [
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
            for i in first.tolist()
        ]
        return np.asarray(units, dtype=np.int32)[inverse]

    def _unit(self, key: _ClassKey, group: str, ranks: str) -> int:
        return self._units.setdefault((key, group, ranks), len(self._units))


class _Said(msgspec.Struct, frozen=True):
    """What a rank's rows say about their class: numbers, and groups by name."""

    numbers: tuple[NDArray[Any], ...]
    groups: tuple[Coded, ...]

    @staticmethod
    def of(table: Table, size: Int64Array) -> _Said:
        groups = tuple(table.coded(name) for name in ("group", "group_desc", "group_ranks"))
        return _Said((table["kind"], table["group_size"], size), groups)

    @property
    def columns(self) -> list[NDArray[Any]]:
        return [*self.numbers, *(group.codes for group in self.groups)]

    def equals(self, other: _Said) -> bool:
        pairs = zip(self.groups, other.groups, strict=True)
        return all(mine.values == theirs.values for mine, theirs in pairs) and all(
            map(np.array_equal, self.columns, other.columns)
        )


def group_label(name: str, description: str) -> str:
    """How a group is called in tables: its description, or its name where that says nothing."""
    return name if description in ("", "undefined") else description


def _unique_rows(columns: list[NDArray[np.generic]]) -> tuple[Int64Array, Int64Array]:
    """First position of each distinct row over columns, and for each row which one it is."""
    code = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values, inverse = np.unique(column, return_inverse=True)
        code = np.unique(code * max(len(values), 1) + inverse, return_inverse=True)[1]
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    return first.astype(np.int64), inverse.astype(np.int64)


class _Rows(msgspec.Struct, frozen=True, kw_only=True):
    """Per-row columns of all ranks; ``inside`` marks the analysed windows.

    The wait and the time after the last start mean something only where ``timed``, durations only
    where ``executed``.
    """

    rank_index: NDArray[np.int32]
    unit: NDArray[np.int32]
    class_code: NDArray[np.int32]
    bytes: Int64Array
    duration_ns: Int64Array
    wait_ns: Int64Array
    after_last_start_ns: Int64Array
    timed: NDArray[np.bool_]
    executed: NDArray[np.bool_]
    inside: NDArray[np.bool_]
    exposed_ns: Int64Array
    exposed_wait_ns: Int64Array
    is_receipt: NDArray[np.bool_]


def _rows(
    index: RowIndex,
    analyses: Mapping[int, RankAnalysis],
    class_code: NDArray[np.int32],
    unit: NDArray[np.int32],
    wait_ends: Mapping[int, Int64Array],
    size: Int64Array,
) -> _Rows:
    def duration(rank: Rank) -> Int64Array:
        lasted: Int64Array = rank.collectives["end_ns"] - rank.collectives["start_ns"]
        return lasted

    def wait(rank: Rank) -> Int64Array:
        waited = wait_ends[rank.rank] - rank.collectives["start_ns"]
        inside: Int64Array = np.clip(waited, 0, duration(rank))
        return inside

    def after(rank: Rank) -> Int64Array:
        return np.clip(rank.collectives["end_ns"] - wait_ends[rank.rank], 0, None)

    return _Rows(  # rank by rank: of all ranks, each array on the way would be as large as these
        rank_index=index.rank_index,
        unit=unit,
        class_code=class_code,
        bytes=size,
        duration_ns=index.column(duration),
        wait_ns=index.column(wait),
        after_last_start_ns=index.column(after),
        timed=index.column(lambda rank: wait_ends[rank.rank] != ABSENT),
        executed=index.column(lambda rank: rank.collectives["is_timed"]),
        inside=index.column(lambda rank: analyses[rank.rank].collective_step >= 0),
        exposed_ns=index.column(lambda rank: analyses[rank.rank].exposed_ns),
        exposed_wait_ns=index.column(lambda rank: analyses[rank.rank].exposed_wait_ns),
        is_receipt=index.column(lambda rank: rank.collectives["kind"] == CollectiveKind.RECV),
    )


class _Instances(msgspec.Struct, frozen=True, kw_only=True):
    """Matched instances inside the analysed windows.

    ``matched_row`` marks the rows that belong to any instance, ``received`` holds the classes of
    the receiving ends of messages.
    """

    class_code: NDArray[np.int32]
    received: NDArray[np.int32]
    transfer_ns: Int64Array
    timed: NDArray[np.bool_]
    matched_row: NDArray[np.bool_]


def _instances(rows: _Rows, members: Members) -> _Instances:
    matched_row = np.zeros(len(rows.unit), dtype=np.bool_)
    matched_row[members.row] = True
    first = members.first_row
    some_inside = _any_member(rows.inside, members)
    all_timed = ~_any_member(~rows.timed, members)
    keep = some_inside & (first >= 0)
    transfer = segment_median(rows.after_last_start_ns[members.row], members.offsets)
    last = members.row[np.maximum(members.offsets[1:] - 1, 0)][keep]
    code = rows.class_code[first[keep]]
    other_end = rows.class_code[last]
    return _Instances(
        class_code=code,
        received=other_end[rows.is_receipt[last]],
        transfer_ns=transfer[keep],
        timed=all_timed[keep],
        matched_row=matched_row,
    )


def _any_member(flag: NDArray[np.bool_], members: Members) -> NDArray[np.bool_]:
    """Whether any member of each instance has the flag."""
    hits = np.concatenate(([0], np.cumsum(flag[members.row])))
    some: NDArray[np.bool_] = np.diff(hits[members.offsets]) > 0
    return some


def _classes(
    run: Run, keys: _Keys, rows: _Rows, instances: _Instances, samples: int
) -> list[CollectiveClass]:
    """One record per class; ``samples`` is ranks times steps."""
    columns = _class_columns(keys, rows, instances, samples)
    axes, nodes = _axes(run), _nodes_spanned(run.topology)
    # A class seen only outside the analysed windows is left out.
    return [
        _record(
            key,
            axes.get(key.group),
            nodes.get(key.group),
            {name: values[code] for name, values in columns.items()},
        )
        for key, code in keys.classes.items()
        if columns["num_rows"][code]
    ]


def _class_columns(
    keys: _Keys, rows: _Rows, instances: _Instances, samples: int
) -> dict[str, Sequence[Any]]:
    """Values of every class, by name."""
    num = len(keys.classes)
    code, inside, timed = rows.class_code, rows.inside, rows.inside & rows.timed
    executed = inside & rows.executed
    has_times = np.bincount(code[executed], minlength=num) > 0
    usable = instances.timed
    ends = np.concatenate((instances.class_code, instances.received))
    matched = np.bincount(ends, minlength=num)
    unmatched = _unmatched_count(keys, rows, ~instances.matched_row & inside)
    waiting = timed & (rows.exposed_wait_ns >= 0)
    transfer_of_row = rows.duration_ns - rows.wait_ns
    return {
        "bytes": median_by_code(code[inside], rows.bytes[inside], num),
        "count": (matched + unmatched).tolist(),
        "matched": matched.tolist(),
        "num_rows": np.bincount(code[inside], minlength=num).tolist(),
        "duration": median_by_code(code[executed], rows.duration_ns[executed], num),
        "wait": median_by_code(code[timed], rows.wait_ns[timed], num),
        "transfer": median_by_code(
            instances.class_code[usable], instances.transfer_ns[usable], num
        ),
        "has_times": has_times.tolist(),
        "bytes_mean": _mean_bytes(code, rows.bytes, inside, num, samples),
        "exposed_mean": _mean(code, rows.exposed_ns, executed, num, samples),
        "wait_mean": _mean(code, rows.wait_ns, timed, num, samples),
        "transfer_mean": _mean(code, transfer_of_row, timed, num, samples),
        "exposed_wait_mean": _mean(code, rows.exposed_wait_ns, waiting, num, samples),
    }


def _record(
    key: _ClassKey, axis: str | None, num_nodes: int | None, of: Mapping[str, Any]
) -> CollectiveClass:
    is_split = of["transfer"] is not None
    algbw = _bandwidth(of["bytes"], of["transfer"])
    factor = _factor(key)
    return CollectiveClass(
        kind=CollectiveKind(key.kind).label,
        group=key.group,
        group_size=_present(key.group_size),
        axis=axis,
        bytes=_present(of["bytes"]),
        count=of["count"],
        num_matched=of["matched"],
        duration_ns_median=of["duration"],
        transfer_ns_median=of["transfer"],
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
    """Bytes that a rank sends per step; None where the size, the group or the algorithm is open."""
    kind = CollectiveKind(key.kind)
    if kind is CollectiveKind.RECV:
        return 0.0
    if bytes_per_step is None or kind in _ONE_SENDER:
        return None
    if kind is CollectiveKind.SEND:
        return bytes_per_step
    factor = _factor(key)
    return None if factor is None else factor * bytes_per_step


def _mean(
    codes: NDArray[np.int32],
    values: Int64Array,
    chosen: NDArray[np.bool_],
    num_codes: int,
    samples: int,
) -> list[int]:
    """Sum of the chosen values of each code over ``samples``, exact in int64."""
    sums = np.zeros(num_codes, dtype=np.int64)
    np.add.at(sums, codes[chosen], values[chosen])
    return [int(value) // samples for value in sums]


def _mean_bytes(
    codes: NDArray[np.int32],
    values: Int64Array,
    chosen: NDArray[np.bool_],
    num_codes: int,
    samples: int,
) -> list[float | None]:
    """Sum of the bytes of each code over ``samples``; None where some are not known."""
    unknown = np.bincount(codes[chosen & (values < 0)], minlength=num_codes) > 0
    sums = np.zeros(num_codes, dtype=np.int64)
    np.add.at(sums, codes[chosen], np.maximum(values[chosen], 0))
    return [None if u else total / samples for u, total in zip(unknown, sums.tolist(), strict=True)]


def _unmatched_count(keys: _Keys, rows: _Rows, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Instances known from one rank's row alone: in each group, as many as its busiest rank saw."""
    num_units = len(keys.class_of_unit)
    pairs = rows.rank_index[chosen].astype(np.int64) * num_units + rows.unit[chosen]
    distinct, seen = np.unique(pairs, return_counts=True)
    busiest = np.zeros(num_units, dtype=np.int64)
    np.maximum.at(busiest, distinct % num_units, seen)
    result = np.zeros(len(keys.classes), dtype=np.int64)
    np.add.at(result, np.asarray(keys.class_of_unit), busiest)
    return result


def _axes(run: Run) -> dict[str, str]:
    """Mesh axis by group label, where known."""
    names = GroupNames(run.topology.groups)
    return {
        name_of_group(group, names): group.axis.value
        for group in run.topology.groups
        if group.axis is not None
    }


def _nodes_spanned(topology: Topology) -> dict[str, int]:
    """By group label, the most nodes that a group spans; left out where some node is unknown."""
    node_of = {rank: node for node, ranks in topology.nodes.items() for rank in ranks}
    found: dict[str, int] = {}
    unknown = set()
    names = GroupNames(topology.groups)
    for group in topology.groups:
        label = name_of_group(group, names)
        nodes = {node_of.get(rank) for rank in group.ranks}
        if not nodes or None in nodes:
            unknown.add(label)
        else:
            found[label] = max(found.get(label, 0), len(nodes))
    return {label: count for label, count in found.items() if label not in unknown}


def name_of_group(group: ProcessGroup, names: GroupNames) -> str:
    """How the classes call a group: its description, else its ranks, else torch's name."""
    known = names.of(group.name, fold_ranks(group.ranks)) if is_unnamed(group) else ""
    return known or group_label(group.name, group.description)


def _bandwidth(num_bytes: int, transfer_ns: int | None) -> float | None:
    if num_bytes <= 0 or not transfer_ns:
        return None
    return num_bytes * NS_PER_S / transfer_ns


def _factor(key: _ClassKey) -> float | None:
    """Bus factor for the size of the group, never for the world size."""
    if key.group_size < 2:
        return None
    return bus_factor(CollectiveKind(key.kind), key.group_size)


def _present(value: int) -> int | None:
    return None if value == ABSENT else value


def _most_exposed(record: CollectiveClass) -> tuple[int, int, str, str, int]:
    """Sorting key: exposed time, then total time, then names, which makes the order stable."""
    total = (record.duration_ns_median or 0) * record.count
    exposed = record.exposed_ns_per_step or 0
    return (-exposed, -total, record.kind, record.group, record.bytes or 0)


def _unavailable(rows: _Rows) -> tuple[str, ...]:
    lacks = []
    posted = int((rows.inside & ~rows.executed).sum())
    if posted:
        lacks.append(
            f"the transfer time of {posted:,} sends and receives is not recorded: gloo only shows "
            "when they were posted, and when a rank was blocked in one"
        )
    inside = int((rows.inside & rows.executed).sum())
    timed = int((rows.inside & rows.executed & rows.timed).sum())
    if inside != timed:
        share = "none" if timed == 0 else f"only {timed} of {inside}"
        lacks.append(
            f"waiting and transfer are separated for {share} of the collectives: the others have "
            "no partner among the recorded ranks, or clocks that cannot be compared"
        )
    return tuple(lacks)


# The bus bandwidth that each class of collectives should reach, from a fabric profile -----------

_FEW = 3


def with_expectations(
    result: CollectivesResult, profile: FabricFile, *, is_cpu: bool
) -> CollectivesResult:
    """The classes with the bandwidth that the profile expects; None for those it does not cover.

    Args:
        result: The class table.
        profile: Profile of the machines of the run, according to the user.
        is_cpu: Whether the ranks of the run were CPUs: a profile of GPUs says nothing about them.

    Returns:
        The table; ``unavailable`` lists classes with a bandwidth that the profile does not cover.
    """
    if (profile.device == "cpu") != is_cpu:
        measured, ran = ("CPUs", "GPUs") if not is_cpu else ("GPUs", "CPUs")
        why = f"the fabric profile is not used: it was measured on {measured}, the run on {ran}"
        return msgspec.structs.replace(result, unavailable=(*result.unavailable, why))
    classes = tuple(_expecting(record, profile) for record in result.classes)
    missed = [
        record
        for record in classes
        if record.busbw_bytes_per_s is not None and record.expected_busbw_bytes_per_s is None
    ]
    return msgspec.structs.replace(
        result,
        classes=classes,
        unavailable=(*result.unavailable, *([_missed(missed)] if missed else [])),
    )


def _expecting(record: CollectiveClass, profile: FabricFile) -> CollectiveClass:
    if record.group_size is None or record.bytes is None or record.num_nodes is None:
        return record
    expected = expected_busbw(
        profile,
        CollectiveKind[record.kind.upper()],
        group_size=record.group_size,
        num_nodes=record.num_nodes,
        num_bytes=record.bytes,
    )
    return msgspec.structs.replace(record, expected_busbw_bytes_per_s=expected)


def _missed(records: Sequence[CollectiveClass]) -> str:
    names = [
        f"{record.kind} of {format_bytes(record.bytes)} over {record.group_size} ranks"
        for record in records[:_FEW]
    ]
    more = f" and {len(records) - _FEW} more" if len(records) > _FEW else ""
    return f"the fabric profile does not cover {', '.join(names)}{more}"
