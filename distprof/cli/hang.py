"""``distprof hang``: which ranks are missing in the operation where a job is stuck."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from distprof.cli.app import ExitCode
from distprof.cli.options import debug_option, output_options
from distprof.cli.output import Output, deliver

if TYPE_CHECKING:
    from distprof.verbs.hang.result import HangReport

_NEVER, _STUCK, _IN_FLIGHT, _FAILED = "never", "stuck", "in_flight", "failed"


@click.command()
@click.argument("sources", metavar="DIR|LOG...", nargs=-1, required=True, type=click.Path())
@output_options
@click.option("--full", is_flag=True, help="Show every table, not only what to do.")
@click.option(
    "--fail-on",
    type=click.Choice([_STUCK, _IN_FLIGHT, _NEVER]),
    default=_STUCK,
    show_default=True,
    help="Exit with 1 if the job is stuck or failed; in_flight: also if operations are in flight.",
)
@click.option("--executor", metavar="SPEC", default="process", help="process, process:N or serial.")
@debug_option
def hang(sources: tuple[str, ...], fail_on: str, executor: str, **output_options: Any) -> int:
    """Find out in which operation a job is stuck, which ranks the others wait for, or who failed.

    DIR holds dumps of torch's Flight Recorder, pickle or JSON, one per rank; some may be missing.
    It may also be a run directory into which distprof attach DIR --flight collected dumps. Logs and
    Python stacks in the folder are read too. Nothing in a dump is executed. LOG is what the job
    printed, a glob of such files, or - for standard input: its watchdogs, launchers and tracebacks
    decide without any dump. Name several to join them.

    \b
      distprof hang dumps/
      distprof hang job.out
      distprof hang 'logs/*.out' stacks/
      distprof hang runs/mine --format json -o hang.json
    """  # noqa: D301 - click reads it
    output = Output(**output_options)
    from distprof.verbs.hang.show import HANG

    output.check(HANG)
    report = _report(sources, executor, quiet=output.quiet)
    deliver(HANG, report, output)
    stuck = {
        _NEVER: (),
        _STUCK: (_STUCK, _FAILED),
        _IN_FLIGHT: (_STUCK, _FAILED, _IN_FLIGHT),
    }[fail_on]
    return ExitCode.FINDINGS if report.state.value in stuck else ExitCode.FINE


def _report(sources: tuple[str, ...], executor: str, *, quiet: bool) -> HangReport:
    from distprof.ingest.executor import import_numpy

    import_numpy()  # before anything else does
    from distprof.cli.progress import progress_bar
    from distprof.verbs.functions import hang as diagnose
    from distprof.verbs.sources import spooled

    with progress_bar("reading dumps", quiet=quiet) as progress:
        return diagnose(*map(spooled, sources), executor=executor, progress=progress)
