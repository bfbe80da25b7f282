"""# slow-link

## What it detects
The collectives of some ranks take longer to transfer than the same collectives of other groups.

## Why it costs time
The groups of a mesh wait for each other in the next collective that joins them. One slow cable,
switch port or network card therefore holds up all ranks, although none of them is late.

## Evidence needed
Collectives matched across ranks on clocks that can be compared, with at least two groups of the
same axis that do the same work: transfers of the same kind and size between the same number of
nodes. A transfer runs from the last member's start, so it contains no lateness.

## How the cost is computed
Exposed transfer of the slow group above what it would be at the other groups' median, mean per
step. The time is part of what `exposed-communication` reports.

## How to fix
Compare the links of the named ranks with the others': NCCL_DEBUG=INFO shows which network card and
which protocol each rank uses. Check error counters, cable and link width (ibstat, nvidia-smi nvlink
-s, lspci -vv), measure with nccl-tests between these nodes alone, and swap the card or the cable.

## When it is wrong
Other jobs on the same links. Groups that look alike, but share a link with other traffic of the
same job, for example two ranks with one network card.

## Sources
Formula sheet, "Measured from traces" (transfer).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.collectives.result import CollectivesResult
from distprof.sections.idle.result import IdleResult, PausesResult
from distprof.sections.shares import WIDER_TRANSFER
from distprof.sections.stragglers.result import SlowLink, StragglersResult
from distprof.terms import Severity
from distprof.units import format_bytes, format_duration, format_ratio, name_ranks


@rule(
    code="STR107",
    severity=Severity.WARNING,
    since="0.1.0",
    needs=(StragglersResult, CollectivesResult, PausesResult, IdleResult),
    limits={
        "min_step_ratio": Limit(0.02, "share of the step that slow transfers may take"),
        "slower_ratio": Limit(1.2, "transfer relative to the other groups' that is tolerated"),
    },
)
def check(
    stragglers: StragglersResult,
    collectives: CollectivesResult,
    pauses: PausesResult,
    idle: IdleResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Yield one finding per set of ranks."""
    if not collectives.classes:
        return
    slow = [
        link
        for link in stragglers.links
        if link.share_of_step_ratio >= limits["min_step_ratio"]
        and link.ratio >= limits["slower_ratio"]
    ]
    sure = [link for link in slow if not (idle.is_cpu and _waits_for_cpu(link, pauses))]
    if slow and not sure:
        raise InsufficientEvidenceError(
            f"transfers of {name_ranks(slow[0].ranks)} take longer, but the machine is busy: the "
            "ranks wait at least as long for a free CPU, and CPU ranks move data themselves"
        )
    for link in sure:
        plural = "s" if link.num_compared > 1 else ""
        yield Draft(
            message=(
                f"Transfers of {name_ranks(link.ranks)} are slow: {_what(link)} takes "
                f"{format_duration(link.transfer_ns)}, {link.ratio:.2f} times as long as in "
                f"{link.num_compared} other group{plural}. This costs "
                f"{format_duration(link.lost_ns_per_step)} of each step "
                f"({format_ratio(link.share_of_step_ratio)})."
            ),
            fix=(
                f"Compare the links of these ranks{_where(link)} with the others': network card "
                "and protocol (NCCL_DEBUG=INFO), error counters, cable, link width. Measure with "
                "nccl-tests between these nodes alone."
            ),
            cost_ns_per_step=link.lost_ns_per_step,
            ranks=link.ranks,
            evidence=("stragglers.links",),
            without=link.scenario,
            explains=WIDER_TRANSFER,
        )


def _waits_for_cpu(link: SlowLink, pauses: PausesResult) -> bool:
    """Whether a rank waits for a free CPU at least as long as its slow transfers cost."""
    waits = (ns for rank, ns in pauses.queued_ns.items() if rank in link.ranks)
    return max(waits, default=0) >= link.lost_ns_per_step


def _what(link: SlowLink) -> str:
    size = "" if link.bytes is None else f"{format_bytes(link.bytes)}, "
    return f"{link.kind} ({size}{link.axis})"


def _where(link: SlowLink) -> str:
    return f" ({', '.join(link.nodes)})" if 1 < len(link.nodes) <= 4 else ""
