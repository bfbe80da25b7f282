"""# far-network-card

## What it detects
GPUs send to other nodes through a network card on another socket. Either NCCL uses a card that is
not the nearest, or the machine has no near card for these GPUs but has one for others.

## Why it costs time
Data then crosses the link between sockets, which is shared and slower than a PCIe switch. GPUDirect
RDMA usually does not work across it. A collective waits for its slowest member.

## Evidence needed
`nvidia-smi topo -m` of a node (`--with`), in a job of several nodes. NCCL's log, if available,
shows which cards are used.

## How the cost is computed
No cost: neither source shows how busy the cards are.

## How to fix
Let NCCL choose from the machine's topology: unset `NCCL_IB_HCA` lists that differ from it, check
`NCCL_CROSS_NIC` and, in virtual machines, `NCCL_TOPO_FILE`. If GPUs have no near card, move a card
to another slot.

## When it is wrong
The nearest cards may be for storage or have no cable. `nvidia-smi` lists cards in the order of the
host; a container with fewer GPUs may number them differently.

## Sources
`nvidia-smi topo -m` (legend). NCCL's user guide, `NCCL_NET_GDR_LEVEL`, `NCCL_CROSS_NIC`,
`NCCL_TOPO_FILE`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from distprof.rules.base import Draft, Limits, rule
from distprof.sections.placement.result import ACROSS_SOCKETS, CardPath, PlacementResult
from distprof.terms import Confidence, Severity


@rule(
    code="NET109",
    severity=Severity.WARNING,
    since="0.1.0",
    costs_time=False,
)
def check(placement: PlacementResult, limits: Limits) -> Iterator[Draft]:  # noqa: ARG001
    """Yield one finding per machine."""
    if len(placement.nodes) < 2:
        return  # no traffic leaves the machine
    by_host: dict[str, list[CardPath]] = defaultdict(list)
    for card in placement.cards:
        by_host[card.host].append(card)
    for host, gpus in by_host.items():
        detours = [gpu for gpu in gpus if gpu.used_path == ACROSS_SOCKETS and _has_near(gpu)]
        remote = [gpu for gpu in gpus if gpu.path == ACROSS_SOCKETS]
        where = f"of {host}" if host else "of a node"
        if detours:
            yield _draft(
                detours,
                f"{len(detours)} of {len(gpus)} GPUs {where} use a network card on another socket "
                f"although a nearer one exists, for example {_detour(detours[0])}.",
                Severity.WARNING,
            )
        elif remote and any(_has_near(gpu) for gpu in gpus):
            yield _draft(
                remote,
                f"{len(remote)} of {len(gpus)} GPUs {where} have no network card on their own "
                f"socket, for example {remote[0].gpu}, while others have.",
                Severity.INFO,
            )


def _draft(gpus: Sequence[CardPath], message: str, severity: Severity) -> Draft:
    return Draft(
        message=message,
        fix=(
            "Let NCCL choose cards from the topology (NCCL_IB_HCA, NCCL_CROSS_NIC, "
            "NCCL_TOPO_FILE), or install a card on each socket."
        ),
        confidence=Confidence.INFERRED,
        severity=severity,
        ranks=tuple(sorted(gpu.rank for gpu in gpus if gpu.rank is not None)),
        evidence=("placement.cards",),
    )


def _has_near(gpu: CardPath) -> bool:
    return gpu.path not in ("", ACROSS_SOCKETS)


def _detour(gpu: CardPath) -> str:
    used, near = ", ".join(gpu.used), ", ".join(gpu.nearest)
    return f"{gpu.gpu}: {used} ({gpu.used_path}) instead of {near} ({gpu.path})"
