"""``distprof run`` started once per rank, by torchrun, srun, mpirun or Kubernetes' PyTorchJob.

There is nothing to launch: each process is already a rank. It starts the worker as a child and
watches it, so that the rank's output and its end are recorded as usual. Rank 0 writes run.json,
waits for the others, and reports.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from distprof_probes.attach.ranks import remove_sockets
from distprof_probes.environment import Placement
from distprof_probes.job import rank_process
from distprof_probes.job.alarm import ANSWER_S, Alarm
from distprof_probes.job.directory import DEFAULT_FOLDER
from distprof_probes.job.ending import JOB_FAILED, ReportOptions, end_job
from distprof_probes.job.interrupts import Interrupts
from distprof_probes.job.messages import say
from distprof_probes.job.other_hosts import (
    agreed_directory,
    evidence_of_others,
    job_name,
    report_endings,
)
from distprof_probes.job.supervise import Phase, Supervisor

from distprof.errors import UsageError
from distprof_runs.launching.preparation import (
    WORKER,
    check,
    described,
    rank_environment,
    supervisor_of,
)
from distprof_runs.launching.progress import job_progress
from distprof_runs.settings import Settings

_LOOK_S = 0.05
_DEFAULT_PORT = 29500
_FIRST_PORT, _NUM_PORTS = 16_384, 16_000


def run_as_rank(settings: Settings, report_options: ReportOptions, place: Placement) -> int:
    """Run as one rank of a job that another launcher has started; launch options are ignored.

    Returns on rank 0 the exit code of the whole job, on other ranks that of the rank.
    """
    environment = torch_variables(place)
    check(settings, place.world_size or 1)
    run_dir = _agreed_directory(settings, report_options, place)
    supervisor = supervisor_of(run_dir, settings)
    alarm = Alarm(run_dir)
    quiet = report_options.quiet or place.rank != 0
    with Interrupts(lambda text: say(text, quiet=quiet)) as interrupts:
        command = rank_process.command(run_dir, WORKER)
        told = {**os.environ, **environment, **rank_environment(run_dir, settings)}
        child = subprocess.Popen(command, env=told, start_new_session=True)
        interrupts.has_ranks = True
        supervisor.watch(place.rank, child.pid)
        with job_progress(settings.configuration.training.steps, quiet=quiet) as show:
            while supervisor.look() is not Phase.OVER:
                interrupts.serve(supervisor)
                alarm.serve(supervisor)
                show(supervisor.progress)
                time.sleep(_LOOK_S)
        child.wait()
        remove_sockets(run_dir)
        alarm.serve(supervisor)
        if place.rank != 0:
            return _leave(run_dir, supervisor, interrupts, alarm)
        try:
            return _conclude(run_dir, settings, supervisor, interrupts, report_options, place)
        finally:
            alarm.silence()


def _leave(run_dir: Path, supervisor: Supervisor, interrupts: Interrupts, alarm: Alarm) -> int:
    """Report to rank 0 how this rank ended."""
    report_endings(run_dir, supervisor.evidence())
    if supervisor.is_sound:
        return 0
    if interrupts.signal is not None:
        return interrupts.exit_code
    alarm.wait_for_the_end()
    return JOB_FAILED


def _conclude(
    run_dir: Path,
    settings: Settings,
    supervisor: Supervisor,
    interrupts: Interrupts,
    report_options: ReportOptions,
    place: Placement,
) -> int:
    """On rank 0: collect the others' reports and end the job."""
    is_sound = supervisor.is_sound
    patience_s = settings.configuration.training.group_timeout_s if is_sound else ANSWER_S
    others = set(range(place.world_size or 1)) - {0}
    elsewhere = evidence_of_others(run_dir, others, patience_s=patience_s)
    return end_job(run_dir, supervisor, interrupts, report_options, elsewhere=elsewhere)


def torch_variables(place: Placement) -> dict[str, str]:
    """Variables for torch's ``env://`` rendezvous, from those of the launcher."""
    address = os.environ.get("MASTER_ADDR") or _first_host(place)
    if not address:
        raise UsageError(
            f"{place.origin} does not give the host of rank 0: set MASTER_ADDR to its host name"
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
    """Host of rank 0, if it is known without calling another program."""
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
    """A port that is the same on each rank of a job and rarely used by another on the host.

    It is below the ports that Linux uses for outgoing connections.
    """
    job, step = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_STEP_ID", "")
    if not job.isdecimal():
        return _DEFAULT_PORT
    number = int(job) + 1009 * (int(step) if step.isdecimal() else 0)
    return _FIRST_PORT + number % _NUM_PORTS


def _agreed_directory(settings: Settings, report_options: ReportOptions, place: Placement) -> Path:
    """The run directory, the same on each rank; rank 0 describes the run in it."""
    name = job_name()
    if report_options.out is None and not name:
        raise UsageError(
            "choose a new folder with -o: the launcher sets no job name that all ranks could use"
        )
    workload = settings.configuration.workload.name
    return agreed_directory(
        report_options.out or DEFAULT_FOLDER / f"{workload}-{name}",
        is_first=place.rank == 0,
        describe=lambda: described(settings, place.world_size or 1),
    )
