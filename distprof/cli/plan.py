"""``distprof plan``: which layouts of a model fit a cluster, and how fast they are."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distprof.cli.app import ExitCode
from distprof.cli.options import debug_option, flag_option, output_options_with, path_option
from distprof.cli.output import Output, deliver, show_in_step_summary
from distprof.config import ModelShape, load_config
from distprof.errors import UsageError
from distprof.options import click_options, options_of
from distprof.terms import FORMATS, Severity
from distprof.units import MOST_RANKS, finite_range

if TYPE_CHECKING:
    from distprof.verbs.plan.lint import JobFile

_AT_LEAST_ONE = click.IntRange(1, 10**9)
_share_option = partial(click.option, type=finite_range(0, 1), show_default=True)
_FEW, _MANY = 10, 100
_SHAPE_KEYS = ModelShape.__struct_fields__


@click.command()
@click.option("--model", metavar="NAME", help="Published model, for example llama3-70b.")
@click.option("--params", type=finite_range(1, 1e18), metavar="N", help="Parameters, e.g. 70e9.")
@click_options(
    options_of(ModelShape),
    ffn={"help": "Width of the MLP; by default 8/3 of hidden, or derived from --params."},
)
@click.option(
    "--sequence",
    type=_AT_LEAST_ONE,
    metavar="TOKENS",
    help="Sequence length; by default the model's, else 4096.",
)
@click.option(
    "--batch",
    type=_AT_LEAST_ONE,
    metavar="SEQUENCES",
    help="Global batch size; 4 Mi tokens by default.",
)
@click.option(
    "--gpus", type=click.IntRange(1, MOST_RANKS), metavar="N", help="Number of GPUs in the job."
)
@click.option("--gpu", metavar="NAME", help="GPU model; h100 by default.")
@click.option(
    "--gpus-per-node",
    type=_AT_LEAST_ONE,
    metavar="N",
    help="GPUs per fast (NVLink) domain; 8 by default.",
)
@click.option(
    "--inter-node",
    metavar="LINK",
    help="Link between nodes, per GPU and direction: 50GB/s, 400Gb/s or a name; default ndr.",
)
@_share_option(
    "--compute-efficiency", default=0.6, help="Share of the dense peak FLOP/s that kernels reach."
)
@_share_option(
    "--link-efficiency", default=0.8, help="Share of the nominal bandwidth that links reach."
)
@_share_option("--reserve", default=0.1, help="Share of GPU memory to keep free.")
@flag_option("--fp32-gradients", help="Accumulate gradients in fp32.")
@click.option(
    "--layout", metavar="tp=8,pp=4,…", help="Estimate only this layout instead of all layouts."
)
@path_option(
    "--lint",
    help="Check the layout in a configuration: distprof's own TOML; torchtitan's JSON or TOML;"
    " Megatron arguments; DeepSpeed JSON.",
)
@output_options_with(*FORMATS)
@debug_option
def plan(**options: Any) -> int:
    """Find the layouts of a model that fit a cluster, and estimate the step time of each.

    The estimate is computed from the model's shape and the hardware sheet. Nothing is measured, and
    the report lists the assumptions. Define GPUs and links that distprof does not know in
    distprof.toml.

    \b
      distprof plan --model llama3-70b --gpus 1024 --gpu h100
      distprof plan --layers 32 --hidden 4096 --heads 32 --gpus 64 --inter-node 25GB/s
      distprof plan --model gpt3-175b --gpus 64 --gpu a100 --layout tp=8,pp=8,stages=3
      distprof plan --lint train.toml --model llama3-70b --gpus 64
    """  # noqa: D301 - click reads it
    output = Output.taken_from(options)
    if options["lint"] is not None:
        return _lint(options, output)
    from distprof.verbs.plan.show import PLAN

    output.check(PLAN)
    from distprof.verbs.functions import plan_of

    found = plan_of(options, most=_MANY if output.show_all else _FEW)
    deliver(PLAN, found, output)
    return ExitCode.FINE if found.fitting else ExitCode.FINDINGS


def _lint(options: dict[str, Any], output: Output) -> int:
    """Lint the layout in a file. Values missing from the file come from the command line."""
    from distprof.verbs.plan.layout import question_of
    from distprof.verbs.plan.lint import LINT, check_layout, layout_of, num_gpus_of, read_job_file

    output.check(LINT)
    if options["layout"] is not None:
        raise UsageError("--lint takes the layout from the file: leave out --layout")
    file = read_job_file(Path(options["lint"]))
    merged = _merged(options, file, num_gpus_of(file))
    if merged["gpus"] is None:
        raise UsageError(f"{file.source} does not say how many GPUs to use: add --gpus")
    layout, batch = layout_of(file, num_gpus=merged["gpus"], batch=options["batch"])
    question = question_of({**merged, "batch": batch})
    limits = load_config().limits
    found = check_layout(question, layout, file, limits=limits)
    deliver(LINT, found, output)
    show_in_step_summary(LINT, found, output)
    failed = any(finding.severity is Severity.ERROR for finding in found.findings)
    return ExitCode.FINDINGS if failed else ExitCode.FINE


def _merged(options: dict[str, Any], file: JobFile, num_gpus: int | None) -> dict[str, Any]:
    """Options from the file and the command line; the command line wins."""
    from_file = {
        key: file.values.get(key)
        for key in ("gpu", "gpus_per_node", "inter_node", "sequence", "params")
    }
    merged = {**options, "gated": file.values.get("gated", True)}
    for key, value in {**from_file, "gpus": num_gpus}.items():
        merged[key] = value if merged[key] is None else merged[key]
    if options["model"] is not None or any(options[key] is not None for key in _SHAPE_KEYS):
        return merged
    merged["model"] = file.values.get("model")
    if merged["model"] is None:
        merged |= {key: file.values.get(f"shape.{key}") for key in _SHAPE_KEYS}
    return merged
