"""``distprof fabric``: what a fabric profile or the output of nccl-tests says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from distprof.cli.app import ExitCode
from distprof.cli.options import debug_option, output_options
from distprof.cli.output import PIPE_WIDTH, Output, has_color, note, terminal_width, to_stdout
from distprof.errors import UsageError

__all__ = ["fabric"]


@click.command()
@click.argument("file", metavar="FILE", type=click.Path())
@output_options
@debug_option
def fabric(file: str, **output_options: Any) -> int:
    """Show how fast a network is: latency, bandwidth and crossover size of each collective.

    FILE is a profile that distprof bench has written, or what a program of nccl-tests has printed;
    with --format json the latter becomes a profile. distprof analyze --fabric FILE holds a run
    against it.

    \b
      distprof fabric fabric.json --all
      distprof fabric all_reduce.log --format json -o fabric.json
    """  # noqa: D301 - click reads it
    output = Output(**output_options)
    output.check()
    _show(file, output)
    return ExitCode.FINE


def _show(file: str, output: Output) -> None:
    from distprof.ingest.fabric import read_fabric
    from distprof.report.fabric_reporters import fabric_reporters
    from distprof.report.registry import RenderOptions
    from distprof.report.saved import write_atomically

    name, reporters = output.reporter, fabric_reporters()
    if name not in reporters:
        raise UsageError(f"no format {name!r} for a fabric: choose from {', '.join(reporters)}")
    options = RenderOptions(
        width=output.width or (PIPE_WIDTH if output.output else terminal_width()),
        color=output.output is None and has_color(sys.stdout),
        show_all=output.show_all,
        saved_as="",
    )
    text = reporters[name](read_fabric(file), options)
    if output.output is None:
        to_stdout(text)
        return
    write_atomically(Path(output.output), text.encode("utf-8", "backslashreplace"))
    note(f"Wrote {output.output}", quiet=output.quiet)
