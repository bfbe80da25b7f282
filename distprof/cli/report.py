"""``distprof report``: shows a saved report in any format."""

from __future__ import annotations

from typing import Any

import click

from distprof.cli.options import debug_option, fail_on_option, report_options
from distprof.cli.output import Output, show, verdict_code


@click.command()
@click.argument("saved", type=click.Path())
@report_options
@fail_on_option
@debug_option
def report(saved: str, **options: Any) -> int:
    """Show a saved report. SAVED is a report.json or a run directory that holds one.

    \b
      distprof report RUN
      distprof report report.json --format md > comment.md
    """  # noqa: D301 - click reads it
    from distprof.documents.saved import load_report

    output = Output.taken_from(options)
    output.check()
    loaded = load_report(saved)
    show(loaded, output, saved_as=saved)
    return verdict_code(loaded.findings, output.fail_on)
