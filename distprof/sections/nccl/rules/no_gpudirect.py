"""# no-gpudirect

## What it detects
Connections between nodes use RDMA cards without GPUDirect RDMA, according to NCCL's log.

## Why it costs time
Without GPUDirect each byte goes from the GPU to CPU memory and from there to the card, and the same
way back on the receiver. It crosses PCIe and memory twice, latency grows, and CPU threads have to
copy.

## Evidence needed
An NCCL log (`NCCL_DEBUG=INFO`) that names connections between nodes, or in which NCCL says that
GPUDirect RDMA is disabled for its cards, and enabled for none. If some cards are too far from
a GPU, the log does not show whether another placement would bring them closer.

## How the cost is computed
With traces: exposed transfer per step of the collectives that cross nodes. This is an upper bound
on the time that GPUDirect would recover. A log alone gives no cost.

## How to fix
If some connections use GPUDirect and others do not, the drivers are fine and the latter use a card
that is far from their GPU: pair each GPU with the nearest card, on the same rail of every node.
Otherwise: NVIDIA GPUs with NVIDIA cards: load `nvidia-peermem` (or use DMA-BUF: Linux 5.12, open
kernel modules, NCCL 2.13). AMD GPUs: DMA-BUF and large BARs. Omni-Path: the GPUDirect build of its
driver, and PSM2 with CUDA. EFA: `aws-ofi-nccl`. Everywhere: disable ACS on PCIe switches.
`NCCL_NET_GDR_LEVEL` raises the distance up to which NCCL uses GPUDirect.

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
from distprof.sections.nccl.result import BETWEEN, NcclResult, NcclTransport
from distprof.sections.nccl.rules._shared import (
    connections,
    exposed_between_nodes,
    has_log,
    said,
    setting_of,
)
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Confidence, NcclRemark, Severity


@rule(
    code="NET102",
    severity=Severity.WARNING,
    since="0.1.0",
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
    if (
        has_log(nccl)
        and not nccl.transports
        and said(nccl, NcclRemark.GDR_OFF)
        and not said(nccl, NcclRemark.GDR_ON)
    ):
        yield _by_remarks(nccl)
        return
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
        fix=_FIX_FAR if total > plain else _fix(nccl),
        cost_ns_per_step=exposed_between_nodes(collectives, waterfall, step_time),
        confidence=Confidence.INFERRED,
        evidence=("nccl.transports",),
    )


def _by_remarks(nccl: NcclResult) -> Draft:
    """From what NCCL says of its cards, where the log names no connection."""
    remarks = said(nccl, NcclRemark.GDR_OFF)
    cards = sorted({remark.value for remark in remarks})
    more = f" and {len(cards) - _MOST_CARDS} more" if len(cards) > _MOST_CARDS else ""
    most = max(remark.num_processes for remark in remarks)
    where = f" on {most:,} of {nccl.num_processes:,} processes" if nccl.num_processes > 1 else ""
    return Draft(
        message=(
            f"NCCL says{where} that GPUDirect RDMA is disabled for its network cards "
            f"({', '.join(cards[:_MOST_CARDS])}{more}), and enabled for none: every byte between "
            "nodes goes through CPU memory."
        ),
        fix=_fix(nccl),
        confidence=Confidence.INFERRED,
        evidence=("nccl.remarks",),
    )


_MOST_CARDS = 4

_FIX_FAR = (
    "GPUDirect RDMA works on the other connections, so the drivers are fine: these use a card that "
    "is far from their GPU. Pair each GPU with the nearest card (NCCL_CROSS_NIC=0, the same rail "
    "on each node, NCCL_TOPO_FILE in virtual machines), or raise NCCL_NET_GDR_LEVEL."
)


def _fix(nccl: NcclResult) -> str:
    """The fix for this vendor's GPUs and cards; nvidia-peermem works only with NVIDIA's."""
    if _is_amd(nccl):
        load = (
            "Use a kernel and amdgpu driver with DMA-BUF (or ib_peer_mem), set "
            "NCCL_DMABUF_ENABLE=1, and allow large BARs in the BIOS"
        )
    elif _cards(nccl, "hfi1"):
        load = (
            "Install the GPUDirect build of Omni-Path's hfi1 driver and use PSM2 with CUDA "
            "(PSM2_CUDA=1, NCCL's PSM2 network plug-in)"
        )
    elif _cards(nccl, "efa") or any("Libfabric" in name for name in nccl.networks):
        load = "Use aws-ofi-nccl with an EFA driver and an instance type that supports RDMA reads"
    elif _cards(nccl, "bnxt_re") or _cards(nccl, "irdma"):
        load = (
            "Use DMA-BUF: Linux 5.12 or later, open kernel modules, and a card driver with DMA-BUF"
        )
    else:
        load = "Load nvidia-peermem or use DMA-BUF"
    return (
        f"{load}. Disable ACS on PCIe switches, and set NCCL_NET_GDR_LEVEL to a distance that "
        "covers the cards."
    )


def _cards(nccl: NcclResult, prefix: str) -> bool:
    return any(card.startswith(prefix) for host in nccl.hosts for card in host.cards)


def _is_amd(nccl: NcclResult) -> bool:
    """Whether the library is RCCL, by its version or by AMD's links between GPUs."""
    versions = " ".join(version.value.lower() for version in nccl.versions)
    is_rccl = any(word in versions for word in ("hip", "rocm", "rccl", "-head"))
    return is_rccl or any("xgmi" in path.lower() for path in nccl.paths)


def _is_rdma(way: NcclTransport) -> bool:
    return (
        way.where == BETWEEN and way.transport.startswith("NET/") and way.transport != "NET/Socket"
    )
