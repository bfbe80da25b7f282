"""Diagnoses a hang from the flight recorder of each rank: the operation and the ranks at fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from distprof.artefacts.record import grouped
from distprof.escape import headed
from distprof.run.records import FLIGHT, FlightDump
from distprof.schema import ABSENT, Table
from distprof.sections.ending.measure import diagnose_output
from distprof.terms import CollectiveKind, Confidence
from distprof.units import NS_PER_S, name_ranks
from distprof.verbs.hang import (
    GroupProgress,
    HangEvidence,
    HangKind,
    HangReport,
    HangRoot,
    HangState,
    RankPosition,
    StackOfRanks,
    StuckOperation,
)
from distprof.verbs.hang.divergence import (
    Point,
    behind_point,
    has_moved_on,
    message_points,
    mismatch_point,
    silent_point,
    unfinished_point,
    waits,
    waits_for_all,
)
from distprof.verbs.hang.explain import explain
from distprof.verbs.hang.groups import JobGroup, cadence, job_groups
from distprof.verbs.hang.logs import report_of_output
from distprof.verbs.hang.roots import Root, independent_roots, when

_MOST_NOTES = 20
_FRESH_NS = NS_PER_S // 2
_STALE_NS = 30 * NS_PER_S
_TROUBLE = ("timeout", "peer", "device")


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """A diagnosis before it is explained in sentences."""

    state: HangState  # Whether the job hangs.
    point: Point | None = None  # The first divergent operation.
    roots: tuple[Root, ...] = ()  # Every independent cause, the earliest first.
    points: tuple[Point, ...] = ()  # The first point of each group.
    groups: tuple[JobGroup, ...] = ()  # Every group.
    # An operation of the first root's group that all ranks launched and some did not finish.
    unfinished: Point | None = None
    messages: tuple[Point, ...] = ()  # Messages that one side has not posted.

    @property
    def first(self) -> Root | None:
        """Where the hang began."""
        return self.roots[0] if self.roots else None

    @property
    def culprits(self) -> tuple[int, ...]:
        """The ranks of all roots, ascending."""
        return tuple(sorted({rank for root in self.roots for rank in root.ranks}))


def diagnose(evidence: HangEvidence, *, version: str) -> HangReport:
    """Diagnose a job from its dumps, logs and stacks."""
    ending = diagnose_output(evidence.output)
    if not evidence.dumps:
        return report_of_output(evidence, ending, version)
    groups = job_groups(evidence.dumps, evidence.world_size)
    found = replace(_diagnosis(groups, evidence), groups=tuple(groups))
    is_stuck = found.state is HangState.STUCK
    if evidence.stop is not None and not is_stuck:  # the dumps do not show the operation
        found, is_stuck = replace(found, state=HangState.STUCK, point=None), True
    expected = {rank for group in groups for rank in group.ranks}
    expected |= set(range(evidence.world_size or 0))
    missing = tuple(sorted(expected - {dump.rank for dump in evidence.dumps}))
    suspects = tuple(rank for rank in missing if rank not in found.culprits)
    explanation = explain(found, evidence, suspects)
    graph = _graph(found)

    def hang_root(root: Root, sentence: str) -> HangRoot:
        return HangRoot(
            kind=root.kind,
            ranks=root.ranks,
            hosts=_hosts(root.ranks, evidence.hosts),
            operation=_operation(root.point),
            has_dump=root.has_dump,
            sentence=sentence,
        )

    if not is_stuck and ending.state:
        told = report_of_output(evidence, ending, version)
        return replace(told, why=(*told.why, explanation.verdict))
    # the logs, if they blame a rank that the dumps do not show
    is_new = not ending.ranks or not set(ending.ranks) <= set(found.culprits)
    logs = (f"The logs: {ending.verdict}",) if is_stuck and ending.state and is_new else ()
    return HangReport(
        distprof_version=version,
        source=evidence.source,
        state=found.state,
        verdict=explanation.verdict,
        headline=headed(explanation.verdict)[0],
        kind=found.first.kind if found.first is not None else None,
        confidence=_confidence(found, evidence),
        operation=None if found.point is None else _operation(found.point),
        culprits=found.culprits,
        roots=tuple(map(hang_root, found.roots, explanation.roots)) if is_stuck else (),
        suspects=suspects if is_stuck else (),
        hosts=_hosts(found.culprits, evidence.hosts),
        why=(*explanation.why, *logs),
        alternatives=explanation.alternatives,
        next_steps=explanation.next_steps,
        dumps=tuple(dump.rank for dump in evidence.dumps),
        missing_dumps=missing,
        num_other_dumps=evidence.num_other_dumps,
        groups=_progress(found),
        ranks=tuple(_position(dump, evidence, graph) for dump in evidence.dumps),
        log_lines=evidence.log_lines,
        stacks=_folded(evidence.stacks),
        cadence=cadence(groups),
        notes=_notes(evidence),
    )


def _graph(found: Diagnosis) -> dict[int, set[int]]:
    """For each rank, the ranks it waits for; messages count only if no collective shows a wait."""
    if found.state is not HangState.STUCK:
        return {}
    graph = waits(found.points)
    by_message = waits(found.messages)
    settled = graph.keys() | set(found.culprits)
    return graph | {rank: blamed for rank, blamed in by_message.items() if rank not in settled}


def _diagnosis(groups: Sequence[JobGroup], evidence: HangEvidence) -> Diagnosis:
    """Diagnose from the points that explain why ranks wait, the most certain kinds first."""
    mismatches = [*filter(None, map(mismatch_point, groups))]
    behind = [*filter(None, map(behind_point, groups))]
    unfinished = [*filter(None, map(unfinished_point, groups))]
    messages = tuple(point for group in groups for point in message_points(group))
    if any(has_moved_on(point) for point in behind):
        return Diagnosis(state=HangState.NO_HANG)
    waiting = [group for group in groups if _may_wait(group, evidence)]
    silent = [*filter(None, map(silent_point, waiting))]
    shown = [*behind, *mismatches]
    sure = [point for point in silent if _records_completion(point.group)]
    sure = [point for point in sure if all(point.group is not other.group for other in shown)]
    for points in ((*shown, *sure), silent, messages):
        # operations launched just before the dump cannot explain an earlier hang: they are last
        roots = independent_roots(points, mismatches, messages)
        roots = sorted(roots, key=lambda root: _is_fresh(root.point, evidence))
        if not roots:
            continue
        if _is_fresh(roots[0].point, evidence):
            return Diagnosis(state=HangState.IN_FLIGHT)
        group = roots[0].point.group
        same = [point for point in unfinished if point.group is group and point.missing]
        roots += [root for point in same for root in _stopped_before(point, roots)]
        return Diagnosis(
            state=HangState.STUCK,
            point=roots[0].point,
            roots=tuple(root for root in roots if not _is_fresh(root.point, evidence)),
            points=tuple(points),
            unfinished=same[0] if same else None,
            messages=messages,
        )
    return _all_launched(unfinished, evidence)


def _may_wait(group: JobGroup, evidence: HangEvidence) -> bool:
    """Whether members that left a dump may be waiting for those that did not.

    Gloo does not record completion, so other evidence must show that the job has stopped.
    """
    if evidence.has_ended_well:
        return False
    known = evidence.failed or evidence.world_size or evidence.stop or _has_trouble(evidence)
    return _records_completion(group) or bool(known)


def _records_completion(group: JobGroup) -> bool:
    return any(member.records_completion for member in group.members.values())


def _stopped_before(point: Point, roots: Sequence[Root]) -> list[Root]:
    """Ranks whose GPU stopped in an operation before the first root's, which others finished.

    A launch that is missing after that operation cannot be the reason. A collective that is not
    symmetric may complete early on some ranks, so it is not evidence.
    """
    first = roots[0].point
    if point.kind is HangKind.LAUNCHED_NOT_STARTED or None in (point.seq, first.seq):
        return []
    if not waits_for_all(point) or (point.seq or 0) >= (first.seq or 0):
        return []
    known = {rank for root in roots for rank in root.ranks}
    ranks = tuple(rank for rank in point.missing if rank not in known)
    return [Root(point=point, ranks=ranks)] if ranks else []


def _is_fresh(point: Point, evidence: HangEvidence) -> bool:
    """Whether the ranks dumped so soon after the launch that a wait would be normal."""
    if point.example is None or evidence.failed or _has_trouble(evidence):
        return False
    if point.kind is not HangKind.NEVER_LAUNCHED:
        return False
    members = point.group.members
    dumps = [members[rank].dump for rank in point.waiting if rank in members]
    ages = [dump.written_ns - point.first_ns for dump in dumps if dump.written_ns is not None]
    return bool(ages) and 0 <= max(ages) < _FRESH_NS


def _has_trouble(evidence: HangEvidence) -> bool:
    return any(line.about in _TROUBLE for line in evidence.log_lines)


def _all_launched(unfinished: Sequence[Point], evidence: HangEvidence) -> Diagnosis:
    """All ranks launched the same: the job runs, unless an operation has been pending for long."""
    if not unfinished or evidence.has_ended_well:
        return Diagnosis(state=HangState.NO_HANG)
    first = min(unfinished, key=when)
    newest = max((int(d.entries["created_ns"].max(initial=0)) for d in evidence.dumps), default=0)
    waited = newest - first.first_ns > _STALE_NS
    is_stuck = waited or evidence.stop is not None or _has_trouble(evidence)
    return Diagnosis(
        state=HangState.STUCK if is_stuck else HangState.IN_FLIGHT,
        point=first,
        roots=tuple(_unfinished_roots(unfinished)) if is_stuck else (),
        points=tuple(unfinished),
    )


def _unfinished_roots(points: Sequence[Point]) -> list[Root]:
    """The earliest operations that have no ranks in common."""
    roots: list[Root] = []
    stuck: set[int] = set()
    for point in sorted(points, key=when):
        ranks = {*point.waiting, *point.missing}
        if not ranks & stuck:
            roots.append(Root(point=point, ranks=point.missing))
        stuck |= ranks
    return roots


def _confidence(found: Diagnosis, evidence: HangEvidence) -> Confidence | None:
    """``measured`` if dumps show the missing ranks and a log, an exit or a stack agrees."""
    if found.first is None:
        return Confidence.MEASURED if found.state is HangState.STUCK else None
    confirmed = evidence.failed.keys() | evidence.stacks.keys()
    agrees = _has_trouble(evidence) or bool(set(found.first.ranks) & confirmed)
    is_seen = bool(found.first.point.missing) and not found.first.in_circle
    return Confidence.MEASURED if agrees and is_seen else Confidence.INFERRED


def _hosts(ranks: Sequence[int], hosts: Mapping[int, str]) -> tuple[str, ...]:
    return tuple(sorted({hosts[rank] for rank in ranks if hosts.get(rank)}))


def _operation(point: Point) -> StuckOperation:
    group, launched = point.group, set(point.waiting)
    if point.kind is not HangKind.NEVER_LAUNCHED:
        launched |= set(point.missing)
    entry = _Entry.of(point)
    return StuckOperation(
        group=group.name,
        description=group.description,
        group_ranks=group.ranks,
        seq=point.seq,
        name=entry.text("name"),
        kind=CollectiveKind(entry.number("kind") or 0).label,
        shape=entry.text("shape"),
        dtype=entry.text("in_dtype"),
        launched=tuple(sorted(launched)),
        missing=point.missing,
        unknown=point.silent,
        launched_ns=entry.number("created_ns"),
        timeout_ms=entry.number("timeout_ms"),
        frame=entry.text("frame"),
        others=point.others,
    )


class _Entry(NamedTuple):
    """An entry of a dump, column by column; unknown if ``row`` is negative: no ring holds it."""

    entries: Table
    row: int

    @classmethod
    def of(cls, point: Point) -> _Entry:
        if point.example is None:
            return cls(Table.empty(FLIGHT), -1)
        member, row = point.example
        return cls(member.dump.entries, row)

    def text(self, name: str) -> str:
        return self.entries.coded(name).at(self.row) if self.row >= 0 else ""

    def number(self, name: str) -> int | None:
        value = int(self.entries[name][self.row]) if self.row >= 0 else ABSENT
        return None if value == ABSENT else value


def _progress(found: Diagnosis) -> tuple[GroupProgress, ...]:
    at = {id(point.group): point for point in reversed(found.points)}
    first = found.point.group if found.point else None
    if found.point is not None:
        at[id(first)] = found.point
    rows = [(_one_progress(group, at.get(id(group))), group is first) for group in found.groups]
    rows.sort(key=lambda row: (not row[1], not row[0].behind, not row[0].pending))
    return tuple(row for row, _ in rows)


def _one_progress(group: JobGroup, point: Point | None) -> GroupProgress:
    known = [m.enqueued for m in group.members.values() if m.enqueued is not None]
    high = max(known, default=None)
    behind = [m.rank for m in group.members.values() if m.enqueued not in (None, high)]
    pending = sum(
        int(m.pending.sum()) + len(m.messages)
        for m in group.members.values()
        if m.records_completion
    )
    return GroupProgress(
        group=group.name,
        description=group.description,
        ranks=group.ranks,
        lowest_seq=min(known, default=None),
        highest_seq=high,
        behind=tuple(sorted(behind)),
        unknown=group.silent,
        pending=pending,
        waits_on=_Entry.of(point).text("name") if point else "",
        waits_seq=point.seq if point else None,
    )


def _position(
    dump: FlightDump, evidence: HangEvidence, graph: Mapping[int, set[int]]
) -> RankPosition:
    entries = dump.entries
    last = _Entry(entries, len(entries) - 1)
    is_message = len(entries) > 0 and bool(entries["is_p2p"][last.row])
    calls = evidence.stacks.get(dump.rank, ())
    return RankPosition(
        rank=dump.rank,
        host=evidence.hosts.get(dump.rank, "") or dump.host,
        source=dump.source,
        entries=len(entries),
        last_name=last.text("name"),
        last_group=last.text("description") or last.text("group"),
        last_seq=last.number("p2p_seq" if is_message else "seq"),
        last_ns=last.number("created_ns"),
        waits_for=tuple(sorted(graph.get(dump.rank, ()))),
        call=calls[0] if calls else last.text("frame"),
    )


def _folded(stacks: Mapping[int, tuple[str, ...]]) -> tuple[StackOfRanks, ...]:
    """Ranks grouped by identical stacks, the rarest first."""
    by_stack = grouped([(stacks[rank], rank) for rank in sorted(stacks)])
    stacks_of_ranks = [
        StackOfRanks(ranks=tuple(ranks), calls=calls) for calls, ranks in by_stack.items()
    ]
    return tuple(sorted(stacks_of_ranks, key=lambda item: (len(item.ranks), item.ranks)))


def _notes(evidence: HangEvidence) -> tuple[str, ...]:
    """Notes on evidence and dumps, with identical notes on several ranks in one sentence."""
    by_note = grouped([(note, dump.rank) for dump in evidence.dumps for note in dump.notes])
    notes = [f"{name_ranks(ranks)}: {note}" for note, ranks in by_note.items()]
    num_more = len(notes) - _MOST_NOTES
    more = (f"{num_more:,} more notes on dumps.",) if num_more > 0 else ()
    return (*evidence.notes, *notes[:_MOST_NOTES], *more)
