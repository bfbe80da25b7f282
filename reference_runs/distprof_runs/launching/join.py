"""A rank joins its job: device, process group, mesh."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from math import prod
from typing import cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.distributed.rendezvous import rendezvous

from distprof.errors import UsageError
from distprof_runs.options import TrainingOptions, WorkloadOptions
from distprof_runs.workloads.workload import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Place of this process, from torchrun's variables. Without them, it is a single rank."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    @classmethod
    def from_environment(cls) -> Place:
        """RANK, WORLD_SIZE and LOCAL_RANK."""
        return cls(
            rank=int(os.environ.get("RANK", "0")),
            world_size=int(os.environ.get("WORLD_SIZE", "1")),
            local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        )


def join(place: Place, training: TrainingOptions, options: WorkloadOptions) -> Job:
    """Make the process group and the mesh; UsageError if either is impossible."""
    options.mesh(place.world_size)  # fail before other ranks wait for this one
    device = _device(place, training)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    timeout = timedelta(seconds=training.group_timeout_s)
    store = HashStore() if place.world_size == 1 else _meet(timeout)
    dist.init_process_group(
        _backend(place, device, store),
        timeout=timeout,
        store=PrefixStore("ranks", store),
        rank=place.rank,
        world_size=place.world_size,
    )
    return arrange(place, training, options)


def arrange(place: Place, training: TrainingOptions, options: WorkloadOptions) -> Job:
    """Make the mesh of a workload. The default process group already exists."""
    device = _device(place, training)
    if device.type == "cpu":
        torch.set_num_threads(training.threads)
    mesh_sizes = options.mesh(place.world_size) or {"dp_replicate": 1}
    timeout = timedelta(seconds=training.group_timeout_s)
    mesh = init_device_mesh(
        device.type, tuple(mesh_sizes.values()), mesh_dim_names=tuple(mesh_sizes)
    )
    for axis in mesh_sizes:  # a mesh gives its groups the default timeout of half an hour
        _set_pg_timeout(timeout, mesh.get_group(axis))
    return Job(
        rank=place.rank,
        world_size=place.world_size,
        local_rank=place.local_rank,
        device=device,
        dtype=_dtype(training, device),
        timeout=timeout,
        mesh=mesh,
    )


def coordinates_of(rank: int, mesh: dict[str, int]) -> dict[str, int]:
    """Index of a rank along each axis of a mesh whose last axis varies fastest."""
    result = {}
    rest = rank
    for axis in reversed(mesh):
        rest, result[axis] = divmod(rest, mesh[axis])
    if rest:
        raise ValueError(f"rank {rank} is outside of a mesh of {prod(mesh.values())}")
    return {axis: result[axis] for axis in mesh}


def _device(place: Place, training: TrainingOptions) -> torch.device:
    wanted = training.device
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UsageError("--device cuda: torch found no CUDA device; use --device cpu")
    return torch.device("cuda", place.local_rank % torch.cuda.device_count())


def _meet(timeout: timedelta) -> Store:
    """The store in which the ranks of the job find each other."""
    store, _, _ = next(rendezvous("env://", timeout=timeout))
    store.set_timeout(timeout)
    return cast("Store", store)


def _backend(place: Place, device: torch.device, store: Store) -> str:
    """The backend: NCCL needs a GPU for each rank, so ranks that share one use gloo.

    The number of visible GPUs does not decide: SLURM and Kubernetes show each rank only its own.
    """
    if device.type != "cuda":
        return "gloo"
    names = gpu_names(place, _gpu_name(device), PrefixStore("gpus", store))
    return "nccl" if len(set(names)) == place.world_size else "gloo"


def gpu_names(place: Place, own: str, store: Store) -> list[str]:
    """The GPU names of all ranks, by rank.

    A rank's own name is the same on all ranks that use this GPU, and on no others.
    """
    store.set(str(place.rank), own)
    everybody = [str(rank) for rank in range(place.world_size)]
    if place.world_size == 1:
        return [own]
    store.wait(everybody)
    return [name.decode() for name in store.multi_get(everybody)]


def _gpu_name(device: torch.device) -> str:
    return f"{socket.gethostname()} {torch.cuda.get_device_properties(device).uuid}"


def _dtype(training: TrainingOptions, device: torch.device) -> torch.dtype:
    auto = "bf16" if device.type == "cuda" else "fp32"
    precision = auto if training.precision == "auto" else training.precision
    return {"bf16": torch.bfloat16, "fp32": torch.float32}[precision]
