"""One reference run, from the user's options to the report and the exit code."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from distprof_probes.attach.ranks import remove_sockets
from distprof_probes.environment import placement
from distprof_probes.job.alarm import ANSWER_S, Alarm
from distprof_probes.job.directory import new_run_directory, write_run_file
from distprof_probes.job.ending import JOB_FAILED, ReportOptions, end_job
from distprof_probes.job.interrupts import Interrupts
from distprof_probes.job.messages import print_failure, say
from distprof_probes.job.other_hosts import agreed_directory, evidence_of_others, report_endings
from distprof_probes.job.supervise import Supervisor

from distprof.errors import MissingExtraError, UsageError
from distprof_runs.launching.preparation import (
    WORKER,
    check,
    check_port,
    described,
    is_rank_already,
    on_this_machine,
    rank_environment,
    say_of_few_cores,
    supervisor_of,
)
from distprof_runs.launching.progress import job_progress
from distprof_runs.launching.starting import run_ranks
from distprof_runs.settings import Settings

_OTHERS_S = ANSWER_S + 5


def run_job(settings: Settings, report_options: ReportOptions) -> int:
    """Run, watch, complete run.json, report.

    Returns the exit code: 0, 1 for findings, 4 for a failed job, 130 or 143 when interrupted.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("distprof run", "run")
    place = placement()
    if is_rank_already(settings, place):
        from distprof_runs.launching.as_rank import run_as_rank

        return run_as_rank(settings, report_options, place)
    if settings.launch.is_emulating:
        from distprof_runs.launching.emulation import run_on_emulated_nodes

        return run_on_emulated_nodes(settings, report_options)
    if settings.launch.rdzv_endpoint and settings.launch.this_node == 0:
        check_port(settings.launch.rdzv_endpoint)
    settings = on_this_machine(settings, quiet=report_options.quiet)
    say_of_few_cores(settings, quiet=report_options.quiet)
    check(settings, settings.launch.world_size)
    return _run_in(_directory(settings, report_options), settings, report_options)


def _directory(settings: Settings, report_options: ReportOptions) -> Path:
    """The run directory, with run.json in it."""
    launch = settings.launch
    if launch.nodes == 1:
        run_dir = new_run_directory(report_options.out, settings.configuration.workload.name)
        write_run_file(run_dir, described(settings, launch.world_size), is_new=True)
        return run_dir
    if report_options.out is None:
        raise UsageError(
            f"--nodes {launch.nodes}: choose a new folder with -o, the same on each node"
        )
    return agreed_directory(
        report_options.out,
        is_first=launch.this_node == 0,
        describe=lambda: described(settings, launch.world_size),
    )


def _run_in(run_dir: Path, settings: Settings, report_options: ReportOptions) -> int:
    run, quiet, launch = settings.configuration, report_options.quiet, settings.launch
    supervisor, alarm = supervisor_of(run_dir, settings), Alarm(run_dir)
    ranks = f"{launch.world_size} {run.training.device.upper()} ranks"
    say(f"{run.workload.strategy()} on {ranks}, {run.training.steps} steps", quiet=quiet)
    with Interrupts(lambda text: say(text, quiet=quiet)) as interrupts:
        with job_progress(run.training.steps, quiet=quiet) as show:

            def on_look() -> None:
                show(supervisor.progress)
                if launch.nodes > 1:
                    alarm.serve(supervisor)

            problem = run_ranks(
                WORKER,
                run_dir=run_dir,
                environment=rank_environment(run_dir, settings),
                launch=launch,
                supervisor=supervisor,
                interrupts=interrupts,
                on_look=on_look,
            )
        remove_sockets(run_dir)
        if launch.this_node != 0:
            return _leave(run_dir, supervisor, interrupts, alarm, problem)
        others = set(range(launch.world_size)) - set(supervisor.exits)
        is_alone = launch.nodes == 1 or not supervisor.exits
        patience_s = 0 if is_alone else _OTHERS_S
        elsewhere = evidence_of_others(run_dir, others, patience_s=patience_s) if patience_s else []
        try:
            return end_job(
                run_dir,
                supervisor,
                interrupts,
                report_options,
                problem=problem,
                elsewhere=elsewhere,
            )
        finally:
            alarm.silence()


def _leave(
    run_dir: Path, supervisor: Supervisor, interrupts: Interrupts, alarm: Alarm, problem: str
) -> int:
    """On nodes other than the first: report to the first node how the ranks of this one ended."""
    report_endings(run_dir, supervisor.evidence())
    failure = supervisor.failure()
    if failure is not None:
        print_failure(run_dir, failure)
    elif problem:
        say(problem)
    if failure is None and not problem:
        return interrupts.exit_code if interrupts.signal is not None else 0
    alarm.wait_for_the_end()
    return JOB_FAILED
