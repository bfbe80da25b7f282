"""# nccl-over-sockets

## What it detects
Connections between nodes that go over TCP sockets, by NCCL's own log.

## Why it costs time
Sockets copy every byte through the host's memory and kernel. InfiniBand, RoCE or EFA move it from
GPU to GPU, at several times the bandwidth and a fraction of the latency.

## Evidence needed
A log of NCCL (`NCCL_DEBUG=INFO`) that names connections between nodes. It cannot show what network
the machines have beyond what NCCL found.

## How the cost is computed
Where there are traces too: exposed transfer of the collectives that cross nodes, per step, an upper
bound of what another network recovers. From a log alone no cost is named.

## How to fix
Find out why NCCL did not take the fast network: `NET/IB : No device found` means that the container
lacks the devices (`/dev/infiniband`) or the plug-in (libnccl-net.so for EFA, RDMA-SHARP, RCCL);
`NCCL_IB_DISABLE=1` or `NCCL_NET=Socket` turn it off.

## When it is wrong
Machines with Ethernet alone have nothing better. Then more sockets and threads for each connection
(`NCCL_NSOCKS_PERTHREAD`, `NCCL_SOCKET_NTHREADS`) help.

## Sources
NCCL's user guide, "Environment variables" and "Troubleshooting": networking.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.collectives.result import CollectivesResult
from distprof.sections.nccl.measure import BETWEEN
from distprof.sections.nccl.result import NcclResult
from distprof.sections.nccl.rules._shared import connections, exposed_between_nodes, setting_of
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Confidence, Severity


@rule(
    code="NET101",
    severity=Severity.WARNING,
    since="0.1.0",
    needs=(NcclResult, CollectivesResult, WaterfallResult, StepTimeResult),
    limits={"socket_ratio": Limit(0.01, "share of connections between nodes over sockets")},
)
def check(
    nccl: NcclResult,
    collectives: CollectivesResult,
    waterfall: WaterfallResult,
    step_time: StepTimeResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Yield one finding for all sockets."""
    sockets, total = connections(nccl, BETWEEN, lambda way: way.transport == "NET/Socket")
    if not sockets or sockets < limits["socket_ratio"] * total:
        return
    yield Draft(
        message=(
            f"{sockets:,} of {total:,} connections between nodes go over TCP sockets "
            f"(NET/Socket){_why(nccl)}."
        ),
        fix=(
            "Give NCCL the fast network: InfiniBand devices or the plug-in in the container, no "
            "NCCL_IB_DISABLE, no NCCL_NET=Socket; on Ethernet alone use more sockets."
        ),
        cost_ns_per_step=exposed_between_nodes(collectives, waterfall, step_time),
        confidence=Confidence.INFERRED,
        evidence=("nccl.transports", "nccl.networks"),
    )


def _why(nccl: NcclResult) -> str:
    """What the log says of the fast network."""
    for name in ("NCCL_IB_DISABLE", "NCCL_NET", "NCCL_NET_PLUGIN"):
        value = setting_of(nccl, name)
        if value and value != "0":
            return f"; {name} is set to {value}"
    if any(host.links for host in nccl.hosts):
        return ", although NCCL found cards for RDMA"
    if nccl.missing_networks:
        return f"; NCCL found no device for {', '.join(nccl.missing_networks)}"
    return "; whether the machines have a faster network is not in the log"
