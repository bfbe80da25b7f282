"""Prepares a run before ranks start: the device, checks, and the contents of run.json."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import time
from pathlib import Path

import msgspec
from distprof_probes.environment import (
    Placement,
    allowed_environment,
    git_commit,
    tool_version,
    versions,
)
from distprof_probes.job.messages import say
from distprof_probes.job.supervise import Patience, Supervisor
from distprof_probes.options import OPTIONS_VARIABLE, RUN_DIR_VARIABLE, ProbeOptions

from distprof.artefacts.run_file import Coverage, RunFile
from distprof.errors import UsageError
from distprof.kernel import available_processors
from distprof_runs.faults.orders import check_faults
from distprof_runs.settings import Settings

COMMAND_VARIABLE = "DISTPROF_COMMAND"
"""Environment variable with the command line, as JSON, that created an emulated node."""

WORKER = (sys.executable, "-m", "distprof_probes.job.rank_main", "distprof_runs.launching.worker")
"""Command of one rank."""


def is_rank_already(settings: Settings, place: Placement) -> bool:
    """Whether torchrun, srun or mpirun has started this process as one rank of a job."""
    launch = settings.launch
    asked = bool(launch.ranks or launch.gpus)
    if place.origin == "alone" or launch.nodes > 1 or (asked and place.world_size == 1):
        return False
    if asked:
        raise UsageError(
            f"this process is already rank {place.rank} of {place.world_size} ({place.origin}):"
            " omit --ranks and --gpus, or start one process per node and add --nodes and"
            " --rdzv-endpoint"
        )
    return True


def check(settings: Settings, world_size: int) -> None:
    """Reject options that cannot run with this number of ranks."""
    run = settings.configuration
    run.workload.check(run.model.resolved(), run.training, world_size)
    check_faults(run.faults, run.workload, world_size, run.training.steps)


def check_port(endpoint: str) -> None:
    """Check before the job whether the first node's port (``HOST:PORT``) is available."""
    host, _, port = endpoint.rpartition(":")
    for family in (socket.AF_INET6, socket.AF_INET):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(("", int(port)))
                listener.listen(1)
        except OSError as error:
            reason = {
                errno.EADDRINUSE: "is in use on this node; choose another",
                errno.EACCES: "needs privileges; choose one above 1023",
            }.get(error.errno or 0)
            if reason:
                raise UsageError(f"--rdzv-endpoint {host}:{port}: port {port} {reason}") from error


def on_this_machine(settings: Settings, *, quiet: bool) -> Settings:
    """Decide between CUDA and CPU, and say so if the user left it open."""
    launch, device = settings.launch, settings.configuration.training.device
    if launch.gpus and device == "cpu":
        raise UsageError(
            "--gpus and --device cpu contradict each other: use --ranks with --device cpu"
        )
    if device == "cpu":
        return settings
    found = _num_cuda_devices()
    needed = launch.gpus or (1 if device == "cuda" else 0)
    if found < needed:
        raise UsageError(
            f"this needs {needed} CUDA device{'s' if needed > 1 else ''}, torch found"
            f" {found or 'none'} here; without GPUs: --ranks {launch.ranks_per_node} --device cpu"
        )
    if needed or found >= launch.ranks_per_node:
        return settings.on_device("cuda")
    why = f"only {found} CUDA device{'s' if found > 1 else ''}" if found else "no CUDA device"
    say(f"{why} here: {launch.ranks_per_node} ranks on the CPU", quiet=quiet)
    return settings.on_device("cpu")


def say_of_few_cores(settings: Settings, *, quiet: bool) -> None:
    """Warn before the start that CPU ranks share cores."""
    training, num_ranks = settings.configuration.training, settings.launch.ranks_per_node
    cores = available_processors()
    takes_turns = training.device == "cpu" and training.compute != "sleep"
    if takes_turns and cores is not None and num_ranks > cores:
        say(
            f"{num_ranks} ranks share {cores} CPU core{'s' if cores > 1 else ''}: they take turns, "
            "so steps take longer and any rank may be late by chance (--compute sleep needs no "
            "cores)",
            quiet=quiet,
        )


def _num_cuda_devices() -> int:
    import torch

    return torch.cuda.device_count()


def described(settings: Settings, world_size: int) -> RunFile:
    """Contents of run.json at the start of the job."""
    run = settings.configuration
    return RunFile(
        distprof_version=tool_version(),
        kind="run",
        command=_typed(),
        workload=run.workload.name,
        config=run.to_sections(),
        strategy=run.workload.strategy(),
        mesh=run.workload.mesh(world_size),
        world_size=world_size,
        versions=versions(),
        git_commit=git_commit(Path.cwd()),
        environment=allowed_environment(),
        started_ns=time.time_ns(),
        faults=run.faults,
        coverage=_coverage(settings.probes, world_size),
        notes=run.workload.notes(run.model.resolved(), run.training, world_size),
    )


def _typed() -> tuple[str, ...]:
    """The user's command line, also on emulated nodes."""
    passed_on = os.environ.get(COMMAND_VARIABLE)
    return tuple(json.loads(passed_on)) if passed_on else ("distprof", *sys.argv[1:])


def _coverage(probes: ProbeOptions, world_size: int) -> Coverage:
    text = probes.profile_ranks if probes.mode == "window" else "none"
    if text == "all":
        return Coverage()
    chosen = msgspec.structs.replace(probes, profile_ranks=text)
    return Coverage(
        profiled_ranks=tuple(rank for rank in range(world_size) if chosen.profiles(rank)),
        text=text,
    )


def rank_environment(run_dir: Path, settings: Settings) -> dict[str, str]:
    """Environment variables of the ranks; run.json holds everything else."""
    return {RUN_DIR_VARIABLE: str(run_dir), OPTIONS_VARIABLE: settings.probes.to_json()}


def supervisor_of(run_dir: Path, settings: Settings) -> Supervisor:
    """The supervisor for the run."""
    training = settings.configuration.training
    return Supervisor(run_dir, Patience.of(training.group_timeout_s), num_steps=training.steps)
