"""Rules about links."""

from __future__ import annotations

from collections.abc import Iterator

from distprof.escape import few_ranks
from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.collectives import CollectivesResult
from distprof.sections.idle import IdleResult, PausesResult
from distprof.sections.shares import WIDER_TRANSFER
from distprof.sections.stragglers.result import (
    MessageRank,
    MessagesResult,
    SlowLink,
    StragglersResult,
)
from distprof.terms import Confidence, Severity, StragglerCause, StragglerPattern
from distprof.units import fold_ranks, format_bytes, format_duration, format_ratio, name_ranks


@rule(
    "STR104",
    Severity.WARNING,
    min_step_ratio=Limit(0.03, "share of the step that a rank may idle longer than its peers"),
    chance=Limit(0.01, "chance that identical ranks differ this much"),
)
def messages_held_up(
    messages: MessagesResult,
    stragglers: StragglersResult,
    pauses: PausesResult,
    idle: IdleResult,
    limits: Limits,
) -> Iterator[Draft]:
    """In each step one rank leaves its GPU idle longer than its peers, and others wait for its
    messages.

    ## Why it costs time
    In a pipeline or a ring, the rank sends its messages that much later, and their receivers wait.

    ## Evidence needed
    Sends and receives with their wait times, CPU activities, and at least three steps. The other
    straggler rules name ranks that collectives show to be late for a known cause. `uneven-input`
    reports waiting for input.

    ## How the cost is computed
    Idle time blamed on the rank's CPU, above the median of its peers, mean per step, but at most
    the longest wait of any other rank in sends and receives. A rank that would have waited for a
    message anyway loses less, so the cost is an upper bound. The time is part of what
    `exposed-communication` reports.

    ## How to fix
    Look at the CPU of this rank: other processes on its cores, logging, checkpoints, garbage
    collection, work between steps that only this rank does.

    ## When it is wrong
    Work that only one rank does between steps on purpose, for example logging on the last stage. On
    a busy machine, CPU ranks are late because they wait for a free CPU: the rule names no rank that
    waits for a CPU at least as long as it is late.

    ## Sources
    Formula sheet, "Measured from traces" (straggler).
    """
    step = messages.step_ns
    if not step:
        return  # no messages
    queued = pauses.queued_ns if idle.is_cpu else {}
    explained = {  # by other rules
        rank.rank
        for rank in stragglers.ranks
        if rank.pattern is not StragglerPattern.NONE and rank.cause is not StragglerCause.UNKNOWN
    }
    late = [
        rank
        for rank in messages.ranks
        if rank.rank not in explained
        and rank.chance <= limits["chance"]
        and _cost_ns(rank, messages) >= limits["min_step_ratio"] * step
    ]
    sure = [rank for rank in late if queued.get(rank.rank, 0) < rank.late_ns_per_step]
    if late and not sure:
        worst = max(late, key=lambda rank: rank.late_ns_per_step)
        raise InsufficientEvidenceError(
            f"rank {worst.rank} holds up messages {format_duration(worst.late_ns_per_step)} longer "
            f"than its peers, but it waits {format_duration(queued[worst.rank])} of each step for "
            "a free CPU"
        )
    for rank in sure:
        late_ns = rank.late_ns_per_step
        yield Draft(
            headline=(
                f"Rank {rank.rank} holds messages up: its CPU is {format_ratio(late_ns / step)} of "
                "each step late"
            ),
            message=(
                f"It waits for its CPU {format_duration(late_ns)} longer than its peers in each "
                "step, and keeps others waiting for its messages."
            ),
            fix=(
                "Look at this rank's CPU: other processes on its cores, garbage collection, "
                "logging and checkpoints, work between steps that only this rank does."
            ),
            cost_ns_per_step=_cost_ns(rank, messages),
            confidence=Confidence.INFERRED,
            ranks=(rank.rank,),
            evidence=("messages.ranks",),
            without=f"rank {rank.rank}",
        )


def _cost_ns(rank: MessageRank, messages: MessagesResult) -> int:
    """Lateness of the rank, but at most the longest wait of another rank."""
    waits = [other.wait_ns_per_step for other in messages.ranks if other is not rank]
    return min(rank.late_ns_per_step, max(waits, default=0))


@rule(
    "STR107",
    Severity.WARNING,
    min_step_ratio=Limit(0.02, "share of the step that slow transfers may take"),
    slower_ratio=Limit(1.2, "transfer relative to the other groups' that is tolerated"),
)
def slow_link(
    stragglers: StragglersResult,
    collectives: CollectivesResult,
    pauses: PausesResult,
    idle: IdleResult,
    limits: Limits,
) -> Iterator[Draft]:
    """The collectives of some ranks take longer to transfer than the same collectives of other
    groups, in all steps or for a time. Or those of all groups of an axis take longer in some steps
    than in others.

    ## Why it costs time
    The groups of a mesh wait for each other in the next collective that joins them. One slow cable,
    switch port or network card therefore holds up all ranks, although none of them is late. A
    network that other jobs load for a time does the same.

    ## Evidence needed
    Collectives matched across ranks on clocks that can be compared, with at least two groups of the
    same axis that do the same work: transfers of the same kind and size between the same number of
    nodes. For slow steps of a whole axis one group is enough. A transfer runs from the last
    member's start, so it contains no lateness.

    ## How the cost is computed
    Exposed transfer of the slow group above what it would be at the other groups' median (the other
    steps' if all groups are slow together), mean per step. A link that is slow for a time takes at
    least 1.5 times as long (2.5 times in a single step), and is as fast as usual in at least a
    quarter of the steps. The time is part of what `exposed-communication` reports.

    ## How to fix
    Compare the links of the named ranks with the others': NCCL_DEBUG=INFO shows which network card
    and which protocol each rank uses. Check error counters, cable and link width (ibstat,
    nvidia-smi nvlink -s, lspci -vv), measure with nccl-tests between these nodes alone, and swap
    the card or the cable. If all groups are slow together, look at what else used the network in
    these steps: other jobs, checkpoints, and the switches' counters of congestion (ECN marks, PFC
    pauses) and of link flaps.

    ## When it is wrong
    Other jobs on the same links. Groups that look alike, but share a link with other traffic of the
    same job, for example two ranks with one network card.

    ## Sources
    Formula sheet, "Measured from traces" (transfer).
    """
    if not collectives.classes:
        return
    slow = [
        link
        for link in stragglers.links
        if link.share_of_step_ratio >= limits["min_step_ratio"]
        and link.ratio >= limits["slower_ratio"]
    ]
    sure = [link for link in slow if not (idle.is_cpu and _may_be_the_cpu(link, pauses))]
    if slow and not sure:
        raise InsufficientEvidenceError(
            f"transfers of {name_ranks(slow[0].ranks)} take longer, but CPU ranks move data "
            "themselves, and wait at least as long for a free CPU or are slow in one step only"
        )
    for link in sure:
        steps = fold_ranks(link.steps).replace(",", ", ")
        when = f" in {len(link.steps)} of {link.num_steps} steps ({steps})" if link.steps else ""
        size = "" if link.bytes is None else f"{format_bytes(link.bytes)}, "
        others = f"{link.num_compared} other group{'s' if link.num_compared > 1 else ''}"
        if not link.num_compared:
            others = "the other steps"
        yield Draft(
            headline=(
                f"Slow transfers of {few_ranks(link.ranks)} cost "
                f"{format_ratio(link.share_of_step_ratio)} of each step"
            ),
            message=(
                f"Their {link.kind} ({size}{link.axis}) takes "
                f"{format_duration(link.transfer_ns)}{when}, "
                f"{link.ratio:.2f} times as long as in {others}."
            ),
            fix=_fix(link),
            cost_ns_per_step=link.lost_ns_per_step,
            ranks=link.ranks if link.num_compared else (),
            evidence=("stragglers.links",),
            without=link.scenario,
            explains=WIDER_TRANSFER,
        )


def _fix(link: SlowLink) -> str:
    if not link.num_compared:
        return (
            "Look at what else used the network in these steps: other jobs, checkpoints, the "
            "switches' congestion counters (ECN marks, PFC pauses) and link flaps. Repeat "
            "nccl-tests between these nodes until it is slow, too."
        )
    nodes = f" ({', '.join(link.nodes)})" if 1 < len(link.nodes) <= 4 else ""
    return (
        f"Compare the links of these ranks{nodes} with the others': network card "
        "and protocol (NCCL_DEBUG=INFO), error counters, cable, link width. Measure with "
        "nccl-tests between these nodes alone."
    )


def _may_be_the_cpu(link: SlowLink, pauses: PausesResult) -> bool:
    """Whether a rank waits for a free CPU at least as long as its slow transfers cost."""
    waits = (ns for rank, ns in pauses.queued_ns.items() if rank in link.ranks)
    return len(link.steps) == 1 or max(waits, default=0) >= link.lost_ns_per_step
