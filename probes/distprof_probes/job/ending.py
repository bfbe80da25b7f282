"""From the end of the last rank to the exit code: complete run.json, show failures, report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from distprof.artefacts.run_file import Failure, Outcome
from distprof.errors import InputError
from distprof_probes.job.evidence import RankEvidence
from distprof_probes.job.finish import conclude, report
from distprof_probes.job.interrupts import Interrupts
from distprof_probes.job.messages import one_line, print_failure, print_next_steps, say, shown_path
from distprof_probes.job.supervise import Supervisor

JOB_FAILED = 4
"""Exit code of a job in which a rank failed, for any findings of the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """The user's choices for the report."""

    out: Path | None = None  # The run directory, None for a new one under ``runs``.
    format_name: str | None = None  # Format of the report, None for text.
    # Least severity of findings that makes the exit code 1, None for none.
    fail_on: str | None = None
    no_report: bool = False  # Record without a report.
    quiet: bool = False  # Write only errors to stderr.

    @property
    def arguments(self) -> list[str]:
        """The same options, without the directory, for another ``distprof run``."""
        arguments = ["--format", self.format_name] if self.format_name else []
        return [*self.report_arguments, *arguments, *(["--no-report"] if self.no_report else [])]

    @property
    def report_arguments(self) -> list[str]:
        """The options for ``distprof analyze``, without the format."""
        arguments = ["--quiet"] if self.quiet else []
        return arguments + (["--fail-on", self.fail_on] if self.fail_on else [])


def end_job(
    run_dir: Path,
    supervisor: Supervisor,
    interrupts: Interrupts,
    report_options: ReportOptions,
    *,
    problem: str = "",
    elsewhere: Sequence[RankEvidence] = (),
) -> int:
    """Complete run.json, print what failed, and show the report.

    The supervisor has watched the ranks of this host until they ended. ``problem`` is why the
    launcher itself could not continue; ``elsewhere`` is evidence about ranks on other hosts.
    Returns the exit code: 0, the report's own, 4 for a failed job, 130 or 143 when interrupted, 3
    if the run directory was deleted.
    """
    if not run_dir.is_dir():
        return _without_directory(run_dir, supervisor, interrupts)
    failure = supervisor.failure(elsewhere)
    if failure is None and problem:
        failure = Failure(
            rank=None, kind="unknown", message=problem, detected_ns=supervisor.clock_ns()
        )
    outcome: Outcome = "failed" if failure else "completed"
    if failure is None and interrupts.signal is not None:
        outcome = "interrupted"
    exits = {**supervisor.exits, **{e.rank: e.exit for e in elsewhere if e.exit is not None}}
    try:
        run = conclude(
            run_dir, outcome=outcome, exits=exits, failure=failure, notes=supervisor.notes
        )
    except InputError as error:  # a full disk: a report of the existing files is still possible
        say(f"Error: {one_line(error)}")
        run = None
    if failure is not None:
        print_failure(run_dir, failure)
    interrupts.release()
    has_steps = supervisor.progress.num_steps or any(e.last_step is not None for e in elsewhere)
    if outcome == "interrupted" and not has_steps:
        say(
            "Interrupted before the first step: there is nothing to report. What the ranks "
            f"printed is in {shown_path(run_dir)}."
        )
        return interrupts.exit_code
    has_record = bool(exits) and not report_options.no_report
    code = _reported(run_dir, report_options) if has_record else 0
    if run is not None and not report_options.quiet:
        print_next_steps(run, run_dir, has_report=has_record and code in (0, 1))
    if failure is not None:
        return JOB_FAILED
    return interrupts.exit_code if interrupts.signal is not None else code


def _without_directory(run_dir: Path, supervisor: Supervisor, interrupts: Interrupts) -> int:
    """The exit code of a job whose records are lost."""
    say(f"Error: {shown_path(run_dir)} was deleted while the job ran: there is no report.")
    if interrupts.signal is not None:
        return interrupts.exit_code
    ended_well = supervisor.exits and all(end.code == 0 for end in supervisor.exits.values())
    return InputError.exit_code if ended_well else JOB_FAILED


def _reported(run_dir: Path, report_options: ReportOptions) -> int:
    """The report's exit code. An interrupted report does not fail the job."""
    try:
        options = report_options
        return report(run_dir, options.report_arguments, format_name=options.format_name)
    except KeyboardInterrupt:
        return 130
