"""``distprof capture``: record any training program without changing its code."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from distprof.artefacts import OUTPUT_FILE
from distprof.artefacts.run_file import Coverage, Exit, RunFile
from distprof.errors import DistprofError, InputError, UsageError
from distprof.formats import check_reporter
from distprof.options import click_options, options_of
from distprof.terms import Severity
from distprof_probes.attach.replica import parse_mesh, parse_ranks, replica_ranks
from distprof_probes.job.messages import one_line, say
from distprof_probes.options import ProbeOptions

if TYPE_CHECKING:
    from distprof_probes.attach.failure import Watch
    from distprof_probes.attach.launch import Ending

_Command = TypeVar("_Command", bound=Callable[..., Any])

_SWITCHES = (
    "shapes",
    "stacks",
    "profile_memory",
    "nvml",
    "nccl_debug",
    "memory",
    "flight_recorder",
    "collective_times",
    "pauses",
    "settings",
    "pipeline_marks",
    "clock",
    "measure_overhead",
    "attach",
)
_IN_SHORT = {
    "shapes": "Record operators' input shapes.",
    "collective_times": "Record NCCL's times on the GPU, with TORCH_NCCL_ENABLE_TIMING=1.",
    "pauses": "Record garbage collections and waits for the data loader.",
    "settings": "Read the configuration of data loaders, modules and optimizers.",
    "attach": "Open a socket per rank for distprof attach, and take its requests.",
}
_NO_VERDICT = InputError.exit_code
_WITH_REPORT = (0, 1)  # without and with findings


def _switches(command: _Command) -> _Command:
    """One ``--name/--no-name`` for each probe that can be switched."""
    known = {option.name: option for option in options_of(ProbeOptions)}
    switches = [known[name] for name in _SWITCHES]
    more = {
        each.name: {"default": each.default, "help": _IN_SHORT.get(each.name, each.help)}
        for each in switches
    }
    return click_options(switches, **more)(command)


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The run directory to create.",
)
@click.option(
    "--mode",
    type=click.Choice(["window", "always-on", "off"]),
    default="window",
    show_default=True,
    help="Trace some steps; never trace; or write the step log only.",
)
@click.option(
    "--start-step",
    type=click.IntRange(min=-1),
    default=-1,
    help="First step to trace; by default soon after the start.",
)
@click.option(
    "--steps",
    "--profile-steps",
    "num_steps",
    type=click.IntRange(min=0),
    default=0,
    show_default="4, on few ranks up to 13",
    help="Number of steps to trace; 0: the default.",
)
@click.option(
    "--light-steps",
    type=click.IntRange(min=0),
    default=4,
    show_default=True,
    help="Steps before them in which only the GPU is recorded, which costs less; 0: none.",
)
@click.option(
    "--profile-ranks",
    default="all",
    show_default=True,
    metavar="all|replica|0,8-15",
    help="Ranks to trace. replica: all ranks of one model replica, and one of each other replica.",
)
@click.option(
    "--mesh",
    default="",
    metavar="pp=2,dp=4,tp=2",
    help="The job's device mesh, slowest axis first.",
)
@_switches
@click.option(
    "--format",
    "format_name",
    metavar="text|json|md|html",
    help="Format of the report; html: RUN_DIR/report.html.",
)
@click.option(
    "--fail-on",
    type=click.Choice([severity.value for severity in Severity]),
    help="Exit with 1 if there are findings of this severity or above.",
)
@click.option("--no-report", is_flag=True, help="Record without a report.")
def capture(
    command: tuple[str, ...],
    out: Path | None,
    profile_ranks: str,
    mesh: str,
    format_name: str | None,
    fail_on: str | None,
    no_report: bool,
    **probes: Any,
) -> int:
    """Run a training program with probes, and report where the time of its steps goes.

    The program needs no changes: distprof finds steps by the optimizer. Its output, signals and
    exit code pass through. Recording costs the job about a second, once: four light steps, three of
    warm-up and four full ones take up to about twice as long, and the trace has to be saved. The
    report says how much it was, and is in the time of steps without the profiler. With --fail-on, a
    program that ended with 0 gives 1 if there are such findings, and 3 if there is no report or no
    step.

    \b
      distprof capture -- torchrun --nproc-per-node 8 train.py --lr 3e-4
      distprof capture --start-step 100 --steps 4 -o runs/mine -- python train.py
    """  # noqa: D301 - click reads it
    from distprof_probes.attach.launch import check_program, shell_code
    from distprof_probes.attach.shared_job import SharedJob

    check_reporter(format_name)
    program = check_program(command)
    sizes = parse_mesh(mesh) if mesh else {}
    coverage = _coverage(profile_ranks, sizes)
    options = ProbeOptions(**probes, profile_ranks=_as_option(coverage))
    run_dir = _new_run(out, command, options, sizes, coverage)
    is_first = _is_first_launcher(command)
    if is_first:
        _say(f"Recording in {run_dir}")
    try:
        ending, watch = _run(program, command, run_dir, options, is_first=is_first)
        code = shell_code(ending.exit)
        with _AfterTheProgram(run_dir, passes_on=bool(fail_on) and not code) as after:
            has_steps = _complete(run_dir, ending, watch, is_first=is_first)
            after.verdict = 0 if has_steps or code else _NO_VERDICT
            if is_first and not no_report:
                after.verdict = _report(run_dir, format_name, fail_on) or after.verdict
        return code or (after.verdict if fail_on else 0)
    finally:
        if is_first:
            SharedJob.of(run_dir).release_others()


class _AfterTheProgram:
    """Reports errors after the end of the program, which are not failures of the program.

    Args:
        run_dir: The run directory.
        passes_on: Whether an interruption is passed on, because the caller asked for a verdict and
            gets none.
    """

    def __init__(self, run_dir: Path, *, passes_on: bool) -> None:
        self.verdict: int = _NO_VERDICT  # Exit code for callers that asked for a verdict.
        self._run_dir = run_dir
        self._passes_on = passes_on

    def __enter__(self) -> _AfterTheProgram:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if error is None:
            return False
        self.verdict = _NO_VERDICT
        if not isinstance(error, Exception):
            _say(f"The report was interrupted. It can be made with: {_analyze(self._run_dir)}")
            return not self._passes_on
        _say(f"There is no report: {_why(error, self._run_dir)}")
        return True


def _why(error: Exception, run_dir: Path) -> str:
    if not run_dir.is_dir():
        return f"{run_dir} was deleted while the program ran"
    if isinstance(error, DistprofError):
        return one_line(error)
    return f"unexpected error in distprof ({type(error).__name__}: {error})"


def _coverage(asked: str, mesh: dict[str, int]) -> Coverage:
    if asked == "all":
        return Coverage()
    if asked == "replica":
        if not mesh:
            raise UsageError(
                "--profile-ranks replica: give the layout of the ranks, for example"
                " --mesh pp=2,dp=4,tp=2"
            )
        return Coverage(profiled_ranks=replica_ranks(mesh), text=asked)
    return Coverage(profiled_ranks=parse_ranks(asked), text=asked)


def _as_option(coverage: Coverage) -> str:
    ranks = coverage.profiled_ranks
    return "all" if ranks is None else ",".join(str(rank) for rank in ranks)


def _new_run(
    out: Path | None,
    command: Sequence[str],
    options: ProbeOptions,
    mesh: dict[str, int],
    coverage: Coverage,
) -> Path:
    """The run directory and its run.json, which another launcher may have written first."""
    from distprof_probes.environment import placement
    from distprof_probes.job.directory import DEFAULT_FOLDER, new_run_directory, write_run_file
    from distprof_probes.job.other_hosts import agreed_directory, job_name

    def describe() -> RunFile:
        return _description(command, options, mesh, coverage)

    is_first, name, place = _is_first_launcher(command), _name_of(command), placement()
    is_alone = place.origin == "alone" or place.world_size == 1
    if is_alone and is_first:
        run_dir = new_run_directory(out, f"capture-{name}")
        write_run_file(run_dir, describe(), is_new=True)
        return run_dir
    if out is None and (is_alone or not job_name()):
        raise UsageError("one capture per node or rank: give all the same new folder with -o")
    folder = out or DEFAULT_FOLDER / f"capture-{name}-{job_name()}"
    return agreed_directory(folder, is_first=is_first, describe=describe)


def _description(
    command: Sequence[str], options: ProbeOptions, mesh: dict[str, int], coverage: Coverage
) -> RunFile:
    from distprof_probes.environment import allowed_environment, git_commit, tool_version, versions

    return RunFile(
        distprof_version=tool_version(),
        kind="capture",
        command=tuple(command),
        config={"probes": msgspec.to_builtins(options)},
        mesh=mesh,
        versions=versions(),
        git_commit=git_commit(Path.cwd()),
        environment=allowed_environment(),
        started_ns=time.time_ns(),
        coverage=coverage,
    )


def _is_first_launcher(command: Sequence[str]) -> bool:
    """Whether this capture describes the run: the only one, or that of the first node or rank."""
    from distprof_probes.environment import placement

    place = placement()
    if place.origin != "alone":
        return place.rank == 0
    words = [part for word in command for part in word.split("=", 1)]
    nodes = [value for flag, value in pairwise(words) if flag in ("--node-rank", "--node_rank")]
    node = nodes[0] if nodes else os.environ.get("PET_NODE_RANK", "0")  # torchrun's own order
    return node == "0"


def _name_of(command: Sequence[str]) -> str:
    """The script's name: the first argument that ends in .py; else the module or the program."""
    script = next((part for part in command if part.endswith(".py")), "")
    modules = [name for flag, name in pairwise(command) if flag in ("-m", "--module")]
    return Path(script).stem or (modules[-1] if modules else Path(command[0]).name)


def _run(
    program: str, command: Sequence[str], run_dir: Path, options: ProbeOptions, *, is_first: bool
) -> tuple[Ending, Watch]:
    """Run the program to its end, and observe its ranks.

    The first launcher of a job keeps what it prints in the run directory.
    """
    from distprof_probes.attach.environment import captured_environment
    from distprof_probes.attach.failure import Watch
    from distprof_probes.attach.launch import run_program

    watch = Watch(run_dir)
    environment = captured_environment(os.environ, run_dir, options)
    output = run_dir / OUTPUT_FILE if is_first else None
    ended = run_program(program, command, environment, meanwhile=watch.look, output=output)
    return ended, watch


def _complete(run_dir: Path, ending: Ending, watch: Watch, *, is_first: bool) -> bool:
    """Complete run.json, or report to the capture that does; return whether there are steps."""
    from distprof_probes.attach.diagnosis import notes_of, why_nothing
    from distprof_probes.attach.diary import read_diary
    from distprof_probes.attach.failure import outcome_of, rank_ends
    from distprof_probes.attach.ranks import look, remove_sockets
    from distprof_probes.attach.shared_job import SharedJob
    from distprof_probes.job.finish import conclude

    remove_sockets(run_dir)
    diary = read_diary(run_dir)
    has_steps = any(rank.last_step is not None for rank in look(run_dir))
    why_no_step = "" if has_steps else why_nothing(diary)
    notes = notes_of(diary, ending.exit) + ([f"No step: {why_no_step}."] if why_no_step else [])
    job = SharedJob.of(run_dir)
    own, reports = job.own_rank(ending), job.other_endings(ending) if is_first else []
    evidence = rank_ends(run_dir, ending, watch, own=own, told=reports)
    if is_first:
        outcome, failure = outcome_of(ending, evidence)
        ends = {each.rank: each.exit for each in evidence if each.exit is not None}
        known = {rank: end for rank, end in ends.items() if end.ended_ns is not None}
        try:
            conclude(run_dir, outcome=outcome, exits=known, failure=failure, notes=notes)
        except InputError as error:  # a full disk: a report of the existing files is still possible
            _say(f"Error: {one_line(error)}")
    else:
        job.report_own_ending(ending, evidence)
    if why_no_step:
        _say(_without_steps(ending.exit, why_no_step))
    return has_steps


def _without_steps(ended: Exit, why: str) -> str:
    if ended.signal or ended.code:
        way = ended.signal or f"exit code {ended.code}"
        return f"The program ended with {way}, and no step was recorded."
    return f"No step was recorded: {why}"


def _report(run_dir: Path, format_name: str | None, fail_on: str | None) -> int:
    """Show the report, and return its exit code."""
    from distprof_probes.job.finish import page_of, report

    arguments = ["--fail-on", fail_on] if fail_on else []
    has_content = _has_evidence(run_dir) and not _ended_before_a_step(run_dir)
    reported = report(run_dir, arguments, format_name=format_name) if has_content else 0
    if reported not in _WITH_REPORT:
        _say(f"There is no report. It can be made with: {_analyze(run_dir)}")
    page = page_of(run_dir)
    _say(f"The run is in {run_dir}{f', the report in {page}' if page else ''}")
    return reported


def _analyze(run_dir: Path) -> str:
    return f"distprof analyze {shlex.quote(str(run_dir))}"


def _has_evidence(run_dir: Path) -> bool:
    return any(run_dir.glob("rank[0-9]*"))


def _ended_before_a_step(run_dir: Path) -> bool:
    """Whether the user stopped the program before its first step: there is nothing to report."""
    from distprof_probes.attach.ranks import look
    from distprof_probes.job.directory import read_run_file

    was_stopped = read_run_file(run_dir).outcome == "interrupted"
    return was_stopped and all(rank.last_step is None for rank in look(run_dir))


def _say(text: str) -> None:
    """Print one line on stderr; stdout belongs to the program and then to the report."""
    say(f"distprof: {text}")
