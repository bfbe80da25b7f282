"""``distprof run`` started once per rank, by torchrun, srun, mpirun or Kubernetes' PyTorchJob.

There is nothing to launch: each process is a rank already. It starts the worker below itself and
watches it, so that what the rank prints and how it ends are kept as elsewhere; rank 0 writes
run.json, waits for the others, and reports.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from distprof.errors import UsageError
from probes.environment import Placement
from probes.job import rank_process
from probes.job.directory import DEFAULT_FOLDER
from probes.job.ending import JOB_FAILED, Wishes, end_job
from probes.job.interrupts import Interrupts
from probes.job.other_hosts import agreed_directory, evidence_of_others, write_exits
from probes.job.supervise import Phase, Supervisor
from probes.job.telling import say
from reference_runs.job import supervisor_of
from reference_runs.preparation import WORKER, check, described, rank_environment
from reference_runs.progress import job_progress
from reference_runs.settings import Settings

__all__ = ["run_as_rank"]

_LOOK_S = 0.05
_DEFAULT_PORT = 29500


def run_as_rank(settings: Settings, wishes: Wishes, place: Placement) -> int:
    """Be one rank of a job that something else has launched.

    Args:
        settings: What is run; launching options play no part.
        wishes: How rank 0 reports.
        place: Who this process is.

    Returns:
        On rank 0 the exit code of the whole job, elsewhere that of the rank.

    Raises:
        UsageError: If the ranks cannot agree on a folder or on where to meet.
    """
    environment = torch_variables(place)
    check(settings, place.world_size or 1)
    run_dir = _agreed_directory(settings, wishes, place)
    supervisor = supervisor_of(run_dir, settings)
    quiet = wishes.quiet or place.rank != 0
    with Interrupts(lambda text: say(text, quiet=quiet)) as interrupts:
        command = rank_process.command(run_dir, WORKER)
        told = {**os.environ, **environment, **rank_environment(run_dir, settings)}
        child = subprocess.Popen(command, env=told, start_new_session=True)
        interrupts.has_ranks = True
        supervisor.watch(place.rank, child.pid)
        with job_progress(settings.configuration.training.steps, quiet=quiet) as show:
            while supervisor.look() is not Phase.OVER:
                interrupts.serve(supervisor)
                show(supervisor.progress)
                time.sleep(_LOOK_S)
        child.wait()
        return _left(run_dir, settings, supervisor, interrupts, wishes, place)


def _left(
    run_dir: Path,
    settings: Settings,
    supervisor: Supervisor,
    interrupts: Interrupts,
    wishes: Wishes,
    place: Placement,
) -> int:
    """Tell rank 0 how this rank ended; on rank 0, hear the others and end the job."""
    end = supervisor.exits[place.rank]
    if place.rank != 0:
        write_exits(run_dir, supervisor.exits)
        return 0 if end.code == 0 else JOB_FAILED
    patience_s = settings.configuration.training.group_timeout_s if end.code == 0 else 5.0
    others = set(range(place.world_size or 1)) - {0}
    elsewhere = evidence_of_others(run_dir, others, patience_s=patience_s)
    return end_job(run_dir, supervisor, interrupts, wishes, elsewhere=elsewhere)


def torch_variables(place: Placement) -> dict[str, str]:
    """What torch's ``env://`` rendezvous reads, from what the launcher has set.

    Raises:
        UsageError: If nothing says where rank 0 is.
    """
    address = os.environ.get("MASTER_ADDR") or _first_host(place)
    if not address:
        raise UsageError(
            f"{place.origin} does not say where rank 0 runs: set MASTER_ADDR to its host name"
            " (and MASTER_PORT to a free port)"
        )
    local = place.local_rank if place.local_rank is not None else 0
    variables = {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.world_size),
        "LOCAL_RANK": str(local),
        "MASTER_ADDR": address,
        "MASTER_PORT": os.environ.get("MASTER_PORT") or str(_port()),
    }
    if place.local_world_size is not None:
        variables["LOCAL_WORLD_SIZE"] = str(place.local_world_size)
    if place.node is not None:
        variables["GROUP_RANK"] = str(place.node)
    return variables


def _first_host(place: Placement) -> str:
    """Where rank 0 runs, where that can be known without asking another program."""
    if place.local_world_size == place.world_size:
        return "localhost"
    nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST", "")
    return _first_of(nodes)


def _first_of(nodes: str) -> str:
    """The first name of SLURM's list: ``gpu[07-09,12],cpu1`` begins with ``gpu07``."""
    head, bracket, rest = nodes.partition("[")
    if not bracket or "," in head:
        return nodes.split(",", 1)[0]
    numbers, _, tail = rest.partition("]")
    suffix = tail.split(",", 1)[0]
    first = numbers.replace("-", ",").split(",", 1)[0]
    return f"{head}{first}{suffix}"


def _port() -> int:
    """The same on each rank of a job, and seldom that of another job on the same host."""
    job = os.environ.get("SLURM_JOB_ID", "")
    return 20_000 + int(job) % 20_000 if job.isdecimal() else _DEFAULT_PORT


def _agreed_directory(settings: Settings, wishes: Wishes, place: Placement) -> Path:
    """The run directory, the same on each rank; rank 0 describes the run in it."""
    workload = settings.configuration.workload.name
    folder = wishes.out or DEFAULT_FOLDER / f"{workload}-{_job_name()}"
    return agreed_directory(
        folder,
        is_first=place.rank == 0,
        describe=lambda: described(settings, place.world_size or 1),
    )


def _job_name() -> str:
    """What all ranks of this job call it.

    Raises:
        UsageError: If its launcher has no name for it.
    """
    for name in ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID"):
        value = os.environ.get(name, "")
        if value and value != "none":  # torchrun's default
            step = os.environ.get("SLURM_STEP_ID", "") if name == "SLURM_JOB_ID" else ""
            return f"{value}.{step}" if step else value
    raise UsageError(
        "name a new folder with -o: every rank must know it, and nothing here names the job"
    )
