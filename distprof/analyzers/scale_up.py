"""Scale-up domains: which ranks a fast fabric joins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from distprof.config import TopologyConfig
from distprof.hardware.recognise import recognise_gpu
from distprof.hardware.sheet import Gpu, Sheet
from distprof.run.machine import Machine
from distprof.run.run import Run

__all__ = ["Domains", "find_domains"]

Nodes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Domains:
    """Domains of the ranks whose nodes are known; every such rank is in exactly one.

    Args:
        ranks: Name of a domain to its ranks.
        origin: How they were found, for people.
        bandwidth: Of the fabric by the hardware sheet, bytes per second and direction; None where
            the device is not known.
        notes: What is not known or was assumed, one sentence each.
    """

    ranks: Mapping[str, tuple[int, ...]]
    origin: str
    bandwidth: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Ranks of the largest."""
        return max((len(ranks) for ranks in self.ranks.values()), default=0)

    @property
    def of_rank(self) -> Mapping[int, str]:
        """Rank to the name of its domain."""
        return {rank: name for name, ranks in self.ranks.items() for rank in ranks}


def find_domains(
    run: Run, nodes: Nodes, topology: TopologyConfig, sheet: Sheet | None = None
) -> Domains:
    """By the configuration, else by what devices usually are part of, else nodes.

    Args:
        run: For the devices' names.
        nodes: Name to ranks, in order of the first ranks.
        topology: What the user says of domains.
        sheet: Devices by name; None to know none.
    """
    gpu = recognise_gpu(sheet, _device(run)) if sheet is not None else None
    bandwidth = gpu.scale_up_bandwidth if gpu is not None else None
    if topology.domains:
        return Domains(_named(nodes, topology.domains), "the configuration", bandwidth)
    if topology.gpus_per_domain is not None:
        parts = _sized(nodes, topology.gpus_per_domain)
        return Domains(parts, "the configuration", bandwidth)
    if gpu is not None and gpu.gpus_per_domain is not None and gpu.domain_spans_hosts:
        return _across_hosts(nodes, gpu, gpu.gpus_per_domain)
    if gpu is not None and gpu.gpus_per_domain is not None:
        return Domains(nodes, f"{gpu.title}: a node is a domain", bandwidth)
    if gpu is None and _is_joined(run.machines):
        return Domains(nodes, "NVLink by nvidia-smi topo -m: a node is a domain", bandwidth)
    notes = (_unknown(_device(run)),) if len(nodes) > 1 else ()
    return Domains(nodes, "nodes", bandwidth, notes)


def _is_joined(machines: Sequence[Machine]) -> bool:
    """Whether NVLink joins all GPUs of every machine that the user showed."""
    return bool(machines) and all(len(m.islands) == 1 and len(m.gpus) > 1 for m in machines)


def _device(run: Run) -> str:
    names = {rank.device.name for rank in run.ranks if rank.device.name}
    if not names and run.job is not None:
        names = {entry.device for entry in run.job.ranks if entry.device}
    return names.pop() if len(names) == 1 else ""


def _unknown(device: str) -> str:
    of = f"of {device}" if device and device != "cpu" else "of this cluster"
    return (
        f"Scale-up domains {of} are not known: a node counts as one. Say so in distprof.toml "
        "([topology] gpus_per_domain) if the fast fabric spans nodes."
    )


def _across_hosts(nodes: Nodes, gpu: Gpu, size: int) -> Domains:
    """Nodes of consecutive ranks share a domain as far as they fit: no trace names racks."""
    parts = _sized(nodes, size)
    note = (
        f"Which nodes share a domain of {size} GPUs is assumed from the order of ranks; "
        "[topology] domains in distprof.toml says it for sure."
    )
    notes = (note,) if len(parts) > 1 else ()
    return Domains(parts, f"{gpu.title}: {size} GPUs", gpu.scale_up_bandwidth, notes)


def _named(nodes: Nodes, domains: Mapping[str, Sequence[str]]) -> Nodes:
    """Nodes by the first domain that names them; a node that none names is one by itself."""
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
    """Parts of nodes, or whole nodes together, of at most ``size`` ranks."""
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
