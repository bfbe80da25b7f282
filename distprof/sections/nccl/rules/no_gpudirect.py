"""# no-gpudirect

## What it detects
Connections between nodes use RDMA cards without GPUDirect RDMA, according to NCCL's log.

## Why it costs time
Without GPUDirect each byte goes from the GPU to CPU memory and from there to the card, and back the
same way. It crosses PCIe and memory twice, latency grows, and CPU threads have to copy.

## Evidence needed
An NCCL log (`NCCL_DEBUG=INFO`) that names connections between nodes. If some cards are too far from
a GPU, the log does not show whether another placement would bring them closer.

## How the cost is computed
With traces: exposed transfer per step of the collectives that cross nodes. This is an upper bound
of the time that GPUDirect recovers. A log alone gives no cost.

## How to fix
Load `nvidia-peermem` (or use DMA-BUF: Linux 5.12, open kernel modules, NCCL 2.13), and disable ACS
on PCIe switches. `NCCL_NET_GDR_LEVEL` raises the distance up to which NCCL uses GPUDirect.

## When it is wrong
Some cards do not support GPUDirect (Omni-Path without its driver, virtual functions), and neither
do some GPUs (GeForce). Connections of rare operations count as much here as those used in every
step.

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
    limits={"plain_ratio": Limit(0.05, "smallest share of RDMA connections without GPUDirect")},
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
            f"without GPUDirect RDMA: every byte goes through CPU memory{because}."
        ),
        fix=(
            "Load nvidia-peermem or use DMA-BUF, disable ACS on PCIe switches, and set "
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
