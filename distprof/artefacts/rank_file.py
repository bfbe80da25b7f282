"""rank.json, error.json and attach.json: files that the process of a rank writes about itself."""

from __future__ import annotations

import msgspec

from distprof.artefacts import RANK_SCHEMA
from distprof.artefacts.run_file import Overhead, ProbeStatus, RankEntry, RunFile


class RankFile(msgspec.Struct, frozen=True, kw_only=True):
    """``rank.json``: written when probes start, and again when they stop."""

    schema: str = RANK_SCHEMA  # ``distprof.rank/1``.
    rank: int  # Global rank.
    world_size: int | None = None  # World size in this process, None without a process group.
    node: int | None = None  # torchrun's group rank or SLURM's node id, None when unknown.
    host: str = ""  # Host name.
    local_rank: int | None = None  # Index on its node, None when unknown.
    device: str = ""  # Name of its accelerator, or ``cpu``.
    backend: str = ""  # Backend of the default process group; empty without one.
    pid: int  # Process id.
    mesh: dict[str, int] = {}  # Mesh axis to its size, as far as the process knows.
    coordinates: dict[str, int] = {}  # Index along each mesh axis.
    versions: dict[str, str] = {}  # As in run.json.
    started_ns: int  # ns since the epoch.
    ended_ns: int | None = None  # None until the probes have stopped cleanly.
    probes: tuple[ProbeStatus, ...] = ()  # State of each probe so far.
    overhead: tuple[Overhead, ...] = ()  # Overhead measured so far.
    notes: tuple[str, ...] = ()  # One sentence each.


class ErrorFile(msgspec.Struct, frozen=True, kw_only=True):
    """``error.json``: why a rank's Python code stopped."""

    rank: int  # Global rank.
    time_ns: int  # Time of the exception, ns since the epoch.
    kind: str  # Name of the exception's class.
    message: str  # Text of the exception.
    traceback: str  # Traceback in Python's format.
    # Whether the exception only reports that another rank disappeared or timed out.
    is_peer_loss: bool
    step: int | None = None  # Last step completed, None before the first.


class AttachFile(msgspec.Struct, frozen=True, kw_only=True):
    """``attach.json``: where ``distprof attach`` reaches a live rank."""

    rank: int  # Global rank.
    host: str  # The only host from which it can be reached.
    pid: int  # Process id on that host.
    # Start of that process, in clock ticks since the machine booted. Together with the pid, it
    # identifies the process uniquely.
    started_ticks: int = 0
    # Path of the unix socket that its worker server listens on; empty if there is none, and
    # ``reason`` says why.
    socket: str = ""
    reason: str = ""  # Why the rank cannot be reached.
    # Whether it receives requests in the run directory, through a rank of its node.
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
