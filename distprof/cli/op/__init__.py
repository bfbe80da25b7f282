"""``distprof op``: one operator of a trace, and a script that repeats it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from distprof.cli.app import ExitCode
from distprof.cli.options import MAX_RANK, config_option, debug_option, output_options
from distprof.cli.output import Output, check_free, deliver, note


@click.command()
@click.argument("trace", metavar="TRACE")
@click.argument("name", metavar="NAME")
@output_options
@click.option("--rank", type=click.IntRange(0, MAX_RANK), help="Rank; by default the first one.")
@click.option(
    "--fabric",
    type=click.Path(),
    metavar="FILE",
    help="Limits that distprof bench --compute measured.",
)
@config_option
@click.option(
    "--script",
    type=click.Path(),
    metavar="FILE",
    help="Write a script that repeats one call with random data on this machine; needs only torch.",
)
@click.option(
    "--call",
    type=click.IntRange(1, 10_000),
    default=1,
    metavar="N",
    help="Which row of the table the script repeats.  [1, the longest]",
)
@debug_option
def op(
    trace: str,
    name: str,
    rank: int | None,
    fabric: str | None,
    config: str | None,
    script: str | None,
    call: int,
    **output_options: Any,
) -> int:
    """Tell one operator's story: shapes, time by kernel, share of the GPU's limit, callers.

    TRACE is any trace or run directory that distprof analyze accepts. NAME is an operator, a
    kernel, or a part of its name; if several fit, they are listed.

    \b
      distprof op traces/ aten::addmm
      distprof op traces/ layer_norm_backward --script repeat.py
    """  # noqa: D301 - click reads it
    output = Output(**output_options)
    from distprof.ingest.executor import import_numpy

    import_numpy()  # before anything else does
    from distprof import api
    from distprof.config import load_config
    from distprof.documents.document import write_file
    from distprof.hardware import load_sheet
    from distprof.verbs.op.measure import tell
    from distprof.verbs.op.script import script_of
    from distprof.verbs.op.show import OPERATOR
    from distprof.verbs.sources import check_source

    output.check(OPERATOR)
    if script is not None:
        check_free(script, force=output.force)
    check_source(trace)
    settings = load_config(config)
    run = api.open_run(trace, config=settings)
    sheet = load_sheet(settings.hardware, settings.source)
    told = tell(run, name, sheet=sheet, fabric=api.fabric_of(fabric, settings), rank=rank)
    if script is not None:
        write_file(Path(script), script_of(told, call).encode())
        note(f"Wrote {script}. Next: python {script}", quiet=output.quiet)
    deliver(OPERATOR, told.story, output)
    return ExitCode.FINE
