"""Joining the Flight Recorder with a trace of gloo: which group each operator asked.

The recorder stamps a collective while its ``c10d::`` operator runs, on the same clock as the trace;
kind and size must agree too. An operation that gloo executes is on a thread of its group: threads
are told by the sizes that only one group has, and by which group asked right before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distprof.ingest.job.flight import FlightEntries
from distprof.run.codes import distinct
from distprof.schema import ABSENT, Coded, Int64Array, Table

__all__ = ["Asked", "groups_of_threads", "with_groups"]

TOLERANCE_NS = 20_000
"""Stamps of trace and recorder agree within 8 µs (torch 2.13, gloo)."""

_CLEAR = 2.0  # how much longer after another group's request than after its own
_MIN_RUNS = 4  # fewer may follow another group's requests by chance
_MOSTLY = 0.5  # requests over executions: the first ones may have been asked for before the capture


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Operators that ask for a collective, in order of start.

    Args:
        rows: int64, rows of COMM_ARGS.
        kind: int8, a CollectiveKind as executed.
        elements: int64, of the input, ABSENT where unknown.
    """

    rows: Int64Array
    kind: NDArray[np.int8]
    elements: Int64Array


def with_groups(comm_args: Table, asked: Asked, flight: FlightEntries) -> tuple[Table, int]:
    """COMM_ARGS with group, its description and sequence number of operators, and how many.

    Args:
        comm_args: COMM_ARGS table.
        asked: The operators that may have an entry.
        flight: What the recorder knows.
    """
    entry = _entry_of(comm_args, asked, flight)
    found = entry != ABSENT
    rows, entries = asked.rows[found], entry[found]
    if len(rows) == 0:
        return comm_args, 0
    seq = comm_args["seq"].copy()
    seq[rows] = flight.seq[entries]
    changed = comm_args.with_columns(
        seq=seq,
        group=_overlaid(comm_args.coded("group"), rows, flight.group.take(entries)),
        group_desc=_overlaid(comm_args.coded("group_desc"), rows, flight.description.take(entries)),
    )
    return changed, len(rows)


def groups_of_threads(
    run_key: Int64Array,
    run_thread: NDArray[np.int32],
    run_start: Int64Array,
    ask_key: Int64Array,
    ask_group: NDArray[np.int32],
    ask_start: Int64Array,
) -> NDArray[np.int32]:
    """The group of each executed operation by its thread, ABSENT where that is not clear.

    Args:
        run_key: Kind and size of executed operations; negative where they tell nothing.
        run_thread: Their threads.
        run_start: Their starts, ns.
        ask_key: Kind and size of requests, in order of start.
        ask_group: Their groups, ABSENT where unknown.
        ask_start: Their starts, ns.
    """
    known = (ask_group != ABSENT) & (ask_key >= 0)
    asks = _Requests(key=ask_key[known], group=ask_group[known], start=ask_start[known])
    open_threads = {
        thread: (run_thread == thread) & (run_key >= 0) for thread in distinct(run_thread).tolist()
    }
    group_of: dict[int, int] = {}
    for choose in (_only_group, _nearest_group):
        settled = True
        while settled:  # a thread that is settled uses up requests, which may settle others
            settled = False
            for thread, runs in list(open_threads.items()):
                group = choose(run_key[runs], run_start[runs], asks)
                if group is not None:
                    group_of[thread] = group
                    asks = asks.without(group, run_key[runs])
                    del open_threads[thread]
                    settled = True
    result = np.full(len(run_key), ABSENT, dtype=np.int32)
    for thread, group in group_of.items():
        result[run_thread == thread] = group
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class _Requests:
    """Requests of known group, kind and size, in order of start."""

    key: Int64Array
    group: NDArray[np.int32]
    start: Int64Array

    def without(self, group: int, runs: Int64Array) -> _Requests:
        """Without those of a group that a thread has executed."""
        keep = np.ones(len(self.key), dtype=np.bool_)
        for value, count in zip(*np.unique(runs, return_counts=True), strict=True):
            used = np.flatnonzero((self.key == value) & (self.group == group))[:count]
            keep[used] = False
        return _Requests(key=self.key[keep], group=self.group[keep], start=self.start[keep])

    def candidates(self, runs: Int64Array) -> list[int]:
        """Groups that asked for each kind and size often enough; none without any evidence."""
        kept: set[int] | None = None
        for value, count in zip(*np.unique(runs, return_counts=True), strict=True):
            groups, asked = np.unique(self.group[self.key == value], return_counts=True)
            enough = set(groups[asked >= _MOSTLY * count].tolist())
            if len(groups):
                kept = enough if kept is None else kept & enough
        return sorted(kept or ())


def _only_group(runs: Int64Array, starts: Int64Array, asks: _Requests) -> int | None:  # noqa: ARG001
    """The one group that can have asked for what a thread executed, if it is one."""
    found = asks.candidates(runs)
    return found[0] if len(found) == 1 else None


def _nearest_group(runs: Int64Array, starts: Int64Array, asks: _Requests) -> int | None:
    """Of several groups, the one whose requests came right before; None where none stands out."""
    found = asks.candidates(runs)
    if len(found) < 2 or len(runs) < _MIN_RUNS:
        return found[0] if len(found) == 1 else None
    delays = sorted((_delay(runs, starts, asks, group), group) for group in found)
    return delays[0][1] if delays[0][0] * _CLEAR < delays[1][0] else None


def _delay(runs: Int64Array, starts: Int64Array, asks: _Requests, group: int) -> float:
    """Median time from a group's latest request of the same kind and size, in ns."""
    delays = []
    for value in distinct(runs).tolist():
        asked = asks.start[(asks.key == value) & (asks.group == group)]
        ran = starts[runs == value]
        at = np.searchsorted(asked, ran, side="right") - 1
        delays.append(ran[at >= 0] - asked[at[at >= 0]])
    joined = np.concatenate(delays)
    return float(np.median(joined)) if len(joined) else np.inf


def _entry_of(comm_args: Table, asked: Asked, flight: FlightEntries) -> Int64Array:
    """For each operator, its entry; ABSENT where it has none."""
    result = np.full(len(asked.rows), ABSENT, dtype=np.int64)
    if len(asked.rows) == 0 or len(flight) == 0:
        return result
    start = comm_args["start_ns"][asked.rows]
    end = comm_args["end_ns"][asked.rows]
    window = np.searchsorted(flight.time_ns, (start[0] - TOLERANCE_NS, end.max() + TOLERANCE_NS))
    inside = np.arange(window[0], window[1])
    operators = np.arange(len(start))
    if len(inside) == len(start) and _fits(flight, inside, asked, operators, start, end).all():
        return inside  # one entry for each operator, in the same order
    for tolerance, back in ((0, 0), (TOLERANCE_NS, 0), (TOLERANCE_NS, 1), (TOLERANCE_NS, 2)):
        free = inside[~np.isin(inside, result)]
        at = np.searchsorted(start, flight.time_ns[free] + tolerance, side="right") - 1 - back
        free, at = free[at >= 0], at[at >= 0]
        fits = _fits(flight, free, asked, at, start, end, tolerance) & (result[at] == ABSENT)
        result[at[fits][::-1]] = free[fits][::-1]  # of several entries, the first stays
    return result


def _fits(
    flight: FlightEntries,
    entries: Int64Array,
    asked: Asked,
    operators: Int64Array,
    start: Int64Array,
    end: Int64Array,
    tolerance: int = TOLERANCE_NS,
) -> NDArray[np.bool_]:
    """Whether each entry may be of the operator beside it: time, kind and size agree."""
    time, elements = flight.time_ns[entries], flight.elements[entries]
    fits = (time >= start[operators] - tolerance) & (time <= end[operators] + tolerance)
    fits &= flight.kind[entries] == asked.kind[operators]
    return fits & _same_or_unknown(elements, asked.elements[operators])


def _same_or_unknown(first: Int64Array, second: Int64Array) -> NDArray[np.bool_]:
    same: NDArray[np.bool_] = (first == second) | (first < 0) | (second < 0)
    return same


def _overlaid(column: Coded, rows: Int64Array, told: Coded) -> Coded:
    """The column with other values in some rows."""
    codes = column.codes.copy()
    codes[rows] = told.codes + len(column.values)
    return Coded.merged(codes, (*column.values, *told.values))
