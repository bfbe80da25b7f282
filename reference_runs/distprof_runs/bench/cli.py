"""``distprof bench``: its options. torch is imported when ranks start, not for ``--help``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from distprof.errors import UsageError
from distprof.options import click_options, options_of
from distprof_runs.bench.plan import KINDS, Plan, parse_kinds, parse_size
from distprof_runs.settings import LaunchOptions, resolve

__all__ = ["bench"]

_DEFAULTS = Plan()
_LAUNCH = [each for each in options_of(LaunchOptions) if each.name != "emulate_nodes"]


def _remember_debug(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    del param
    if ctx.obj is not None:  # what the program `distprof` knows of this call
        ctx.obj.debug = value


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 fine, 2 wrong usage, 3 bad input, 4 the ranks failed, 130 interrupted.",
)
@click_options(_LAUNCH)
@click.option(
    "--device",
    type=click.Choice(["auto", "cuda", "cpu"]),
    default="auto",
    help="CUDA devices where there are, by default.",
)
@click.option(
    "--collectives", default="", metavar="LIST", help=f"Some of {','.join(KINDS)}.  [all]"
)
@click.option("--min-bytes", default="64", metavar="SIZE", help="Smallest size.  [64]")
@click.option("--max-bytes", metavar="SIZE", help="Largest size.  [CUDA: 1G, CPU: 64M]")
@click.option("--factor", type=int, default=_DEFAULTS.factor, help="From size to size.  [4]")
@click.option("--rounds", type=int, default=_DEFAULTS.rounds, help="Per size; their median.  [5]")
@click.option(
    "--iterations", type=int, default=0, help="Operations per round.  [as many as take --round-s]"
)
@click.option("--round-s", type=float, default=_DEFAULTS.round_s, help="Length of a round.  [0.05]")
@click.option(
    "--timeout-s", type=float, default=_DEFAULTS.timeout_s, help="Longest wait for a rank.  [60]"
)
@click.option(
    "--show",
    "shown",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Measure nothing: show a saved profile, or what nccl-tests printed.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Keep the profile, JSON; with --show, write what is shown.",
)
@click.option("--force", is_flag=True, help="Replace a file that exists.")
@click.option("--format", "format_name", metavar="text|json|md", help="How it is shown.  [text]")
@click.option("--width", type=click.IntRange(40, 400), help="Width of text.  [the terminal's]")
@click.option("--all", "show_all", is_flag=True, help="Every size with its times and their spread.")
@click.option("-q", "--quiet", is_flag=True, help="Nothing on stderr but errors.")
@click.option(
    "--debug",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_remember_debug,
    help="Show where an unexpected error happened.",
)
def bench(**values: Any) -> int:
    """Measure how fast collectives are here: latency, bandwidth, crossover size.

    Every rank takes part; sizes and bandwidths are counted as nccl-tests counts them. Started by
    torchrun or srun, the processes are the ranks.

    \b
      distprof bench --gpus 8 -o fabric.json
      distprof bench --ranks 2 --device cpu
      distprof bench --show all_reduce.log
    """  # noqa: D301 - click reads it
    from distprof_runs.bench.job import Showing, run_bench, show

    output, force = values["output"], values["force"]
    arguments = _shown_arguments(values)
    if values["shown"] is not None:
        more = ["-o", str(output)] if output else []
        return show(values["shown"], [*arguments, *more, *(["--force"] if force else [])])
    if values["format_name"] not in (None, "text", "json", "md"):
        raise UsageError(f"no format {values['format_name']!r}: choose from text, json, md")
    launch = {o.name: values[o.name] for o in _LAUNCH if values[o.name] is not None}
    settings = resolve("ddp", {}, {"launch": launch, "training": {"device": values["device"]}})
    showing = Showing(out=output, force=force, arguments=tuple(arguments), quiet=values["quiet"])
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
    """For ``distprof fabric``."""
    arguments = ["--format", values["format_name"]] if values["format_name"] else []
    arguments += ["--width", str(values["width"])] if values["width"] else []
    arguments += ["--all"] if values["show_all"] else []
    return arguments + (["--quiet"] if values["quiet"] else [])
