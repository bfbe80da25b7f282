"""Assigns operations of torch's Flight Recorder to steps, with their durations."""

from __future__ import annotations

import re
import zlib
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final, Literal

import msgspec

from distprof.artefacts.records import CollectivesRecord, GroupTimes

MOST_PARTS: Final = 64
"""Most durations kept for a group and step."""

MOST_WINDOWS: Final = 10_000
"""Steps that may wait for the recorder."""

PATIENCE: Final = 16
"""Number of later complete steps after which a missing duration counts as final."""

_MOST_NS = 1 << 53
_MOST_NAME = 100

_FOR_ALL = re.compile(
    r"\w+:(?:all_?reduce|all_reduce_barrier|barrier|_?all_?gather|_?reduce_scatter)(?!.*sparse)",
)
"""Operations that no member leaves before all members have arrived."""

_COMPOSITE = "coalesced"
"""Suffix of an operation that may stand for others, which are recorded without times."""

_Kind = Literal["all", "some", "messages"]
_Batch = tuple[tuple[str, ...], int, int]


class Entry(msgspec.Struct, frozen=True):
    """An operation, as the recorder describes it."""

    record_id: int  # Counts operations of the process.
    time_created_ns: int  # When it was enqueued, ns since the epoch.
    profiling_name: str  # For example ``nccl:all_reduce``.
    process_group: tuple[str, ...] = ()  # Name and description.
    collective_seq_id: int = 0  # Counts collectives of the group.
    p2p_seq_id: int = 0  # Counts messages of the group.
    # Between two events on its stream; None without NCCL's timing, or before the end.
    duration_ms: float | None = None
    # Whether NCCL's watchdog has seen its completion, so the duration is final.
    retired: bool = False
    is_p2p: bool = False  # Whether it is a message.

    @property
    def is_composite(self) -> bool:
        """Whether it may stand for others."""
        return self.profiling_name.endswith(_COMPOSITE)

    @property
    def batch(self) -> _Batch:
        """Key of the batch, the same for its operations and for the one that stands for them."""
        return self.process_group, self.collective_seq_id, self.p2p_seq_id


class _Group(msgspec.Struct, frozen=True):
    ranks: str = ""


class Dump(msgspec.Struct, frozen=True):
    """A dump of the recorder."""

    entries: list[Entry] = []  # In the order in which they were enqueued.
    pg_config: dict[str, _Group] = {}  # Name of a group to its members.


class Window(msgspec.Struct, frozen=True):
    """A step, by the clock of the recorder."""

    step: int  # Its number.
    start_ns: int  # ns since the epoch.
    end_ns: int  # The same.


class CollectiveSteps:
    """Sorts operations into steps."""

    def __init__(self) -> None:
        # Waiting steps. The training thread appends to it; any other thread calls :meth:`take`.
        self.windows: deque[Window] = deque(maxlen=MOST_WINDOWS)
        self.num_lost = 0  # Steps with operations that the ring has lost.
        # Whether an operation had a duration; None before the first complete one.
        self.has_times: bool | None = None

    def take(self, dump: Dump, *, asked_ns: int) -> list[CollectivesRecord]:
        """The steps that are complete, in ascending order, each once.

        Steps that ended after the dump (``asked_ns``, since the epoch) wait.
        """
        entries = sorted(dump.entries, key=attrgetter("time_created_ns"))
        created = [entry.time_created_ns for entry in entries]
        since_ns = _complete_since(entries)
        done: list[tuple[Window, list[Entry]]] = []
        open_: list[tuple[Window, list[Entry]]] = []
        later: list[Window] = []
        for window in [self.windows.popleft() for _ in range(len(self.windows))]:
            first, last = (bisect_left(created, at) for at in (window.start_ns, window.end_ns))
            own = entries[first:last]
            if window.end_ns > asked_ns:
                later.append(window)
            elif window.start_ns < since_ns:
                self.num_lost += 1
            else:
                (done if _are_final(own) else open_).append((window, own))
        newest = sorted(window.step for window, _ in done)[-PATIENCE:]
        for window, own in open_:
            is_given_up = len(newest) == PATIENCE and window.step < newest[0]
            if is_given_up:
                done.append((window, own))
            else:
                later.append(window)
        self.windows.extendleft(sorted(later, key=lambda window: -window.step))
        done.sort(key=lambda each: each[0].step)
        return [self._record(window.step, own, dump.pg_config) for window, own in done]

    def _record(
        self, step: int, entries: Sequence[Entry], groups: Mapping[str, _Group]
    ) -> CollectivesRecord:
        known = list(_operations(entries))
        if known and not self.has_times:
            self.has_times = any(each.duration_ms is not None for each, _ in known)
        known.sort(key=lambda each: (each[0].process_group, each[1]))
        rows = groupby(known, key=lambda each: (each[0].process_group, each[1]))
        return CollectivesRecord(
            step=step,
            groups=tuple(
                _times(name, kind, [each for each, _ in row], groups) for (name, kind), row in rows
            ),
        )


def _complete_since(entries: Sequence[Entry]) -> int:
    """Time from which the dump holds every operation, ns since the epoch."""
    if not entries or entries[0].record_id == 0:
        return 0
    return entries[0].time_created_ns + 1


def _batches(entries: Sequence[Entry]) -> dict[_Batch, list[Entry]]:
    """The operations represented by another one, by batch."""
    found: dict[_Batch, list[Entry]] = {entry.batch: [] for entry in entries if entry.is_composite}
    for entry in entries:
        if _is_stood_for(entry, found):
            found[entry.batch].append(entry)
    return found


def _are_final(entries: Sequence[Entry]) -> bool:
    """Whether all operations that will get a duration have it."""
    batches = _batches(entries)
    return all(entry.retired or _is_stood_for(entry, batches) for entry in entries)


def _is_stood_for(entry: Entry, batches: Mapping[_Batch, object]) -> bool:
    """Whether this operation is represented by another one."""
    return entry.batch in batches and not entry.is_composite


def _operations(entries: Sequence[Entry]) -> Iterator[tuple[Entry, _Kind]]:
    """Operations with a duration of their own, and their kinds.

    Synchronous collectives in a batch run on the caller's stream, but torch records the batch's
    events on another stream, so their duration is not valid.
    """
    batches = _batches(entries)
    for entry in entries:
        members = batches.get(entry.batch)
        if members is None:
            yield entry, _kind(entry)
        elif entry.is_composite:
            if members and all(member.is_p2p for member in members):
                yield entry, "messages"
            elif members:
                yield msgspec.structs.replace(entry, duration_ms=None), "some"
            else:
                yield entry, _kind(entry)


def _kind(entry: Entry) -> _Kind:
    if entry.is_p2p:
        return "messages"
    return "all" if _FOR_ALL.match(entry.profiling_name) else "some"


def _times(
    name: tuple[str, ...], kind: _Kind, entries: Sequence[Entry], groups: Mapping[str, _Group]
) -> GroupTimes:
    members = _members(groups.get(name[0]) if name else None)
    durations = (_duration_ns(entry) for entry in entries)
    timed = [duration_ns for duration_ns in durations if duration_ns is not None]
    num_untimed = len(entries) - len(timed)
    size = -(-len(timed) // MOST_PARTS) or 1
    parts = [timed[start : start + size] for start in range(0, len(timed), size)]
    return GroupTimes(
        group=_identity(name, members),
        kind=kind,
        num_ranks=len(members),
        first=0 if kind == "messages" else entries[0].collective_seq_id,
        num=len(entries),
        num_untimed=num_untimed,
        total_ns=tuple(map(sum, parts)),
        last_ns=tuple(part[-1] for part in parts) if size > 1 else (),
    )


def _duration_ns(entry: Entry) -> int | None:
    """Its duration; None if it is unknown or impossible."""
    if entry.duration_ms is None or not 0 <= entry.duration_ms * 1e6 < _MOST_NS:
        return None
    return round(entry.duration_ms * 1e6)


def _members(group: _Group | None) -> list[int]:
    """Global ranks of a group, from text such as ``[0, 1]``; none if unknown."""
    return [int(number) for number in re.findall(r"\d{1,9}", group.ranks)] if group else []


def _identity(name: Sequence[str], members: Sequence[int]) -> str:
    digest = zlib.crc32(",".join(map(str, members)).encode())
    return f"{(name[0] if name else '')[:_MOST_NAME]}:{digest:08x}"
