"""# nccl-over-sockets

## What it detects
Connections between nodes use TCP sockets, according to NCCL's log.

## Why it costs time
Sockets copy every byte through CPU memory and the operating system's kernel. InfiniBand, RoCE or
EFA move data from GPU to GPU at several times the bandwidth and a fraction of the latency.

## Evidence needed
An NCCL log (`NCCL_DEBUG=INFO`) that names connections between nodes, or at least the network that
NCCL chose. The log shows only networks that NCCL found. Hosts of one job that chose different
networks are named, too: they cannot connect.

## How the cost is computed
With traces: exposed transfer per step of the collectives that cross nodes. This is an upper bound
on the time that a faster network would recover. A log alone gives no cost.

## How to fix
Find out why NCCL did not use the fast network: `NET/IB : No device found` means that the container
lacks the devices (`/dev/infiniband`) or the plug-in (libnccl-net.so for EFA, RDMA-SHARP, RCCL).
`NCCL_IB_DISABLE=1` and `NCCL_NET=Socket` disable the fast network.

## When it is wrong
Machines with only Ethernet have no faster network. More sockets and threads per connection
(`NCCL_NSOCKS_PERTHREAD`, `NCCL_SOCKET_NTHREADS`) help there.

## Sources
NCCL's user guide, "Environment variables" and "Troubleshooting": networking.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.collectives.result import CollectivesResult
from distprof.sections.nccl.result import BETWEEN, NcclResult, different_networks
from distprof.sections.nccl.rules._shared import (
    connections,
    exposed_between_nodes,
    has_log,
    setting_of,
)
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Confidence, Severity

_MOST_CARDS = 4


@rule(
    code="NET101",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={
        "socket_ratio": Limit(0.01, "smallest share of connections between nodes over sockets")
    },
)
def check(
    nccl: NcclResult,
    collectives: CollectivesResult,
    waterfall: WaterfallResult,
    step_time: StepTimeResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Yield one finding for all sockets."""
    if has_log(nccl) and not nccl.transports and nccl.networks:
        yield from _by_choice(nccl)
        return
    sockets, total = connections(nccl, BETWEEN, lambda way: way.transport == "NET/Socket")
    if not sockets or sockets < limits["socket_ratio"] * total:
        return
    yield Draft(
        message=(
            f"{sockets:,} of {total:,} connections between nodes use TCP sockets "
            f"(NET/Socket){_why(nccl)}."
        ),
        fix=(
            "Give NCCL access to the fast network: add InfiniBand devices or the plug-in to the "
            "container, and unset NCCL_IB_DISABLE and NCCL_NET=Socket. With only Ethernet, use "
            "more sockets."
        ),
        cost_ns_per_step=exposed_between_nodes(collectives, waterfall, step_time),
        confidence=Confidence.INFERRED,
        evidence=("nccl.transports", "nccl.networks"),
    )


def _by_choice(nccl: NcclResult) -> Iterator[Draft]:
    """The finding from the network that NCCL chose, if the log names no connection.

    Inside a node, ranks do without the network, so a log of one host is information.
    """
    if differ := different_networks(nccl):
        yield Draft(
            message=f"Hosts chose different networks: {differ}. NCCL cannot connect them.",
            fix=(
                "Make the same network available on all hosts (InfiniBand devices, libibverbs or "
                "the plug-in in every container), or set NCCL_NET=Socket on all of them."
            ),
            confidence=Confidence.MEASURED,
            evidence=("nccl.hosts",),
        )
        return
    if set(nccl.networks) != {"Socket"}:
        return
    cards = sorted({card for host in nccl.hosts for card in host.cards})
    over = f" over {', '.join(cards[:_MOST_CARDS])}" if cards else ""
    number = nccl.num_processes
    where = f", on all {number:,} processes of the log" if number > 1 else ""
    yield Draft(
        message=(f"NCCL uses TCP sockets{over} for everything between nodes{where}{_why(nccl)}."),
        fix=(
            "Give NCCL access to the fast network: add InfiniBand devices, libibverbs or the "
            "plug-in to the container. With only Ethernet, use more sockets and all interfaces."
        ),
        confidence=Confidence.INFERRED,
        severity=None if nccl.num_hosts > 1 else Severity.INFO,
        evidence=("nccl.networks", "nccl.hosts"),
    )


def _why(nccl: NcclResult) -> str:
    """What the log says about the fast network."""
    if any("libibverbs" in warning.text for warning in nccl.warnings):
        return "; libibverbs could not be opened, so InfiniBand and RoCE are out of reach"
    for name in ("NCCL_IB_DISABLE", "NCCL_NET", "NCCL_NET_PLUGIN"):
        value = setting_of(nccl, name)
        if value and value != "0":
            return f"; {name} is set to {value}"
    if any(host.links for host in nccl.hosts):
        return ", although NCCL found RDMA cards"
    if nccl.missing_networks:
        return f"; NCCL found no device for {', '.join(nccl.missing_networks)}"
    return "; the log does not show whether the machines have a faster network"
