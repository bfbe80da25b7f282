"""This process's place in its job, and the software that it runs."""

from __future__ import annotations

import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

# What launchers set: rank, world size, local rank, local world size, node. The first that is
# set wins; torchrun's variables come first, since torchrun may itself run under SLURM or MPI.
_LAUNCHERS: tuple[tuple[str, tuple[str, str, str, str, str]], ...] = (
    ("torchrun", ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")),
    (
        "slurm",
        ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "", "SLURM_NODEID"),
    ),
    (
        "mpi",
        (
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
            "",  # OMPI_COMM_WORLD_NODE_RANK counts processes on the node, not nodes
        ),
    ),
    ("mpi", ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "")),
)

_ALLOWED = re.compile(
    r"(NCCL_|GLOO_|TORCH_NCCL_|TORCH_FR_|TORCH_DISTRIBUTED_DEBUG|PYTORCH_CUDA_ALLOC_CONF|"
    r"PYTORCH_ALLOC_CONF|UCX_|FI_|OMP_|MKL_NUM_THREADS|KINETO_|CUDA_VISIBLE_DEVICES|"
    r"CUDA_DEVICE_MAX_CONNECTIONS|CUDA_LAUNCH_BLOCKING|CUDA_DEVICE_ORDER|"
    r"SLURM_(JOB_ID|JOB_NUM_NODES|NNODES|NTASKS|PROCID|NODEID|LOCALID|CPUS_PER_TASK|GPUS)|"
    r"SLURM_(JOB_NODELIST|STEP_NODELIST|TASKS_PER_NODE|STEP_TASKS_PER_NODE|DISTRIBUTION)$|"
    r"PET_(NNODES|NPROC_PER_NODE|NODE_RANK)$|OMPI_COMM_WORLD_(LOCAL_)?(RANK|SIZE)$|"
    r"OMPI_MCA_rmaps_base_mapping_policy$|JOB_COMPLETION_INDEX$|"
    r"RANK$|WORLD_SIZE$|LOCAL_RANK$|LOCAL_WORLD_SIZE$|GROUP_RANK$|TORCHELASTIC_RESTART_COUNT$)"
)
_SECRET = re.compile(
    r"TOKEN|SECRET|PASSW|CREDENTIAL|PRIVATE|AUTH|KEY|COOKIE|SESSION", re.IGNORECASE
)
_MAX_VALUE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """This process's place in the job."""

    rank: int  # Global rank; 0 when the process is alone.
    world_size: int | None  # Number of ranks in the job; None when unknown.
    local_rank: int | None  # Index on its node; None when unknown.
    local_world_size: int | None  # Number of ranks on its node; None when unknown.
    node: int | None  # Index of its node; None when unknown.
    host: str  # Host name.
    origin: str  # ``torchrun``, ``slurm``, ``mpi``, or ``alone``.


def placement(environment: Mapping[str, str] | None = None) -> Placement:
    """Placement that the launcher's environment variables give, or those passed in."""
    env = os.environ if environment is None else environment
    for origin, names in _LAUNCHERS:
        values = [_number(env.get(name)) for name in names]
        if origin == "slurm" and "SLURM_STEP_ID" not in env:
            continue  # a batch script outside srun: SLURM_PROCID is 0 and means nothing
        rank, world_size, local_rank, local_world_size, node = values
        if origin == "slurm":  # SLURM_NTASKS_PER_NODE is the job's request, and often missing
            local_world_size = _tasks_on_node(env.get("SLURM_STEP_TASKS_PER_NODE", ""), node)
        if rank is not None and world_size is not None and rank < world_size:
            break
    else:
        origin, rank, world_size = "alone", 0, 1
        local_rank = local_world_size = node = None
    return Placement(
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        local_world_size=local_world_size,
        node=node,
        host=socket.gethostname(),
        origin=origin,
    )


def versions() -> dict[str, str]:
    """Known versions of ``python``, ``torch``, ``cuda``, ``nccl`` and ``driver``.

    This does not import torch: a launcher may call it before its ranks exist.
    """
    found = {"python": platform.python_version(), "driver": _driver_version()}
    torch = sys.modules.get("torch")
    if torch is None:
        with suppress(metadata.PackageNotFoundError):
            found["torch"] = metadata.version("torch")
    else:
        found["torch"] = str(torch.__version__)
        found["cuda"] = str(torch.version.cuda or "")
        if torch.version.cuda and torch.cuda.is_available():
            found["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return {name: version for name, version in found.items() if version}


def tool_version() -> str:
    """Version of the installed distprof; empty when it runs from a folder, not installed."""
    with suppress(metadata.PackageNotFoundError):
        return metadata.version("distprof")
    return ""


def git_commit(folder: Path) -> str:
    """Commit of the working tree that holds ``folder``, with ``+dirty`` if changed; else empty."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not re.fullmatch(r"[0-9a-f]{40,64}", commit):
        return ""
    return commit + ("+dirty" if _git(folder, "status", "--porcelain", "-uno") else "")


def allowed_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables that explain performance, never one whose name suggests a secret."""
    env = os.environ if environment is None else environment
    return {
        name: env[name][:_MAX_VALUE]
        for name in sorted(env)
        if _ALLOWED.match(name) and not _SECRET.search(name)
    }


def _tasks_on_node(text: str, node: int | None) -> int | None:
    """One node's entry in SLURM's list (``2(x3),1`` is 2, 2, 2, 1); None if it has none."""
    counts: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", part)
        if found is None:
            return None
        counts += [int(found[1])] * int(found[2] or 1)
    return counts[node] if node is not None and node < len(counts) else None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else None


def _driver_version() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = re.search(r"Kernel Module.*?\s(\d+\.\d[\d.]*)", text)
    return found.group(1) if found else ""


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
