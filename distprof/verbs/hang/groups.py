"""Process groups across ranks: their members, and the progress of each member.

A group is identified by its name and its members, because split groups share a name. The recorder
counts progress under the number that a group has within a process. These numbers and numeric names
both follow the order in which groups are created. That order maps one to the other on a rank whose
ring holds no entry of a group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from distprof.artefacts.record import grouped
from distprof.run.records import FlightDump, FlightState, GroupStatus
from distprof.run.tables import parts_by
from distprof.run.topology import DEFAULT_GROUPS
from distprof.schema import Int64Array
from distprof.verbs.hang import Cadence


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of one rank in one group."""

    rank: int  # Global rank.
    dump: FlightDump  # Its dump.
    # int64, rows of its entries for collectives of this group, in order of launch.
    collectives: Int64Array
    seq: Int64Array  # int64, their sequence numbers.
    # bool, whether each was still incomplete when the rank wrote its dump.
    pending: np.typing.NDArray[np.bool_]
    messages: Int64Array  # int64, rows of messages that had not completed.
    enqueued: int | None  # Latest collective launched; None where unknown.
    completed: int | None  # Latest collective known to have completed; None where unknown.
    records_completion: bool  # Whether its backend records completion; gloo does not.

    @property
    def is_whole(self) -> bool:
        """Whether its ring still holds the first operation of the job, so none is missing."""
        record = self.dump.entries["record"]
        return len(record) > 0 and int(record[0]) == 0

    def row_of(self, seq: int) -> int | None:
        """The row of its collective ``seq``; None if the ring does not hold it."""
        at = np.flatnonzero(self.seq == seq)
        return int(self.collectives[at[0]]) if len(at) else None


class JobGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One process group of the job."""

    name: str  # Name of the group.
    description: str  # Description given by the program; empty if it gave none.
    ranks: tuple[int, ...]  # Global ranks of all members, ascending.
    # Members that left a dump, by rank.
    members: Mapping[int, Member] = msgspec.field(default_factory=dict)
    # Whether a dump lists the members; otherwise ``ranks`` are those with a dump.
    knows_ranks: bool = True

    @property
    def silent(self) -> tuple[int, ...]:
        """Members that left no dump."""
        return tuple(rank for rank in self.ranks if rank not in self.members)

    @property
    def label(self) -> str:
        """Name in reports: the description, or else the name."""
        return self.description or f"group {self.name or '(unnamed)'}"


_Key = tuple[str, tuple[int, ...]]


def job_groups(dumps: Sequence[FlightDump], world_size: int | None = None) -> list[JobGroup]:
    """Every group that a dump names, ordered by name and members."""
    parts: dict[_Key, list[tuple[FlightDump, str]]] = {}
    loose: dict[str, list[FlightDump]] = {}
    descriptions: dict[tuple[str, int], str] = {}
    for dump in dumps:
        members = {group.name: group.ranks for group in dump.groups}
        for name, description in _names(dump).items():
            descriptions[name, dump.rank] = description
            default = members.get("", ()) if description in DEFAULT_GROUPS else ()
            ranks = members.get(name, default)
            if ranks and dump.rank in ranks:
                parts.setdefault((name, ranks), []).append((dump, description))
            else:
                loose.setdefault(name, []).append(dump)
    # members of groups that no dump lists: ranks with a dump, or all for the default
    for name, unlisted in list(loose.items()):
        left = []
        for dump in unlisted:
            homes = [key for key in parts if key[0] == name and dump.rank in key[1]]
            if len(homes) == 1:
                parts[homes[0]].append((dump, descriptions[name, dump.rank]))
            else:
                left.append(dump)
        if not left:
            del loose[name]
            continue
        seen = {dump.rank for dump in left}
        texts = [descriptions[name, dump.rank] for dump in left]
        if world_size and "default_pg" in texts:
            seen |= set(range(world_size))
        parts[name, tuple(sorted(seen))] = list(zip(left, texts, strict=True))
    joined = _names_of_numbers(dumps)
    return [
        _job_group(key, found, joined, known=key[1] != () and key[0] not in loose)
        for key, found in sorted(parts.items())
    ]


def _names(dump: FlightDump) -> dict[str, str]:
    """Description of each group of a rank, by group name."""
    descriptions = {group.name: group.description for group in dump.groups}
    names, texts = dump.entries.coded("group"), dump.entries.coded("description")
    if len(dump.entries):
        codes, first = np.unique(names.codes, return_index=True)
        for code, row in zip(codes.tolist(), first.tolist(), strict=True):
            name = names.values[code]
            descriptions[name] = descriptions.get(name) or texts.at(row)
    is_named = "0" in descriptions or "default_pg" in descriptions.values()
    if "" in descriptions and is_named:
        # gloo calls the default group "" in one place and "0" in another
        del descriptions[""]
    return descriptions


def _names_of_numbers(dumps: Sequence[FlightDump]) -> dict[int, dict[int, str]]:
    """For each rank, a mapping from a group's number within the process to its name."""
    result = {}
    for dump in dumps:
        known = _from_entries(dump)
        by_order = _from_order(dump)
        if all(by_order.get(number, name) == name for number, name in known.items()):
            known = {**by_order, **known}
        if not known and len(dump.status) == 1 and len(dump.groups) <= 1:
            known = dict.fromkeys(dump.status, "0")
        result[dump.rank] = known
    return result


def _from_entries(dump: FlightDump) -> dict[int, str]:
    numbers, names = dump.entries["pg"], dump.entries.coded("group")
    found, first = np.unique(numbers, return_index=True)
    return {int(n): names.at(row) for n, row in zip(found, first, strict=True) if n >= 0}


def _from_order(dump: FlightDump) -> dict[int, str]:
    """Map numbers to names in order of creation; empty if there are not as many of each."""
    names = [group.name for group in dump.groups]
    if len(names) != len(dump.status) or not all(name.isdecimal() for name in names):
        return {}
    ordered = sorted(names, key=lambda name: (len(name), name))
    return dict(zip(sorted(dump.status), ordered, strict=True))


def _job_group(
    key: _Key,
    found: Sequence[tuple[FlightDump, str]],
    joined: Mapping[int, Mapping[int, str]],
    *,
    known: bool,
) -> JobGroup:
    name, ranks = key
    rows = {d.rank: np.flatnonzero(d.entries.coded("group").equals(name)) for d, _ in found}
    # In a group that also sends messages, the recorder's count mixes two sequences
    has_messages = any(bool(dump.entries["is_p2p"][rows[dump.rank]].any()) for dump, _ in found)
    members = {
        dump.rank: _member(
            dump, rows[dump.rank], None if has_messages else _status(dump, name, joined[dump.rank])
        )
        for dump, _ in found
    }
    return JobGroup(
        name=name,
        description=next((text for _, text in found if text), ""),
        ranks=ranks,
        members=members,
        knows_ranks=known,
    )


def _status(dump: FlightDump, name: str, names: Mapping[int, str]) -> GroupStatus | None:
    """Progress counted by the recorder; None if the group has no count, or more than one."""
    numbers = [number for number, known in names.items() if known == name]
    found = [dump.status[number] for number in numbers if number in dump.status]
    return found[0] if len(found) == 1 else None


def _member(dump: FlightDump, rows: Int64Array, status: GroupStatus | None) -> Member:
    entries = dump.entries
    is_message = entries["is_p2p"][rows]
    gloo = [value.startswith("gloo") for value in entries.coded("name").values]
    is_gloo = bool(entries.coded("name").take(rows).where(gloo).any()) if len(rows) else False
    done = (entries["state"] == FlightState.COMPLETED) | entries["retired"]
    if is_gloo:
        done = np.zeros(len(entries), dtype=np.bool_)
    collectives = rows[~is_message & (entries["seq"][rows] >= 0)]
    seq = entries["seq"][collectives]
    messages = rows[is_message]
    latest = int(seq.max()) if len(seq) else None
    finished = seq[done[collectives]]
    completed = None if is_gloo else _most(status.completed if status else None, finished)
    return Member(
        rank=dump.rank,
        dump=dump,
        collectives=collectives,
        seq=seq,
        pending=~done[collectives],
        messages=messages[~done[messages]],
        enqueued=_most(status.enqueued, seq) if status else latest,
        completed=completed,
        records_completion=not is_gloo,
    )


def _most(counted: int | None, recorded: Int64Array) -> int | None:
    known = [counted] if counted is not None else []
    known += [int(recorded.max())] if len(recorded) else []
    return max(known, default=None)


# Cadence: how often the same collective recurs ----------------------------------------------------

_MOST_GROUPS = 200

_MIN_LAUNCHES = 3  # two intervals


def cadence(groups: Sequence[JobGroup]) -> tuple[Cadence, ...]:
    """For each group, its most frequent collective and the time between its launches."""
    cadences = (_group_cadence(group) for group in groups[:_MOST_GROUPS])
    return tuple(item for item in cadences if item is not None)


def _group_cadence(group: JobGroup) -> Cadence | None:
    members = group.members.values()
    found = grouped((key, (m, rows)) for m in members for key, rows in _classes(m).items())
    if not found:
        return None
    counts = {key: sum(len(rows) for _, rows in some) for key, some in found.items()}
    name, shape = max(counts, key=lambda key: (counts[key], key))
    gaps = []  # between consecutive launches in the ring whose times are known
    for member, rows in found[name, shape]:
        created = np.sort(member.dump.entries["created_ns"][rows])
        gaps.append(np.diff(created[created > 0]))
    joined = np.concatenate(gaps)
    if counts[name, shape] < _MIN_LAUNCHES or len(joined) < _MIN_LAUNCHES - 1:
        return None
    return Cadence(
        group=group.name,
        description=group.description,
        name=name,
        shape=shape,
        count=counts[name, shape],
        period_ns=int(np.median(joined)),
        longest_ns=int(joined.max()),
    )


def _classes(member: Member) -> dict[tuple[str, str], Int64Array]:
    """Rows of one rank's collectives, by name and sizes."""
    entries, rows = member.dump.entries, member.collectives
    names, shapes = entries.coded("name"), entries.coded("shape")
    keys = names.codes[rows].astype(np.int64) * (len(shapes.values) + 1) + shapes.codes[rows]
    parts = parts_by(keys, rows).values()
    return {(names.at(part[0]), shapes.at(part[0])): part for part in parts}
