"""A diagnosis in sentences: the verdict, the evidence, what else it could be, what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distprof.units import name_ranks
from distprof.verbs.hang.divergence import Point, waits
from distprof.verbs.hang.result import HangEvidence, HangKind, HangState

if TYPE_CHECKING:
    from distprof.verbs.hang.measure import Diagnosis

__all__ = ["Explanation", "explain"]

_MOST_TOLD = 4
_LEFT_OUT = {
    HangKind.KIND_MISMATCH: "launched another operation than",
    HangKind.SIZE_MISMATCH: "launched it with another size than",
    HangKind.DTYPE_MISMATCH: "launched it with another data type than",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What a person reads of a diagnosis."""

    verdict: str
    why: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()


def explain(found: Diagnosis, evidence: HangEvidence) -> Explanation:
    """Sentences for a diagnosis."""
    if found.state is HangState.NO_HANG:
        return _no_hang(found, evidence)
    if found.point is None or found.state is HangState.IN_FLIGHT:
        return _in_flight(found)
    return Explanation(
        verdict=_verdict(found, found.point, evidence),
        why=tuple(_why(found, found.point, evidence)),
        alternatives=tuple(_alternatives(found, found.point, evidence)),
        next_steps=tuple(_next_steps(found, found.point, evidence)),
    )


def _no_hang(found: Diagnosis, evidence: HangEvidence) -> Explanation:
    if evidence.has_ended_well:
        why = "The job ended in order."
    elif any(len(group.members) > 1 for group in found.groups):
        why = "In every group the ranks that dumped launched the same, and nothing is left waiting."
        if any(len({m.enqueued for m in g.members.values()}) > 1 for g in found.groups):
            why = (
                "Some ranks have completed what others had not launched when they dumped: "
                "the job was running, and dumps were written one after another."
            )
    else:
        why = "No operation of these dumps is left waiting; one rank's alone would not show more."
    return Explanation(verdict="No hang is seen in these dumps.", why=(why,))


def _in_flight(found: Diagnosis) -> Explanation:
    what = f" ({operation_text(found.point)})" if found.point else ""
    return Explanation(
        verdict=f"No rank is left behind: operations are under way{what}, as in a running job.",
        why=(
            "Every rank launched the same, or the dumps were written within half a second of the "
            "operation.",
        ),
        alternatives=(
            "If the job has not moved for minutes, the operation itself does not finish: "
            "the network or a device.",
        ),
        next_steps=(
            "Dump again a minute later: if the same operation is still under way, it is stuck.",
            "Look for NCCL warnings, Xid errors and links that are down on the group's hosts.",
        ),
    )


def operation_text(point: Point | None) -> str:
    """An operation as people name it: ``all_to_all 20537 of EXPERT_MODEL_PARALLEL_GROUP``."""
    if point is None:
        return ""
    name = "operation"
    if point.example is not None:
        member, row = point.example
        column = member.dump.entries.coded("name")
        name = column.values[column.codes[row]].rpartition(":")[2].lstrip("_") or name
    number = "" if point.seq is None else f" {point.seq}"
    return f"{name}{number} of {point.group.label}"


def _verdict(found: Diagnosis, point: Point, evidence: HangEvidence) -> str:
    who, what = name_ranks(found.culprits), operation_text(point)
    if found.in_circle:
        return f"Stuck in a circle: {who} wait for each other, first in {what}."
    if point.kind in _LEFT_OUT:
        if not point.waiting:
            return f"Stuck: {who} disagree in {what}: each launched something else."
        return f"Stuck: in {what}, {who} {_LEFT_OUT[point.kind]} the others."
    if point.kind is HangKind.NEVER_LAUNCHED and point.missing:
        return f"Stuck: {who} never launched {what}; {name_ranks(point.waiting)} wait{_s(point)}."
    if point.kind is HangKind.NEVER_LAUNCHED:
        why = "gone, or too stuck to write one"
        if set(found.culprits) <= evidence.failed.keys():
            why = evidence.failed[found.culprits[0]]
        return (
            f"Stuck: {name_ranks(point.waiting)} wait{_s(point)} in {what}, and {who} "
            f"left no dump: {why}."
        )
    return _unfinished_verdict(found, point, what)


def _s(point: Point) -> str:
    return "s" if len(point.waiting) == 1 else ""


def _unfinished_verdict(found: Diagnosis, point: Point, what: str) -> str:
    everybody = name_ranks(point.group.members)
    if point.kind is HangKind.LAUNCHED_NOT_STARTED:
        return (
            f"Stuck: all launched {what}, but on {name_ranks(point.missing)} it has not started: "
            "an earlier kernel blocks the stream there."
        )
    started = "started" if point.kind is HangKind.STARTED_NOT_FINISHED else "launched"
    if found.culprits:
        return f"Stuck: {what} finished on some ranks and not on {name_ranks(found.culprits)}."
    return f"Stuck: {everybody} all {started} {what} and none finished: network or device."


def _why(found: Diagnosis, point: Point, evidence: HangEvidence) -> Iterator[str]:
    if point.seq is not None:
        yield from _positions(point)
    yield from (f"{told[0].upper()}{told[1:]}." for told in point.others)
    yield from _roots(found)
    if found.unfinished is not None:
        yield (
            f"{_capital(name_ranks(found.unfinished.missing))} did not finish "
            f"{operation_text(found.unfinished)} and later ones, which the others finished: "
            "their devices had stopped before."
        )
    for rank in found.culprits[:_MOST_TOLD]:
        if rank in evidence.failed:
            yield f"Rank {rank} had failed: {evidence.failed[rank]}."
        if rank in evidence.stacks:
            yield f"Rank {rank} is in {evidence.stacks[rank][0]} instead."
    yield from _silent_dumps(found)
    yield from _messages(found)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _positions(point: Point) -> Iterator[str]:
    if point.kind is not HangKind.NEVER_LAUNCHED:
        return
    latest: dict[int, list[int]] = {}
    for member in point.group.members.values():
        if member.enqueued is not None:
            latest.setdefault(member.enqueued, []).append(member.rank)
    if len(latest) < 2:
        yield (
            f"{_capital(name_ranks(point.waiting))} of {point.group.label} "
            f"launched up to {max(latest, default=point.seq or 0)}."
        )
        return
    told = [f"{name_ranks(latest[seq])} to {seq}" for seq in sorted(latest)[:4]]
    more = f", and {len(latest) - 4} more positions" if len(latest) > 4 else ""
    yield f"In {point.group.label}, the latest launched: {', '.join(told)}{more}."


def _roots(found: Diagnosis) -> Iterator[str]:
    graph = waits(found.points)
    behind = {rank for point in found.points for rank in point.missing} - set(found.culprits)
    others = sorted(behind & graph.keys())
    if others and not found.in_circle:
        yield (
            f"{_capital(name_ranks(others))} lag too, but wait for others themselves; "
            f"{name_ranks(found.culprits)} wait for nobody."
        )


def _silent_dumps(found: Diagnosis) -> Iterator[str]:
    point = found.point
    if point is None:
        return
    empty = [
        rank
        for rank in found.culprits
        if rank in point.group.members and not len(point.group.members[rank].dump.entries)
    ]
    if empty:
        yield (
            f"The ring of {name_ranks(empty)} holds nothing under way: the host stopped between "
            "operations (in Python, the data loader, the file system or a lock)."
        )


def _messages(found: Diagnosis) -> Iterator[str]:
    """Messages that those blamed wait for themselves."""
    if found.point is None or found.point.seq is None:
        return
    mine = [p for p in found.messages if set(p.waiting) & set(found.culprits) and p.missing]
    senders = sorted({rank for point in mine for rank in point.missing} - set(found.culprits))
    if senders and found.unfinished is None:
        yield (
            f"{_capital(name_ranks(found.culprits))} may itself wait for a message of "
            f"{name_ranks(senders)}."
        )


def _alternatives(found: Diagnosis, point: Point, evidence: HangEvidence) -> Iterator[str]:
    if found.unfinished is not None:
        suspects = sorted(set(found.unfinished.missing) - set(found.culprits))
        if suspects:
            yield (
                f"{_capital(name_ranks(suspects))} may be at fault as well: "
                "nothing finished there since, although the host went on."
            )
    agrees = evidence.log_lines or set(found.culprits) & evidence.stacks.keys()
    if point.kind is HangKind.NEVER_LAUNCHED and point.missing and not agrees:
        yield (
            "If the job was running while ranks dumped, differences of a few operations are "
            "normal: dump twice and compare."
        )
    unknown = sorted(set(point.silent) - set(found.culprits))
    if unknown:
        yield f"{_capital(name_ranks(unknown))} left no dump and may be further behind."
    if point.example is None:
        yield "No ring holds the operation any more: a larger TORCH_FR_BUFFER_SIZE would."
    if not point.group.knows_ranks:
        yield "The dumps do not say who the group's members are: only those seen are counted."


def _next_steps(found: Diagnosis, point: Point, evidence: HangEvidence) -> Iterator[str]:
    who, hosts = name_ranks(found.culprits), _hosts(found.culprits, evidence.hosts)
    at = f" on {', '.join(hosts)}" if hosts else ""
    if point.kind in _LEFT_OUT:
        yield (
            f"Compare the code paths of {who} with the others': a branch that depends on data or "
            "rank, or batches of unequal shape."
        )
        return
    if found.unfinished is not None or point.kind is not HangKind.NEVER_LAUNCHED:
        ranks = found.unfinished.missing if found.unfinished else found.culprits
        whom = name_ranks(ranks) if ranks else "the group"
        yield f"Look at the devices of {whom}: dmesg for Xid, nvidia-smi -q, NCCL warnings, links."
    if found.culprits and point.kind is HangKind.NEVER_LAUNCHED:
        stacks = [evidence.stacks[r][0] for r in found.culprits if r in evidence.stacks]
        if stacks:
            yield f"See why {stacks[0]} does not return on {who}{at}."
        told = evidence.stacks.keys() | evidence.failed.keys()
        if not told & set(found.culprits):
            yield f"Get the Python stack of {who}{at}: distprof attach --stacks, or py-spy dump."
        yield f"Read the end of the log of {who}{at}."
        if any("SIGKILL" in evidence.failed.get(rank, "") for rank in found.culprits):
            yield "Ask dmesg for the out-of-memory killer, the scheduler for a limit it enforced."
    if found.in_circle:
        yield "Launch operations of different groups in the same order on every rank."
    if not evidence.log_lines and not evidence.stacks:
        yield "Put the ranks' logs beside the dumps and ask again: warnings are read with them."


def _hosts(ranks: Sequence[int], hosts: Mapping[int, str]) -> list[str]:
    return sorted({hosts[rank] for rank in ranks if hosts.get(rank)})
