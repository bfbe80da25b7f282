"""Map GPUs and processes to ranks, from the data of a run and its NCCL log."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from distprof.ingest.sensors.collect import bus_id, whole
from distprof.run.logs import NcclLog
from distprof.run.run import Rank, Run

_VISIBLE = "CUDA_VISIBLE_DEVICES"


class Places(msgspec.Struct, frozen=True):
    """Ranks by GPU and process."""

    by_bus: Mapping[tuple[str, str], int]  # Host and bus id to rank, from NCCL's log.
    # Node and index of the GPU in the driver's order to rank.
    by_index: Mapping[tuple[str, int], int]
    by_uuid: Mapping[str, int]  # UUID to rank, if ``CUDA_VISIBLE_DEVICES`` lists UUIDs.
    nodes: tuple[str, ...]  # Names of the nodes; a single empty name if they are unknown.
    by_pid: Mapping[tuple[str, int], int]  # Host and process id to rank, from run.json.
    devices: Mapping[int, str] = {}  # Rank to the name of its GPU.

    @staticmethod
    def of(run: Run) -> Places:
        """The places of a run's ranks."""
        nodes = _nodes(run)
        by_index: dict[tuple[str, int], int] = {}
        by_uuid: dict[str, int] = {}
        text = run.job.environment.get(_VISIBLE, "") if run.job is not None else ""
        visible = [name.strip() for name in text.split(",")]  # of the GPUs, empty if all are
        visible = visible if all(visible) else []
        for node, local in nodes.items():
            for position, rank in local.items():
                name = visible[position] if position < len(visible) else str(position)
                index = whole(name)
                if index is not None:
                    by_index[node, index] = rank
                else:
                    by_uuid[name] = rank
        log = run.get(NcclLog)
        size = run.topology.world_size
        by_bus = _bus_ids(log) if log is not None else {}
        return Places(
            by_bus={at: rank for at, rank in by_bus.items() if size is None or rank < size},
            by_index=by_index,
            by_uuid=by_uuid,
            nodes=tuple(nodes),
            devices={rank.rank: rank.device.name for rank in run.ranks},
            by_pid={
                (entry.host, entry.pid): entry.rank
                for entry in (() if run.job is None else run.job.ranks)
                if entry.pid is not None
            },
        )

    def rank_of(self, host: str, index: int | None, bus: str, uuid: str) -> int | None:
        """The rank on a GPU; None if it is uncertain. The index counts in the driver's order.

        Without a host name, which is empty if unknown, it is certain only for a single node.
        """
        if uuid in self.by_uuid:
            return self.by_uuid[uuid]
        if bus:
            by_bus = self.by_bus.items()
            found = {rank for (at, one), rank in by_bus if one == bus and _same(at, host)}
            if len(found) == 1:
                return found.pop()
        node = self.node_named(host)
        return None if node is None or index is None else self.by_index.get((node, index))

    def rank_of_process(self, host: str, pid: int | None) -> int | None:
        """The rank of a process; None if it is uncertain, as without a host name on several nodes.

        The process id is the host's, which may differ from the one inside a container.
        """
        found = {
            rank for (at, number), rank in self.by_pid.items() if number == pid and _same(at, host)
        }
        is_sure = bool(host) or len({at for at, _ in self.by_pid}) == 1
        return found.pop() if len(found) == 1 and is_sure else None

    def others_than(self, name: str, rank: int | None) -> str:
        """Names of the job's GPUs if a named GPU is of another model than these; else empty.

        ``rank`` is the one that the GPU's place gives; None for any rank.
        """
        model = _model(name)
        known = self.devices if rank is None else {rank: self.devices.get(rank, "")}
        models = {_model(device): device for device in known.values()}
        if not model or not models or "" in models or model in models:
            return ""
        return ", ".join(sorted(models.values()))

    def node_named(self, host: str) -> str | None:
        """The node of a host name; without a host name, the only node if there is just one."""
        if not host:
            return self.nodes[0] if len(self.nodes) == 1 else None
        named = [node for node in self.nodes if node and _same(node, host)]
        if named:
            return named[0] if len(named) == 1 else None
        return self.nodes[0] if self.nodes == ("",) else None


_MODEL = re.compile(r"(?<![a-z0-9])([a-z]{0,2}\d{1,4}[a-z]{0,2}?)x?(?![a-z0-9])")


def _model(name: str) -> str:
    """The model in a GPU's name, such as ``h100`` in ``NVIDIA H100 80GB HBM3``; empty without one.

    Drivers and profilers name variants differently (``MI250X``, ``MI250``), so a final X is cut.
    """
    match = _MODEL.search(name.lower())
    return "" if match is None else match[1]


def _same(first: str, second: str) -> bool:
    """Whether two names may denote the same host, with or without a domain."""
    return not second or first == second or first.partition(".")[0] == second.partition(".")[0]


def _nodes(run: Run) -> dict[str, dict[int, int]]:
    """Node to local rank to global rank."""
    if run.job is not None and any(entry.local_rank is not None for entry in run.job.ranks):
        nodes: dict[str, dict[int, int]] = {}
        names = {rank: node for node, ranks in run.topology.nodes.items() for rank in ranks}
        for entry in run.job.ranks:
            if entry.local_rank is not None:
                name = names.get(entry.rank, entry.host)
                nodes.setdefault(name, {})[entry.local_rank] = entry.rank
        return nodes
    counts = {rank.device.count for rank in run.ranks if rank.device.count}
    size = counts.pop() if len(counts) == 1 else None
    if run.topology.nodes:
        if size is not None:  # unless nodes hold separate blocks of as many ranks as it has GPUs
            blocks = [{rank // size for rank in ranks} for ranks in run.topology.nodes.values()]
            are_blocks = all(len(block) == 1 for block in blocks)
            size = size if are_blocks and len(set.union(*blocks)) == len(blocks) else None
        is_named = run.topology.node_origin != "device_count"
        return {
            # files cannot know the name of a node inferred from GPU counts
            node if is_named or len(run.topology.nodes) > 1 else "": _local(ranks, size)
            for node, ranks in run.topology.nodes.items()
        }
    return {"": _local([rank.rank for rank in run.ranks], size)} if _is_one_node(run.ranks) else {}


def _local(ranks: Sequence[int], size: int | None) -> dict[int, int]:
    """Local rank to global rank, by the convention that ranks are numbered node by node."""
    if size is not None and len({rank // size for rank in ranks}) == 1:
        return {rank % size: rank for rank in ranks}
    return dict(enumerate(sorted(ranks)))


def _is_one_node(ranks: Sequence[Rank]) -> bool:
    """Whether all ranks must be on one node: the world is no larger than a node's GPU count."""
    if not ranks:
        return False
    worlds = Counter(rank.world_size for rank in ranks)
    world = worlds.most_common(1)[0][0] or len(ranks)
    counts = [rank.device.count for rank in ranks if rank.device.count]
    return world == 1 or (bool(counts) and world <= min(counts))


def _bus_ids(log: NcclLog) -> dict[tuple[str, str], int]:
    """Host and bus id to rank, from the largest communicator, in which ranks are global."""
    found: dict[tuple[str, str], int] = {}
    size = log.world_size
    for communicator in log.communicators:
        for member in communicator.members:
            process = log.processes[member.process]
            rank = process.rank
            if rank is None and communicator.num_ranks == size and communicator.is_certain:
                rank = member.rank
            if rank is not None and member.bus_id:
                found.setdefault((process.host, bus_id(member.bus_id)), rank)
    return found
