"""Rules about ranks and cards of hosts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.placement.result import ACROSS_SOCKETS, CardPath, PlacementResult
from distprof.sections.placement.rules.axes import crossing, exposed_ns, out_of_turn, placed
from distprof.sections.shares import WIDER_TRANSFER, StepTimes
from distprof.terms import Confidence, Severity


@rule(
    "NET107",
    Severity.ERROR,
    min_step_ratio=Limit(0.02, "smallest share of the step that is worth reporting"),
)
def cyclic_rank_order(
    placement: PlacementResult, times: StepTimes, limits: Limits
) -> Iterator[Draft]:
    """Ranks are assigned round-robin to the nodes (rank 0 on the first, rank 1 on the second, …),
    so groups of neighbouring ranks span nodes.

    ## Why it costs time
    A mesh places the axes that communicate most on neighbouring ranks. If neighbours are on
    different nodes, exactly that traffic crosses the network, while the light traffic meant for the
    network stays inside nodes.

    ## Evidence needed
    The node of every rank of the job, members of process groups, and matched collectives.

    ## How the cost is computed
    Exposed transfer of the axes that would span fewer nodes if ranks were numbered node by node:
    mean per rank and step, limited to all exposed transfer. This is an upper bound.

    ## How to fix
    Number ranks node by node: `srun --distribution=block`, `mpirun --map-by slot`. torchrun always
    does this.

    ## When it is wrong
    The mesh may be laid out for this order. The rule stays silent if an axis that sends more would
    span more nodes after the change.

    ## Sources
    SLURM, `srun --distribution`; Open MPI, `mpirun --map-by`. Formula sheet, "Anti-patterns".
    """
    placed(placement)
    axes = out_of_turn(placement)
    if not axes:
        return
    step = times.mean_step()
    cost = exposed_ns(axes, step)
    if step.ratio(cost) < limits["min_step_ratio"]:
        return
    worst = max(axes, key=lambda axis: axis.exposed_transfer_ns_per_step or 0)
    others = "" if len(axes) == 1 else f" (and of {len(axes) - 1} more axes)"
    yield Draft(
        message=(
            f"Ranks are assigned round-robin to {len(placement.nodes)} nodes, so groups of "
            f"{worst.axis} ({worst.size} ranks){others} span {worst.num_nodes} nodes instead of "
            f"{worst.nodes_if_blocked}: their exposed transfer takes {step.share(cost)}."
        ),
        fix=(
            "Number ranks node by node: srun --distribution=block, mpirun --map-by slot, torchrun."
        ),
        cost_ns_per_step=cost,
        confidence=Confidence.MODELLED,
        evidence=("placement.order", "placement.axes"),
        without=f"axis {worst.axis}",
        explains=WIDER_TRANSFER,
    )


@rule("NET109", Severity.WARNING, costs_time=False)
def far_network_card(placement: PlacementResult, limits: Limits) -> Iterator[Draft]:  # noqa: ARG001
    """GPUs send to other nodes through a network card on another socket. Either NCCL uses a card
    that is not the nearest, or the machine has no near card for these GPUs but has one for others.

    ## Why it costs time
    Data then crosses the link between sockets, which is shared and slower than a PCIe switch.
    GPUDirect RDMA usually does not work across it. A collective waits for its slowest member.

    ## Evidence needed
    `nvidia-smi topo -m` of a node (`--with`), in a job of several nodes. NCCL's log, if available,
    shows which cards are used.

    ## How the cost is computed
    No cost: neither source shows how busy the cards are.

    ## How to fix
    Let NCCL choose from the machine's topology: unset `NCCL_IB_HCA` lists that differ from it,
    check `NCCL_CROSS_NIC` and, in virtual machines, `NCCL_TOPO_FILE`. If GPUs have no near card,
    move a card to another slot.

    ## When it is wrong
    The nearest cards may be for storage or have no cable. `nvidia-smi` lists cards in the order of
    the host; a container with fewer GPUs may number them differently.

    ## Sources
    `nvidia-smi topo -m` (legend). NCCL's user guide, `NCCL_NET_GDR_LEVEL`, `NCCL_CROSS_NIC`,
    `NCCL_TOPO_FILE`.
    """
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


@rule("NET110", Severity.WARNING, costs_time=False)
def uneven_ranks_per_node(placement: PlacementResult, limits: Limits) -> Iterator[Draft]:  # noqa: ARG001
    """Nodes hold different numbers of ranks of one job.

    ## Why it costs time
    More ranks share the network cards, CPU cores and memory of a fuller node, and collectives wait
    for them. Algorithms that work node by node (trees, hierarchical and in-network reduction) need
    the same number of ranks on each node; otherwise NCCL falls back to slower ones.

    ## Evidence needed
    The node of every rank of the job.

    ## How the cost is computed
    No cost: this run does not show how fast the job would be on even nodes.

    ## How to fix
    Start the same number of ranks on each node: `--nproc-per-node`, `--ntasks-per-node`. Use a
    world size that is a multiple of the ranks per node.

    ## When it is wrong
    Nodes may differ on purpose, for example with different GPUs, with stages or experts placed
    accordingly.

    ## Sources
    NCCL's user guide (CollNet and NVLink SHARP need the same number of GPUs on each node). Formula
    sheet, "Collectives" (hierarchical all-reduce over G nodes of g GPUs).
    """
    placed(placement, lambda _: True)
    sizes = {node.node: len(node.ranks) for node in placement.nodes}
    if not placement.is_whole or len(set(sizes.values())) < 2:
        return
    if any(axis.could_fit and axis.exposed_transfer_ns_per_step for axis in crossing(placement)):
        return
    most = max(sizes, key=lambda node: sizes[node])
    least = min(sizes, key=lambda node: sizes[node])
    yield Draft(
        message=(
            f"The {sum(sizes.values())} ranks are spread unevenly over {len(sizes)} nodes: "
            f"{sizes[most]} on {most}, {sizes[least]} on {least}."
        ),
        fix="Start the same number of ranks on each node (--nproc-per-node, --ntasks-per-node).",
        confidence=Confidence.MEASURED,
        ranks=tuple(
            rank for node in placement.nodes if node.node in (most, least) for rank in node.ranks
        ),
        evidence=("placement.nodes",),
    )
