"""# no-gpudirect

## What it detects
Connections between nodes over RDMA cards without GPUDirect RDMA, by NCCL's own log.

## Why it costs time
Without GPUDirect each byte goes from the GPU to the host's memory and from there to the card, and
the same way back: PCIe and memory are crossed twice, latency grows, and CPU threads copy.

## Evidence needed
A log of NCCL (`NCCL_DEBUG=INFO`) that names connections between nodes. Where some cards lie too far
from a GPU it cannot tell whether another placement would bring them near.

## How the cost is computed
Where there are traces too: exposed transfer of the collectives that cross nodes, per step, an upper
bound of what GPUDirect recovers. From a log alone no cost is named.

## How to fix
Load `nvidia-peermem` (or use DMA-BUF: Linux 5.12, open kernel modules, NCCL 2.13), and switch off
ACS on PCIe switches. `NCCL_NET_GDR_LEVEL` raises the distance at which NCCL still uses it.

## When it is wrong
Some cards cannot do it (Omni-Path without its driver, virtual functions), and some GPUs neither
(GeForce). Connections of rare operations weigh as much here as those of every step.

## Sources
NCCL's user guide, `NCCL_NET_GDR_LEVEL` and "GPU Direct".
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.collectives.result import CollectivesResult
from distprof.sections.nccl.measure import BETWEEN
from distprof.sections.nccl.result import NcclResult, NcclTransport
from distprof.sections.nccl.rules._shared import connections, exposed_between_nodes, setting_of
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Confidence, Severity


@rule(
    code="NET102",
    severity=Severity.WARNING,
    since="0.1.0",
    needs=(NcclResult, CollectivesResult, WaterfallResult, StepTimeResult),
    limits={"plain_ratio": Limit(0.05, "share of connections over RDMA cards without GPUDirect")},
)
def check(
    nccl: NcclResult,
    collectives: CollectivesResult,
    waterfall: WaterfallResult,
    step_time: StepTimeResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Yield one finding for all connections."""
    plain, _ = connections(nccl, BETWEEN, lambda way: _is_rdma(way) and not way.has_gdr)
    total, _ = connections(nccl, BETWEEN, _is_rdma)
    if not plain or plain < limits["plain_ratio"] * total:
        return
    ways = {way.transport for way in nccl.transports if _is_rdma(way) and not way.has_gdr}
    level = setting_of(nccl, "NCCL_NET_GDR_LEVEL")
    because = f"; NCCL_NET_GDR_LEVEL is set to {level}" if level else ""
    yield Draft(
        message=(
            f"{plain:,} of {total:,} connections between nodes use {', '.join(sorted(ways))} "
            f"without GPUDirect RDMA: every byte goes through the host's memory{because}."
        ),
        fix=(
            "Load nvidia-peermem or use DMA-BUF, switch off ACS on PCIe switches, and set "
            "NCCL_NET_GDR_LEVEL to a distance that covers the cards."
        ),
        cost_ns_per_step=exposed_between_nodes(collectives, waterfall, step_time),
        confidence=Confidence.INFERRED,
        evidence=("nccl.transports",),
    )


def _is_rdma(way: NcclTransport) -> bool:
    return (
        way.where == BETWEEN and way.transport.startswith("NET/") and way.transport != "NET/Socket"
    )
