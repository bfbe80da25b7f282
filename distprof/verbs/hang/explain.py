"""Writes a diagnosis as sentences: verdict, evidence, alternatives and next steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from distprof.artefacts.record import grouped
from distprof.sections.ending.words import words
from distprof.units import capitalized, format_duration, name_ranks, verb
from distprof.verbs.hang import HangEvidence, HangKind, HangState, Stop
from distprof.verbs.hang.divergence import MISMATCHES, Point, waits
from distprof.verbs.hang.roots import Root

if TYPE_CHECKING:
    from distprof.verbs.hang.measure import Diagnosis

_MOST_NAMED = 4
_MOST_ROOTS = 3  # in the verdict; the table lists all


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a diagnosis; ``roots`` has a sentence for each root."""

    verdict: str
    roots: tuple[str, ...] = ()
    why: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()


def explain(found: Diagnosis, evidence: HangEvidence, suspects: tuple[int, ...]) -> Explanation:
    """Explain a diagnosis in sentences."""
    if found.state is HangState.NO_HANG:
        return _no_hang(found, evidence)
    if found.first is None and found.state is HangState.STUCK and evidence.stop is not None:
        return _stopped(evidence, evidence.stop, suspects)
    if found.first is None:
        return _in_flight(found)
    roots = tuple(_sentence(root, evidence) for root in found.roots)
    main, *others = roots
    parts = [main if main.startswith("Deadlock") else f"Stuck: {main}"]
    parts += [f"Independently, {o[:1].lower()}{o[1:]}" for o in others[: _MOST_ROOTS - 1]]
    if len(others) >= _MOST_ROOTS:
        parts.append(f"{len(others) - _MOST_ROOTS + 1} more independent causes are listed below.")
    if suspects:
        also = "are also suspects" if len(suspects) > 1 else "is also a suspect"
        parts.append(f"{capitalized(name_ranks(suspects))} left no dump and {also}.")
    return Explanation(
        verdict=" ".join(parts),
        roots=roots,
        why=tuple(_why(found, found.first, evidence)),
        alternatives=tuple(_alternatives(found, found.first, evidence)),
        next_steps=tuple(_all_steps(found, suspects, evidence)),
    )


def _no_hang(found: Diagnosis, evidence: HangEvidence) -> Explanation:
    if evidence.has_ended_well:
        why = "The job ended normally."
    elif any(len(group.members) > 1 for group in found.groups):
        why = words().said["dumps agree"]
        if any(len({m.enqueued for m in g.members.values()}) > 1 for g in found.groups):
            why = words().said["dumps of different times"]
    else:
        why = "No operation in these dumps is pending. Dumps of a single rank cannot show more."
    return Explanation(verdict="These dumps show no hang.", why=(why,))


def _stopped(evidence: HangEvidence, stop: Stop, suspects: Sequence[int]) -> Explanation:
    """Steps have stopped, but the recorder shows no operation: it does not record gloo messages."""
    exited = tuple(f"Rank {rank}: {why}." for rank, why in sorted(evidence.failed.items()))
    who = f" {exited[0]}" if exited else ""
    idle, usual = format_duration(stop.for_ns), format_duration(stop.usual_ns)
    return Explanation(
        verdict=words().says("no step", idle=idle, step=stop.step, usual=usual, who=who),
        why=(*exited, *_places(evidence)),
        alternatives=words().steps["long phase"],
        next_steps=(
            *words().steps["no step"],
            *([f"Check {name_ranks(suspects)}, which left no dump."] if suspects else []),
        ),
    )


def _places(evidence: HangEvidence) -> Iterator[str]:
    """Where the training threads are, one sentence per place."""
    stacks = sorted(evidence.stacks.items())
    by_call = grouped([(calls[0] if calls else "", rank) for rank, calls in stacks])
    for call, ranks in list(by_call.items())[:_MOST_NAMED]:
        if call:
            yield f"{capitalized(name_ranks(ranks))} {verb(ranks, 'are')} in {call}."


def _in_flight(found: Diagnosis) -> Explanation:
    what = f" ({operation_text(found.point)})" if found.point else ""
    return Explanation(
        verdict=f"No rank is behind: operations are in flight{what}, as in a running job.",
        why=(words().said["all launched"],),
        alternatives=(words().said["operation does not finish"],),
        next_steps=words().steps["in flight"],
    )


def operation_text(point: Point) -> str:
    """Text for an operation: ``all_to_all 20537 of EXPERT_MODEL_PARALLEL_GROUP``."""
    name = "operation"
    if point.example is not None:
        member, row = point.example
        recorded = member.dump.entries.coded("name").at(row)
        name = recorded.rpartition(":")[2].lstrip("_") or name
    number = "" if point.seq is None else f" {point.seq}"
    return f"{name}{number} of {point.group.label}"


def _sentence(root: Root, evidence: HangEvidence) -> str:
    """One root in one sentence."""
    point, who, what = root.point, name_ranks(root.ranks), operation_text(root.point)
    if root.in_circle:
        return f"Deadlock: {who} wait for each other, first in {what}."
    if point.kind in MISMATCHES:
        if not point.waiting:
            return f"{who} disagree on {what}: their operations, sizes or data types differ."
        return words().says(point.kind, what=what, who=who)
    if point.kind is not HangKind.NEVER_LAUNCHED:
        return _unfinished_sentence(root, what)
    waiting = f"{name_ranks(point.waiting)} {verb(point.waiting, 'wait')}"
    if root.has_dump:
        return f"{who} never launched {what}, and {waiting}."
    why = "dead, or too stuck to write one"
    if set(root.ranks) <= evidence.failed.keys():
        why = evidence.failed[root.ranks[0]]
    return f"{waiting} in {what}, and {who} left no dump: {why}."


def _unfinished_sentence(root: Root, what: str) -> str:
    point = root.point
    if point.kind is HangKind.LAUNCHED_NOT_STARTED:
        return words().says("not started", what=what, who=name_ranks(point.missing))
    started = "started" if point.kind is HangKind.STARTED_NOT_FINISHED else "launched"
    if root.ranks:
        return f"{what} finished on some ranks but not on {name_ranks(root.ranks)}."
    return (
        f"{name_ranks(point.group.members)} all {started} {what} and none finished: network or GPU."
    )


def _why(found: Diagnosis, first: Root, evidence: HangEvidence) -> Iterator[str]:
    point = first.point
    if point.seq is not None:
        yield from _positions(point)
    yield from (f"{capitalized(other)}." for other in point.others)
    behind = {rank for one in found.points for rank in one.missing} - set(found.culprits)
    others = sorted(behind & waits(found.points).keys())
    if others and not first.in_circle:
        who, culprits = (capitalized(name_ranks(ranks)) for ranks in (others, found.culprits))
        yield f"{who} also {verb(others, 'lag')}, but {verb(others, 'wait')} for others."
        yield f"{culprits} {verb(found.culprits, 'wait')} for no rank."
    if found.unfinished is not None:
        who = capitalized(name_ranks(found.unfinished.missing))
        yield words().says("did not finish", who=who, what=operation_text(found.unfinished))
    for rank in found.culprits[:_MOST_NAMED]:
        if rank in evidence.failed:
            yield f"Rank {rank} had failed: {evidence.failed[rank]}."
        if rank in evidence.stacks:
            yield f"Rank {rank} is in {evidence.stacks[rank][0]} instead."
    empty = [
        rank
        for root in found.roots
        for rank in root.ranks
        if rank in (members := root.point.group.members) and not len(members[rank].dump.entries)
    ]
    if empty:
        yield words().says("empty ring", who=name_ranks(empty))
    mine = [p for p in found.messages if set(p.waiting) & set(found.culprits) and p.missing]
    senders = sorted({rank for one in mine for rank in one.missing} - set(found.culprits))
    if senders and found.unfinished is None and point.seq is not None:
        who = capitalized(name_ranks(found.culprits))
        yield f"{who} may in turn wait for a message from {name_ranks(senders)}."


def _positions(point: Point) -> Iterator[str]:
    if point.kind is not HangKind.NEVER_LAUNCHED:
        return
    members = point.group.members.values()
    latest = grouped([(one.enqueued, one.rank) for one in members if one.enqueued is not None])
    if len(latest) < 2:
        who, number = capitalized(name_ranks(point.waiting)), max(latest, default=point.seq or 0)
        yield f"{who} of {point.group.label} launched up to number {number}."
        return
    positions = [f"{seq} on {name_ranks(latest[seq])}" for seq in sorted(latest)[:4]]
    more = f"; {len(latest) - 4} more positions" if len(latest) > 4 else ""
    yield f"Latest collective launched in {point.group.label}: {'; '.join(positions)}{more}."


def _alternatives(found: Diagnosis, first: Root, evidence: HangEvidence) -> Iterator[str]:
    point = first.point
    if found.unfinished is not None:
        suspects = sorted(set(found.unfinished.missing) - set(found.culprits))
        if suspects:
            yield words().says("at fault, too", who=capitalized(name_ranks(suspects)))
    agrees = evidence.log_lines or set(found.culprits) & evidence.stacks.keys()
    if point.kind is HangKind.NEVER_LAUNCHED and first.has_dump and not agrees:
        yield words().said["running job"]
    unknown = sorted(set(point.silent) - set(found.culprits))
    if unknown:
        yield f"{capitalized(name_ranks(unknown))} left no dump and may be further behind."
    if point.example is None:
        yield "No ring holds the operation any more. Set a larger TORCH_FR_BUFFER_SIZE to keep it."
    if not point.group.knows_ranks:
        yield "The dumps do not list the group's members: distprof counts only ranks with a dump."


def _all_steps(
    found: Diagnosis, suspects: tuple[int, ...], evidence: HangEvidence
) -> Iterator[str]:
    """Next steps for each root, then for ranks without a dump, without repetitions."""
    checked = set(found.unfinished.missing) if found.unfinished else set()
    for number, root in enumerate(found.roots[:_MOST_ROOTS]):
        if number and root.ranks and checked.issuperset(root.ranks):
            continue  # the step that checks the GPUs of the first root's group names them
        yield from _next_steps(root, None if number else found.unfinished, evidence)
    if suspects:
        yield words().says("without dump", who=name_ranks(suspects))
    if not evidence.log_lines and not evidence.stacks:
        yield "Add the ranks' logs to the folder of dumps: distprof reads their warnings."


def _next_steps(root: Root, unfinished: Point | None, evidence: HangEvidence) -> Iterator[str]:
    kind = root.point.kind
    if kind in MISMATCHES:
        yield words().says("compare paths", who=name_ranks(root.ranks))
        return
    if unfinished is not None or kind is not HangKind.NEVER_LAUNCHED:
        ranks = unfinished.missing if unfinished else root.ranks
        whom = name_ranks(ranks) if ranks else f"{root.point.group.label}"
        yield f"Check the GPUs of {whom}: dmesg for Xid, nvidia-smi -q, NCCL warnings, links."
    if root.ranks and kind is HangKind.NEVER_LAUNCHED:
        who, hosts = name_ranks(root.ranks), {evidence.hosts.get(r, "") for r in root.ranks} - {""}
        at = f" on {', '.join(sorted(hosts))}" if hosts else ""
        stacks = [evidence.stacks[rank][0] for rank in root.ranks if rank in evidence.stacks]
        if stacks:
            yield f"Find out why {stacks[0]} does not return on {who}{at}."
        if not (evidence.stacks.keys() | evidence.failed.keys()) & set(root.ranks):
            yield f"Get the Python stack of {who}{at}: distprof attach --stacks, or py-spy dump."
        yield f"Read the end of the log of {who}{at}."
        if any("SIGKILL" in evidence.failed.get(rank, "") for rank in root.ranks):
            yield words().said["killed"]
    if root.in_circle:
        yield "Launch operations of different groups in the same order on every rank."
