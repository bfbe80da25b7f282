"""``distprof fabric``: shows a fabric profile or the output of nccl-tests."""

from __future__ import annotations

from typing import Any

import click

from distprof.cli.app import ExitCode
from distprof.cli.options import debug_option, output_options
from distprof.cli.output import Output, deliver


@click.command()
@click.argument("file", metavar="FILE", type=click.Path())
@output_options
@debug_option
def fabric(file: str, **output_options: Any) -> int:
    """Show how fast a network is: latency, bandwidth and crossover size of each collective.

    FILE is a profile from distprof bench, or the output of nccl-tests or perftest; - is standard
    input. --format json converts nccl-tests output to a profile. distprof analyze --fabric FILE
    compares a run with the profile.

    \b
      distprof fabric fabric.json --all
      distprof fabric all_reduce.log --format json -o fabric.json
    """  # noqa: D301 - click reads it
    output = Output(**output_options)
    from distprof.ingest.fabric import read_fabric
    from distprof.verbs.fabric import FABRIC

    output.check(FABRIC)
    deliver(FABRIC, read_fabric(file), output)
    return ExitCode.FINE
