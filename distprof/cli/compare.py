"""``distprof compare``: two runs side by side."""

from __future__ import annotations

import sys
from typing import Any

import click

from distprof.cli.app import ExitCode
from distprof.cli.options import debug_option, output_options
from distprof.cli.output import Output, deliver, note
from distprof.verbs.sources import check_comparable


@click.command()
@click.argument("first", metavar="FIRST")
@click.argument("second", metavar="SECOND")
@output_options
@debug_option
def compare(first: str, second: str, **output_options: Any) -> int:
    """Show what changed between two runs, and which parts of a step explain the difference.

    FIRST and SECOND are run directories, saved reports, or any traces that distprof analyze
    accepts. Hardware and size may differ: the report says what is not directly comparable.

    \b
      distprof compare runs/before runs/after
      distprof compare baseline.json runs/mine --format md -o comparison.md
    """  # noqa: D301 - click reads it
    output = Output(**output_options)
    from distprof.ingest.executor import import_numpy

    import_numpy()  # before anything else does
    from distprof.verbs.compare.show import COMPARISON, compare_reports
    from distprof.verbs.summaries import open_report

    output.check(COMPARISON)
    for source in (first, second):  # before the first is read, which may take minutes
        check_comparable(source)
    reports = []
    for source in (first, second):
        note(f"Reading {source}", quiet=output.quiet or not sys.stderr.isatty())
        reports.append(open_report(source))
    comparison = compare_reports(reports[0], reports[1], names=(first, second))
    deliver(COMPARISON, comparison, output)
    return ExitCode.FINE
