"""A diagnosis in sentences: verdict, evidence, alternatives and next steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from distprof.units import name_ranks
from distprof.verbs.hang.divergence import Point, waits
from distprof.verbs.hang.result import HangEvidence, HangKind, HangState

if TYPE_CHECKING:
    from distprof.verbs.hang.measure import Diagnosis

__all__ = ["Explanation", "explain"]

_MOST_NAMED = 4
_LEFT_OUT = {
    HangKind.KIND_MISMATCH: "launched a different operation from",
    HangKind.SIZE_MISMATCH: "launched it with a different size from",
    HangKind.DTYPE_MISMATCH: "launched it with a different data type from",
}


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a diagnosis."""

    verdict: str
    why: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()


def explain(found: Diagnosis, evidence: HangEvidence) -> Explanation:
    """Explain a diagnosis in sentences."""
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
        why = "The job ended normally."
    elif any(len(group.members) > 1 for group in found.groups):
        why = (
            "In every group, the ranks that dumped launched the same, and no operation is pending."
        )
        if any(len({m.enqueued for m in g.members.values()}) > 1 for g in found.groups):
            why = (
                "Some ranks have completed operations that others had not launched when they "
                "dumped: the job was running, and ranks dumped one after another."
            )
    else:
        why = "No operation in these dumps is pending. The dumps of one rank cannot show more."
    return Explanation(verdict="These dumps show no hang.", why=(why,))


def _in_flight(found: Diagnosis) -> Explanation:
    what = f" ({operation_text(found.point)})" if found.point else ""
    return Explanation(
        verdict=f"No rank is behind: operations are in flight{what}, as in a running job.",
        why=(
            "Every rank launched the same, or the dumps were written within half a second of the "
            "operation.",
        ),
        alternatives=(
            "If the job has made no progress for minutes, the operation itself does not finish: "
            "suspect the network or a GPU.",
        ),
        next_steps=(
            "Dump again a minute later: if the same operation is still in flight, it is stuck.",
            "Look for NCCL warnings, Xid errors and failed links on the group's hosts.",
        ),
    )


def operation_text(point: Point | None) -> str:
    """An operation in text: ``all_to_all 20537 of EXPERT_MODEL_PARALLEL_GROUP``."""
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
        return f"Deadlock: {who} wait for each other, first in {what}."
    if point.kind in _LEFT_OUT:
        if not point.waiting:
            return f"Stuck: {who} disagree in {what}: each launched something different."
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
    members = name_ranks(point.group.members)
    if point.kind is HangKind.LAUNCHED_NOT_STARTED:
        return (
            f"Stuck: all launched {what}, but on {name_ranks(point.missing)} it has not started: "
            "an earlier kernel blocks the stream there."
        )
    started = "started" if point.kind is HangKind.STARTED_NOT_FINISHED else "launched"
    if found.culprits:
        return f"Stuck: {what} finished on some ranks but not on {name_ranks(found.culprits)}."
    return f"Stuck: {members} all {started} {what} and none finished: network or GPU."


def _why(found: Diagnosis, point: Point, evidence: HangEvidence) -> Iterator[str]:
    if point.seq is not None:
        yield from _positions(point)
    yield from (f"{told[0].upper()}{told[1:]}." for told in point.others)
    yield from _roots(found)
    if found.unfinished is not None:
        yield (
            f"{_capital(name_ranks(found.unfinished.missing))} did not finish "
            f"{operation_text(found.unfinished)} and later ones, which the others finished: "
            "their GPUs had stopped before."
        )
    for rank in found.culprits[:_MOST_NAMED]:
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
            f"{_capital(name_ranks(others))} lag too, but they wait for others; "
            f"{name_ranks(found.culprits)} wait for no rank."
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
            f"The ring of {name_ranks(empty)} holds nothing in flight: the CPU stopped between "
            "operations (in Python, the data loader, the file system or a lock)."
        )


def _messages(found: Diagnosis) -> Iterator[str]:
    """Messages that the blamed ranks wait for."""
    if found.point is None or found.point.seq is None:
        return
    mine = [p for p in found.messages if set(p.waiting) & set(found.culprits) and p.missing]
    senders = sorted({rank for point in mine for rank in point.missing} - set(found.culprits))
    if senders and found.unfinished is None:
        yield (
            f"{_capital(name_ranks(found.culprits))} may itself be waiting for a message from "
            f"{name_ranks(senders)}."
        )


def _alternatives(found: Diagnosis, point: Point, evidence: HangEvidence) -> Iterator[str]:
    if found.unfinished is not None:
        suspects = sorted(set(found.unfinished.missing) - set(found.culprits))
        if suspects:
            yield (
                f"{_capital(name_ranks(suspects))} may be at fault as well: "
                "nothing has finished there since, although the CPU continued."
            )
    agrees = evidence.log_lines or set(found.culprits) & evidence.stacks.keys()
    if point.kind is HangKind.NEVER_LAUNCHED and point.missing and not agrees:
        yield (
            "If the job was running while ranks dumped, differences of a few operations are "
            "normal. Dump twice and compare."
        )
    unknown = sorted(set(point.silent) - set(found.culprits))
    if unknown:
        yield f"{_capital(name_ranks(unknown))} left no dump and may be further behind."
    if point.example is None:
        yield "No ring holds the operation any more. Set a larger TORCH_FR_BUFFER_SIZE to keep it."
    if not point.group.knows_ranks:
        yield "The dumps do not list the group's members: distprof counts only those it saw."


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
        yield f"Check the GPUs of {whom}: dmesg for Xid, nvidia-smi -q, NCCL warnings, links."
    if found.culprits and point.kind is HangKind.NEVER_LAUNCHED:
        stacks = [evidence.stacks[r][0] for r in found.culprits if r in evidence.stacks]
        if stacks:
            yield f"Find out why {stacks[0]} does not return on {who}{at}."
        told = evidence.stacks.keys() | evidence.failed.keys()
        if not told & set(found.culprits):
            yield f"Get the Python stack of {who}{at}: distprof attach --stacks, or py-spy dump."
        yield f"Read the end of the log of {who}{at}."
        if any("SIGKILL" in evidence.failed.get(rank, "") for rank in found.culprits):
            yield "Check dmesg for the out-of-memory killer, the scheduler for an enforced limit."
    if found.in_circle:
        yield "Launch operations of different groups in the same order on every rank."
    if not evidence.log_lines and not evidence.stacks:
        yield "Add the ranks' logs to the folder of dumps: distprof reads their warnings."


def _hosts(ranks: Sequence[int], hosts: Mapping[int, str]) -> list[str]:
    return sorted({hosts[rank] for rank in ranks if hosts.get(rank)})
