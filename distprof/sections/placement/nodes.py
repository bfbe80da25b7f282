"""Nodes and groups of a run, from its topology or, failing that, from NCCL's log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

import msgspec
import numpy as np

from distprof.artefacts.record import grouped
from distprof.config import TopologyConfig
from distprof.hardware import Sheet, recognise_gpu
from distprof.run.evidence import PATHS, Machine, Machines
from distprof.run.logs import NcclLog
from distprof.run.run import Run
from distprof.run.topology import GroupNames, ProcessGroup
from distprof.sections.collectives.measure import name_of_group
from distprof.sections.placement import CardPath
from distprof.terms import MeshAxis

_MAX_RANK = 1 << 18


def nodes_of(run: Run) -> tuple[dict[str, tuple[int, ...]], str]:
    """Nodes in order of their first ranks, and how they were found."""
    found: Mapping[str, Iterable[int]] = run.topology.nodes
    origin: str = run.topology.node_origin
    if not found and (log := run.get(NcclLog)) is not None:
        ranks_of = _ranks_of_log(log).items()
        found = grouped([(log.processes[process].host, rank) for process, rank in ranks_of])
        origin = "NCCL's log"
    usable = {
        name: tuple(sorted({rank for rank in ranks if 0 <= rank < _MAX_RANK}))
        for name, ranks in found.items()
    }
    ordered = {name: ranks for name, ranks in sorted(usable.items(), key=lambda n: n[1]) if ranks}
    return ordered, origin if ordered else ""


def _ranks_of_log(log: NcclLog) -> dict[int, int]:
    """Global rank of each process; if the log has none, the rank in the largest communicator."""
    ranks = {i: p.rank for i, p in enumerate(log.processes) if p.rank is not None}
    if ranks:
        return ranks
    largest = max(log.communicators, key=lambda one: one.num_ranks, default=None)
    if largest is None or not largest.is_certain:
        return {}
    return {m.process: m.rank for m in largest.members if 0 <= m.process < len(log.processes)}


def world_size_of(run: Run) -> int | None:
    """Number of ranks of the job; None if unknown."""
    log = run.get(NcclLog)
    return run.topology.world_size or (log.world_size if log is not None else None)


def machines_of(run: Run) -> tuple[Machine, ...]:
    """Machines that the user provided; may be empty."""
    provided = run.get(Machines)
    return provided.machines if provided is not None else ()


class Group(msgspec.Struct, frozen=True):
    """A process group: its axis or name, and its members."""

    axis: str
    size: int
    ranks: tuple[int, ...]


def _groups_of_log(log: NcclLog) -> Iterator[Group]:
    """Communicators whose members all have known ranks."""
    rank_of = _ranks_of_log(log)
    for one in log.communicators:
        ranks = tuple(sorted(rank_of[m.process] for m in one.members if m.process in rank_of))
        if one.is_certain and len(ranks) == one.num_ranks:
            yield Group(_log_label(ranks, log.world_size), len(ranks), ranks)


def _log_label(ranks: Sequence[int], world_size: int | None) -> str:
    """A name derived from the member ranks, because NCCL does not know mesh axes."""
    if len(ranks) == world_size:
        return MeshAxis.WORLD.value
    steps = set(np.diff(ranks).tolist())
    if len(steps) != 1:
        return "communicators of other ranks"
    return f"communicators of ranks {steps.pop()} apart"


def _label(group: ProcessGroup, names: GroupNames) -> str:
    return group.axis.value if group.axis else name_of_group(group, names)


def groups_by_axis(run: Run) -> dict[tuple[str, int], list[Group]]:
    """Groups of two or more ranks by axis and size, each set of members once."""
    found: dict[tuple[str, int], dict[tuple[int, ...], Group]] = defaultdict(dict)
    # groups from the traces or, if they have none, communicators from NCCL's log
    known = [group for group in run.topology.groups if group.ranks]
    names = GroupNames(run.topology.groups)
    groups = [Group(_label(group, names), len(group.ranks), group.ranks) for group in known]
    log = run.get(NcclLog)
    for group in groups if groups or log is None else _groups_of_log(log):
        if group.size > 1:
            found[group.axis, group.size][group.ranks] = group
    return {key: list(members.values()) for key, members in found.items()}


# Scale-up domains: ranks connected by a fast fabric -----------------------------------------------

Nodes = Mapping[str, tuple[int, ...]]


class Domains(msgspec.Struct, frozen=True):
    """Domains of the ranks whose nodes are known; every such rank is in exactly one."""

    ranks: Mapping[str, tuple[int, ...]]  # Ranks by name of the domain.
    origin: str  # How they were found, as text.
    # Bandwidth of the fabric from the hardware sheet, bytes per second and direction; None if the
    # GPU is unknown.
    bandwidth: float | None = None
    notes: tuple[str, ...] = ()  # What is unknown or was assumed, one sentence each.

    @property
    def size(self) -> int:
        """Ranks of the largest domain."""
        return max((len(ranks) for ranks in self.ranks.values()), default=0)

    @property
    def of_rank(self) -> Mapping[int, str]:
        """Rank to the name of its domain."""
        return {rank: name for name, ranks in self.ranks.items() for rank in ranks}


def find_domains(
    run: Run, nodes: Nodes, topology: TopologyConfig, sheet: Sheet | None = None
) -> Domains:
    """Domains from the configuration, from the GPU model's usual domain size, or one per node."""
    gpu = recognise_gpu(sheet, _device(run)) if sheet is not None else None
    bandwidth = gpu.scale_up_bandwidth if gpu is not None else None
    if topology.domains:
        return Domains(_named(nodes, topology.domains), "the configuration", bandwidth)
    if topology.gpus_per_domain is not None:
        parts = _sized(nodes, topology.gpus_per_domain)
        return Domains(parts, "the configuration", bandwidth)
    if gpu is not None and gpu.gpus_per_domain is not None and gpu.domain_spans_hosts:
        # fill domains with nodes in order of their ranks, because no trace names racks
        parts = _sized(nodes, gpu.gpus_per_domain)
        note = (
            f"The nodes that share a domain of {gpu.gpus_per_domain} GPUs are assumed from the "
            "order of ranks. Set [topology] domains in distprof.toml to specify them."
        )
        notes = (note,) if len(parts) > 1 else ()
        return Domains(
            parts, f"{gpu.title}: {gpu.gpus_per_domain} GPUs", gpu.scale_up_bandwidth, notes
        )
    if gpu is not None and gpu.gpus_per_domain is not None:
        return Domains(nodes, f"{gpu.title}: a node is a domain", bandwidth)
    machines = machines_of(run)
    are_joined = all(len(m.islands) == 1 and len(m.gpus) > 1 for m in machines)
    if gpu is None and machines and are_joined:
        return Domains(nodes, "NVLink, from nvidia-smi topo -m: a node is a domain", bandwidth)
    notes = (_unknown(_device(run)),) if len(nodes) > 1 else ()
    return Domains(nodes, "nodes", bandwidth, notes)


def _device(run: Run) -> str:
    names = {rank.device.name for rank in run.ranks if rank.device.name}
    if not names and run.job is not None:
        names = {entry.device for entry in run.job.ranks if entry.device}
    return names.pop() if len(names) == 1 else ""


def _unknown(device: str) -> str:
    of = f"of {device}" if device and device != "cpu" else "of this cluster"
    return (
        f"Scale-up domains {of} are unknown, so each node counts as one. Set [topology] "
        "gpus_per_domain in distprof.toml if the fast fabric spans nodes."
    )


def _named(nodes: Nodes, domains: Mapping[str, Sequence[str]]) -> Nodes:
    """Assign each node to the first domain that names it; an unnamed node is its own domain."""
    found: dict[str, list[int]] = {}
    for node, ranks in nodes.items():
        domain = next(
            (
                name
                for name, patterns in domains.items()
                if any(fnmatchcase(node, pattern) for pattern in patterns)
            ),
            node,
        )
        found.setdefault(domain, []).extend(ranks)
    return {name: tuple(sorted(ranks)) for name, ranks in found.items()}


def _sized(nodes: Nodes, size: int) -> Nodes:
    """Domains of at most ``size`` ranks: parts of nodes, or several whole nodes."""
    parts = list(_parts(nodes.values(), size))
    if len(parts) == len(nodes) and all(a == b for a, b in zip(parts, nodes.values(), strict=True)):
        return nodes
    return {f"domain{index}": tuple(sorted(part)) for index, part in enumerate(parts)}


def _parts(nodes: Iterable[tuple[int, ...]], size: int) -> Iterator[tuple[int, ...]]:
    gathered: tuple[int, ...] = ()
    for ranks in nodes:
        if len(gathered) + len(ranks) > size and gathered:
            yield gathered
            gathered = ()
        if len(ranks) <= size:
            gathered += ranks
        else:
            yield from (ranks[start : start + size] for start in range(0, len(ranks), size))
    if gathered:
        yield gathered


def card_paths(run: Run, nodes: Mapping[str, Sequence[int]]) -> Iterator[CardPath]:
    """Every GPU of every machine that the user provided and that is part of the job."""
    machines, log = machines_of(run), run.get(NcclLog)
    hosts = list(nodes) or [machine.host for machine in machines]
    for machine in machines:
        if not machine.cards:
            continue
        if machine.host:
            if any(_is_same_host(machine.host, host) for host in hosts):
                yield from _of_machine(machine, machine.host, log)
        elif len(machines) == 1 and len(hosts) == 1:
            yield from _of_machine(machine, hosts[0], log)
        elif len(machines) == 1:
            yield from _of_machine(machine, "", None)


def _of_machine(machine: Machine, host: str, log: NcclLog | None) -> Iterator[CardPath]:
    used = _used_cards(machine, host, log) if log is not None else {}
    near = [machine.nearest_cards(gpu) for gpu in range(len(machine.gpus))]
    for gpu, (path, cards) in enumerate(near):
        rank, mine = used.get(gpu, (None, ()))
        known = [
            path for path in (machine.path_to_card(gpu, card) for card in mine) if path in PATHS
        ]
        yield CardPath(
            host=host,
            gpu=machine.gpus[gpu],
            path=path,
            nearest=tuple(machine.cards[card] for card in cards),
            num_sharing=sum(bool(set(cards) & set(other)) for _, other in near) if cards else 0,
            used=tuple(machine.cards[card] for card in mine),
            used_path=max(known, key=PATHS.index, default=""),
            rank=rank,
        )


def _used_cards(
    machine: Machine, host: str, log: NcclLog
) -> dict[int, tuple[int | None, tuple[int, ...]]]:
    """GPU to its rank and the network cards that its process uses.

    Empty if processes do not identify their GPU: in containers with one GPU each, every process
    names its GPU as the first.
    """
    gpu_of: dict[int, int] = {}
    for one in log.communicators:
        for member in one.members:
            is_here = 0 <= member.process < len(log.processes) and _is_same_host(
                log.processes[member.process].host, host
            )
            if is_here and member.device is not None:
                gpu_of[member.process] = member.device
    if len(set(gpu_of.values())) < len(gpu_of) or any(
        not 0 <= gpu < len(machine.gpus) for gpu in gpu_of.values()
    ):
        return {}
    names = {
        card.index: card.name.partition(":")[0]
        for card in log.cards
        if _is_same_host(card.host, host)
    }
    return {
        gpu: (log.processes[process].rank, _cards_of(process, machine, names, log))
        for process, gpu in gpu_of.items()
    }


def _cards_of(
    process: int, machine: Machine, names: Mapping[int, str], log: NcclLog
) -> tuple[int, ...]:
    used = {
        names[edge.card]
        for edge in log.edges
        if edge.process == process and edge.card is not None and edge.card in names
    }
    return tuple(card for card, name in enumerate(machine.cards) if name in used)


def _is_same_host(first: str, second: str) -> bool:
    """Whether two names belong to one host, with or without its domain."""
    return first.partition(".")[0] == second.partition(".")[0]
