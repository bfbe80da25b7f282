"""Files in which a session describes itself: rank.json, error.json, and run.json if missing."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from distprof.artefacts import ERROR_FILE, RANK_FILE, RUN_FILE
from distprof.artefacts.files import write_atomically
from distprof.artefacts.run_file import (
    Coverage,
    ErrorFile,
    Outcome,
    Overhead,
    ProbeStatus,
    RankFile,
    RunFile,
    with_ranks,
)
from distprof_probes.environment import (
    Placement,
    allowed_environment,
    git_commit,
    tool_version,
    versions,
)
from distprof_probes.options import ProbeOptions
from distprof_probes.peer_loss import has_lost_a_peer

_MAX_TRACEBACK = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Size of each mesh axis, slowest axis first, and this rank's index along each."""

    sizes: Mapping[str, int]
    coordinates: Mapping[str, int]


def mesh_of(mesh: Any, coordinates: Mapping[str, int] | None) -> Mesh:
    """Mesh from a DeviceMesh, or from mappings of sizes and coordinates; both may be None."""
    names = getattr(mesh, "mesh_dim_names", None)
    if names:
        sizes = {name: int(mesh.size(i)) for i, name in enumerate(names)}
        own = mesh.get_coordinate()
        found = dict(zip(names, own, strict=True)) if own is not None else {}
        return Mesh(sizes=sizes, coordinates=dict(coordinates or found))
    sizes = {str(name): int(size) for name, size in dict(mesh or {}).items()}
    return Mesh(sizes=sizes, coordinates=dict(coordinates or {}))


def write_rank_file(
    rank_dir: Path,
    place: Placement,
    mesh: Mesh,
    *,
    started_ns: int,
    ended_ns: int | None = None,
    probes: tuple[ProbeStatus, ...],
    overhead: tuple[Overhead, ...] = (),
    notes: tuple[str, ...] = (),
) -> None:
    """Write ``rank.json``."""
    file = RankFile(
        rank=place.rank,
        world_size=place.world_size,
        node=place.node,
        host=place.host,
        local_rank=place.local_rank,
        device=_device_name(),
        backend=_backend(),
        pid=os.getpid(),
        mesh=dict(mesh.sizes),
        coordinates=dict(mesh.coordinates),
        versions=versions(),
        started_ns=started_ns,
        ended_ns=ended_ns,
        probes=probes,
        overhead=overhead,
        notes=notes,
    )
    write_atomically(rank_dir / RANK_FILE, _pretty(file))


def write_error_file(rank_dir: Path, rank: int, error: BaseException, step: int | None) -> None:
    """Write ``error.json``. Only the first error of a rank is kept: later ones follow from it."""
    if (rank_dir / ERROR_FILE).exists():
        return
    text = "".join(traceback.format_exception(error))
    file = ErrorFile(
        rank=rank,
        time_ns=time.time_ns(),
        kind=type(error).__name__,
        message=str(error),
        traceback=text[-_MAX_TRACEBACK:],
        is_peer_loss=has_lost_a_peer(error),
        step=step,
    )
    write_atomically(rank_dir / ERROR_FILE, _pretty(file))


def start_run_file(
    run_dir: Path, place: Placement, mesh: Mesh, options: ProbeOptions, started_ns: int
) -> bool:
    """Write ``run.json`` of kind ``session``, unless a launcher has done so.

    Returns whether it was written. If so, call :func:`conclude_run_file` at the end.
    """
    if (run_dir / RUN_FILE).exists():
        return False
    coverage = Coverage(text=options.profile_ranks)
    if options.profile_ranks != "all" and place.world_size is not None:
        profiled = tuple(rank for rank in range(place.world_size) if options.profiles(rank))
        coverage = Coverage(profiled_ranks=profiled, text=options.profile_ranks)
    file = RunFile(
        distprof_version=tool_version(),
        kind="session",
        command=tuple(sys.argv),
        config={"probes": msgspec.to_builtins(options)},
        mesh=dict(mesh.sizes),
        world_size=place.world_size,
        versions=versions(),
        git_commit=git_commit(Path.cwd()),
        environment=allowed_environment(),
        started_ns=started_ns,
        coverage=coverage,
    )
    write_atomically(run_dir / RUN_FILE, _pretty(file))
    return True


def conclude_run_file(run_dir: Path, outcome: Outcome, ended_ns: int) -> None:
    """Complete the ``run.json`` that :func:`start_run_file` wrote, with the ranks seen so far."""
    run = msgspec.json.decode((run_dir / RUN_FILE).read_bytes(), type=RunFile)
    found = [
        msgspec.json.decode(file.read_bytes(), type=RankFile)
        for file in sorted(run_dir.glob(f"rank*/{RANK_FILE}"))
    ]
    run = msgspec.structs.replace(with_ranks(run, found), outcome=outcome, ended_ns=ended_ns)
    write_atomically(run_dir / RUN_FILE, _pretty(run))


def _device_name() -> str:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return str(torch.cuda.get_device_name())
    return "cpu"


def _backend() -> str:
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return ""
    return str(dist.get_backend())


def _pretty(file: msgspec.Struct) -> bytes:
    return msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n"
