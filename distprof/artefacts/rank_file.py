"""rank.json, error.json and attach.json: files that the process of a rank writes about itself."""

from __future__ import annotations

import msgspec

from distprof.artefacts import RANK_SCHEMA
from distprof.artefacts.run_file import Overhead, ProbeStatus, RankEntry, RunFile


class RankFile(msgspec.Struct, frozen=True, kw_only=True):
    """``rank.json``: written when probes start, and again when they stop.

    Args:
        schema: ``distprof.rank/1``.
        rank: Global rank.
        world_size: World size in this process, None without a process group.
        node: torchrun's group rank or SLURM's node id, None when unknown.
        host: Host name.
        local_rank: Index on its node, None when unknown.
        device: Name of its accelerator, or ``cpu``.
        backend: Backend of the default process group; empty without one.
        pid: Process id.
        mesh: Mesh axis to its size, as far as the process knows.
        coordinates: Index along each mesh axis.
        versions: As in run.json.
        started_ns: ns since the epoch.
        ended_ns: None until the probes have stopped cleanly.
        probes: State of each probe so far.
        overhead: Overhead measured so far.
        notes: One sentence each.
    """

    schema: str = RANK_SCHEMA
    rank: int
    world_size: int | None = None
    node: int | None = None
    host: str = ""
    local_rank: int | None = None
    device: str = ""
    backend: str = ""
    pid: int
    mesh: dict[str, int] = {}
    coordinates: dict[str, int] = {}
    versions: dict[str, str] = {}
    started_ns: int
    ended_ns: int | None = None
    probes: tuple[ProbeStatus, ...] = ()
    overhead: tuple[Overhead, ...] = ()
    notes: tuple[str, ...] = ()


class ErrorFile(msgspec.Struct, frozen=True, kw_only=True):
    """``error.json``: why a rank's Python code stopped.

    Args:
        rank: Global rank.
        time_ns: Time of the exception, ns since the epoch.
        kind: Name of the exception's class.
        message: Text of the exception.
        traceback: Traceback in Python's format.
        is_peer_loss: Whether the exception only reports that another rank disappeared or timed out.
        step: Last step completed, None before the first.
    """

    rank: int
    time_ns: int
    kind: str
    message: str
    traceback: str
    is_peer_loss: bool
    step: int | None = None


class AttachFile(msgspec.Struct, frozen=True, kw_only=True):
    """``attach.json``: where ``distprof attach`` reaches a live rank.

    Args:
        rank: Global rank.
        host: The only host from which it can be reached.
        pid: Process id on that host.
        started_ticks: Start of that process, in clock ticks since the machine booted. Together with
            the pid, it identifies the process uniquely.
        socket: Path of the unix socket that its worker server listens on; empty if there is none,
            and ``reason`` says why.
        reason: Why the rank cannot be reached.
        takes_requests: Whether it receives requests in the run directory, through a rank of its
            node.
    """

    rank: int
    host: str
    pid: int
    started_ticks: int = 0
    socket: str = ""
    reason: str = ""
    takes_requests: bool = False


def with_ranks(run: RunFile, found: list[RankFile]) -> RunFile:
    """``run`` merged with the files of its ranks; facts that only the launcher knows are kept."""
    entries = {entry.rank: entry for entry in run.ranks}
    for file in found:
        entry = entries.get(file.rank, RankEntry(rank=file.rank))
        entries[file.rank] = msgspec.structs.replace(
            entry,
            node=file.node if file.node is not None else entry.node,
            host=file.host or entry.host,
            local_rank=file.local_rank if file.local_rank is not None else entry.local_rank,
            device=file.device or entry.device,
            pid=file.pid,
            coordinates=file.coordinates or entry.coordinates,
            probes=file.probes,
            overhead=file.overhead,
            notes=file.notes,
        )
    first = min(found, key=lambda file: file.rank, default=None)
    return msgspec.structs.replace(
        run,
        ranks=tuple(entries[rank] for rank in sorted(entries)),
        mesh=run.mesh or (first.mesh if first else {}),
        world_size=run.world_size or (first.world_size if first else None),
        versions={**(first.versions if first else {}), **run.versions},
    )
