"""``distprof bench``: its options. torch is imported when ranks start, not for ``--help``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from distprof.errors import UsageError
from distprof.options import click_options, options_of
from distprof.units import finite_range
from distprof_runs.bench.plan import KINDS, Plan, parse_kinds, parse_size
from distprof_runs.cli import remember_debug
from distprof_runs.settings import LaunchOptions, resolve

_DEFAULTS = Plan()
_LAUNCH = [each for each in options_of(LaunchOptions) if each.name != "emulate_nodes"]


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 success, 2 wrong usage, 3 bad input, 4 ranks failed, 130 interrupted.",
)
@click_options(_LAUNCH)
@click.option(
    "--device",
    type=click.Choice(["auto", "cuda", "cpu"]),
    default="auto",
    help="By default CUDA if available.",
)
@click.option(
    "--compute",
    is_flag=True,
    help="Measure matrix products by type and memory of one device, in about a minute, instead of "
    "collectives.",
)
@click.option("--collectives", default="", metavar="LIST", help=f"Any of {','.join(KINDS)}.  [all]")
@click.option("--min-bytes", default="64", metavar="SIZE", help="Smallest size.  [64]")
@click.option("--max-bytes", metavar="SIZE", help="Largest size.  [CUDA: 1G, CPU: 64M]")
@click.option(
    "--factor",
    type=click.IntRange(2, 1_000_000),
    default=_DEFAULTS.factor,
    help="Ratio of successive sizes.  [4]",
)
@click.option(
    "--rounds",
    type=click.IntRange(1, 1_000),
    default=_DEFAULTS.rounds,
    help="Rounds per size; the median counts.  [5]",
)
@click.option(
    "--iterations",
    type=click.IntRange(0, 1_000_000),
    default=0,
    help="Operations per round.  [as many as fit in --round-s]",
)
@click.option(
    "--round-s",
    type=finite_range(0, 3_600),
    default=_DEFAULTS.round_s,
    help="Seconds per round.  [0.05]",
)
@click.option(
    "--timeout-s",
    type=finite_range(0, 86_400),
    default=_DEFAULTS.timeout_s,
    help="Maximum seconds to wait for a rank.  [60]",
)
@click.option(
    "--show",
    "shown",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Do not measure: show a saved profile or the output of nccl-tests.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Save the profile as JSON; with --show, save the shown text.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Overwrite an existing file; with --compute, keep the collectives in it.",
)
@click.option("--format", "format_name", metavar="text|json|md", help="Output format.  [text]")
@click.option("--width", type=click.IntRange(40, 400), help="Width of the text.  [the terminal's]")
@click.option(
    "--all", "show_all", is_flag=True, help="Show every size with its times and their spread."
)
@click.option("-q", "--quiet", is_flag=True, help="Write only errors to stderr.")
@click.option(
    "--debug",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=remember_debug,
    help="Show the traceback of an unexpected error.",
)
def bench(**values: Any) -> int:
    """Measure the collectives of this machine, or with --compute what its device reaches alone.

    All ranks take part. Sizes and bandwidths are defined as in nccl-tests. Under torchrun or srun,
    the started processes are the ranks.

    \b
      distprof bench --gpus 8 -o fabric.json
      distprof bench --ranks 2 --device cpu
      distprof bench --compute -o fabric.json --force
      distprof bench --show all_reduce.log
    """  # noqa: D301 - click reads it
    from distprof_runs.bench.job import Showing, run_bench, run_compute, show

    output, force = values["output"], values["force"]
    arguments = _shown_arguments(values)
    if values["shown"] is not None:
        more = ["-o", str(output)] if output else []
        return show(values["shown"], [*arguments, *more, *(["--force"] if force else [])])
    if values["format_name"] not in (None, "text", "json", "md"):
        raise UsageError(f"unknown format {values['format_name']!r}: choose text, json or md")
    showing = Showing(out=output, force=force, arguments=tuple(arguments), quiet=values["quiet"])
    if values["compute"]:
        return run_compute(values["device"], showing)
    launch = {o.name: values[o.name] for o in _LAUNCH if values[o.name] is not None}
    settings = resolve("ddp", {}, {"launch": launch, "training": {"device": values["device"]}})
    return run_bench(settings, _plan(values), showing)


def _plan(values: dict[str, Any]) -> Plan:
    largest = values["max_bytes"]
    plan = Plan(
        kinds=parse_kinds(values["collectives"]),
        min_bytes=parse_size(values["min_bytes"]),
        max_bytes=parse_size(largest) if largest else 0,
        factor=values["factor"],
        rounds=values["rounds"],
        iterations=values["iterations"],
        round_s=values["round_s"],
        device=values["device"],
        timeout_s=values["timeout_s"],
    )
    plan.check()
    return plan


def _shown_arguments(values: dict[str, Any]) -> list[str]:
    """The arguments of ``distprof fabric``."""
    arguments = ["--format", values["format_name"]] if values["format_name"] else []
    arguments += ["--width", str(values["width"])] if values["width"] else []
    arguments += ["--all"] if values["show_all"] else []
    return arguments + (["--quiet"] if values["quiet"] else [])
