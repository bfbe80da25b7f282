"""``distprof hang``: which ranks are missing in the operation where a job is stuck."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from distprof.cli.app import ExitCode
from distprof.cli.options import debug_option, output_options
from distprof.cli.output import Output, deliver

if TYPE_CHECKING:
    from distprof.verbs.hang.result import HangReport

__all__ = ["hang"]

_NEVER, _STUCK, _IN_FLIGHT = "never", "stuck", "in_flight"


@click.command()
@click.argument("source", metavar="DIR", type=click.Path())
@output_options
@click.option("--full", is_flag=True, help="Show every table, not only what to do.")
@click.option(
    "--fail-on",
    type=click.Choice([_STUCK, _IN_FLIGHT, _NEVER]),
    default=_STUCK,
    show_default=True,
    help="Exit with 1 if the job is stuck; in_flight: also if operations are in flight.",
)
@click.option("--executor", metavar="SPEC", default="process", help="process, process:N or serial.")
@debug_option
def hang(source: str, fail_on: str, executor: str, **output_options: Any) -> int:
    """Find out in which operation a job is stuck, and which ranks the others wait for.

    DIR holds dumps of torch's Flight Recorder, pickle or JSON, one per rank; some may be missing.
    It may also be a run directory into which distprof attach DIR --flight collected dumps. Logs and
    Python stacks in the folder are read too. Nothing in a dump is executed.

    \b
      distprof hang dumps/
      distprof hang runs/mine --format json -o hang.json
    """  # noqa: D301 - click reads it
    output = Output(**output_options)
    from distprof.verbs.hang.show import HANG

    output.check(HANG)
    report = _report(source, executor, quiet=output.quiet)
    deliver(HANG, report, output)
    stuck = {_NEVER: (), _STUCK: (_STUCK,), _IN_FLIGHT: (_STUCK, _IN_FLIGHT)}[fail_on]
    return ExitCode.FINDINGS if report.state.value in stuck else ExitCode.FINE


def _report(source: str, executor: str, *, quiet: bool) -> HangReport:
    from distprof.ingest.executor import import_numpy

    import_numpy()  # before anything else does
    from distprof.cli.progress import progress_bar
    from distprof.verbs.functions import hang as diagnose

    with progress_bar("reading dumps", quiet=quiet) as progress:
        return diagnose(source, executor=executor, progress=progress)
