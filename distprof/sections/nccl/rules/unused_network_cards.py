"""# unused-network-cards

## What it detects
NCCL uses only some of a node's network cards, although GPUs share the cards that it uses; or a
setting leaves it a single RDMA card for four GPUs or more.

## Why it costs time
GPUs that share a card share its bandwidth: with half of the cards, traffic between nodes runs at
half speed.

## Evidence needed
An NCCL log (`NCCL_DEBUG=INFO`) that names the cards of a host (`NET/IB : Using …`) and the
connections that leave it. It does not show whether an unused card has a cable.

## How the cost is computed
No cost: a log does not show how busy the cards are.

## How to fix
Use more channels (`NCCL_MIN_NCHANNELS`, `NCCL_NCHANNELS_PER_NET_PEER`) or set `NCCL_CROSS_NIC=1`;
give NCCL the machine's topology if it runs in a virtual machine (`NCCL_TOPO_FILE`); check whether
`NCCL_IB_HCA` excludes cards.

## When it is wrong
Cards for storage or management are not meant for NCCL (exclude them with `NCCL_IB_HCA`), and a
communicator of few ranks may not need all. A truncated log names only some connections.

## Sources
NCCL's user guide, `NCCL_IB_HCA`, `NCCL_CROSS_NIC`, `NCCL_TOPO_FILE`.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.nccl.result import NcclHost, NcclResult
from distprof.sections.nccl.rules._shared import has_log, setting_of
from distprof.terms import Confidence, Severity

_MOST_NAMED = 6


@rule(
    code="NET104",
    severity=Severity.INFO,
    since="0.1.0",
    limits={
        "used_ratio": Limit(
            0.99, "smallest acceptable share of used cards among those that could each serve a GPU"
        )
    },
    costs_time=False,
)
def check(nccl: NcclResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding for all hosts."""
    if not has_log(nccl):
        return
    alone = [host for host in nccl.hosts if _has_one(host)]
    allowed = setting_of(nccl, "NCCL_IB_HCA")
    if alone and allowed:
        yield _only_one(nccl, alone, allowed)
        return
    found = [host for host in nccl.hosts if _is_short(host, limits["used_ratio"])]
    if not found:
        return
    worst = min(found, key=lambda host: (len(host.used_cards) / len(host.cards), host.host))
    idle = [card for card in worst.cards if card not in worst.used_cards]
    more = ", …" if len(idle) > _MOST_NAMED else ""
    yield Draft(
        message=(
            f"On {len(found)} of {len(nccl.hosts)} hosts NCCL uses {len(worst.used_cards)} of "
            f"{len(worst.cards)} network cards for {worst.num_processes} GPUs, for example on "
            f"{worst.host}, where {', '.join(idle[:_MOST_NAMED])}{more} "
            f"{'is' if len(idle) == 1 else 'are'} unused."
        ),
        fix=(
            "Use more channels or NCCL_CROSS_NIC=1, give NCCL the topology (NCCL_TOPO_FILE), and "
            "check NCCL_IB_HCA."
        ),
        confidence=Confidence.INFERRED,
        ranks=tuple(sorted(rank for host in found for rank in host.ranks)),
        evidence=("nccl.hosts",),
    )


def _only_one(nccl: NcclResult, alone: list[NcclHost], allowed: str) -> Draft:
    most = max(alone, key=lambda host: (host.num_processes, host.host))
    return Draft(
        message=(
            f"NCCL_IB_HCA={allowed} leaves NCCL one network card ({most.cards[0]}) for "
            f"{most.num_processes:,} GPUs on {len(alone):,} of {len(nccl.hosts):,} hosts."
        ),
        fix="Unset NCCL_IB_HCA, or name all cards that are meant for training.",
        confidence=Confidence.INFERRED,
        ranks=tuple(sorted(rank for host in alone for rank in host.ranks)),
        evidence=("nccl.hosts", "nccl.settings"),
    )


_MANY_GPUS = 4


def _has_one(host: NcclHost) -> bool:
    """Whether many GPUs of a host have one RDMA card between them."""
    return len(host.cards) == 1 and bool(host.links) and host.num_processes >= _MANY_GPUS


def _is_short(host: NcclHost, min_ratio: float) -> bool:
    """Whether GPUs share cards while others are idle."""
    useful = min(len(host.cards), host.num_processes)
    return bool(host.used_cards) and len(host.used_cards) < min_ratio * useful
