"""# far-network-card

## What it detects
GPUs that send to other nodes through a network card on another socket: either NCCL uses a card that
is farther than the nearest, or the machine has no near one for them while other GPUs have.

## Why it costs time
Data then crosses the link between sockets, which is shared and slower than a PCIe switch, and
GPUDirect RDMA mostly does not work there. A collective waits for its slowest member.

## Evidence needed
`nvidia-smi topo -m` of a node (`--with`), in a job of several nodes. NCCL's log, if there is one,
tells which cards are used.

## How the cost is computed
Not at all: neither source tells how busy the cards are.

## How to fix
Let NCCL choose by the machine's topology: unset `NCCL_IB_HCA` lists that differ from it, look at
`NCCL_CROSS_NIC` and, in virtual machines, `NCCL_TOPO_FILE`. Where GPUs have no near card, the card
belongs into another slot.

## Example
```text
far-network-card: 2 of 8 GPUs of node-1 use a network card on another socket though a nearer one is
there, for example GPU5: mlx5_0 (SYS) instead of mlx5_6 (PIX).
```

## When it is wrong
Where the nearest cards are for storage or have no cable. `nvidia-smi` names cards in the order of
the host; a container with fewer devices may number its GPUs otherwise.

## Sources
`nvidia-smi topo -m` (legend). NCCL's user guide, `NCCL_NET_GDR_LEVEL`, `NCCL_CROSS_NIC`,
`NCCL_TOPO_FILE`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from distprof.rules.base import Draft, Limits, rule
from distprof.run.machine import ACROSS_SOCKETS
from distprof.sections.placement.result import CardPath, PlacementResult
from distprof.terms import Confidence, Severity


@rule(code="NET109", severity=Severity.WARNING, since="0.1.0", needs=(PlacementResult,))
def check(placement: PlacementResult, limits: Limits) -> Iterator[Draft]:  # noqa: ARG001
    """Yield one finding per machine."""
    if len(placement.nodes) < 2:
        return  # nothing leaves the machine
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
                f"though a nearer one is there, for example {_detour(detours[0])}.",
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
            "Let NCCL choose cards by the topology (NCCL_IB_HCA, NCCL_CROSS_NIC, NCCL_TOPO_FILE), "
            "or give each socket its card."
        ),
        cost_ns_per_step=None,
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
