"""``distprof plan``: which layouts fit a model on a cluster, and what they cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distprof.cli.app import ExitCode
from distprof.cli.options import debug_option, output_options
from distprof.cli.output import Output, deliver
from distprof.config import ModelShape
from distprof.errors import UsageError
from distprof.options import click_options, options_of

if TYPE_CHECKING:
    from distprof.costs.transformer import Transformer
    from distprof.verbs.plan.job_file import JobFile
    from distprof.verbs.plan.question import Cluster, Question
    from distprof.verbs.plan.result import Plan

__all__ = ["plan"]

_AT_LEAST_ONE = click.IntRange(1, 10**9)
_SHARE = click.FloatRange(0, 1)
_TOKENS = 4 * 2**20
_DEFAULT_SEQUENCE = 4096
_FEW, _MANY = 10, 100
_SHAPE_KEYS = ModelShape.__struct_fields__
_GPU, _PER_NODE, _LINK = "h100", 8, "ndr"


@click.command()
@click.option("--model", metavar="NAME", help="A published model, for example llama3-70b.")
@click.option("--params", type=click.FloatRange(1), metavar="N", help="Parameters, e.g. 70e9.")
@click_options(
    options_of(ModelShape),
    ffn={"help": "Width of the MLP; by default 8/3 of hidden, or what --params leaves."},
)
@click.option(
    "--sequence", type=_AT_LEAST_ONE, metavar="TOKENS", help="By default the model's, or 4096."
)
@click.option(
    "--batch",
    type=_AT_LEAST_ONE,
    metavar="SEQUENCES",
    help="Of one step, all ranks; by default 4 Mi tokens.",
)
@click.option("--gpus", type=click.IntRange(1, 10**6), metavar="N", help="Of the job.")
@click.option("--gpu", metavar="NAME", help="Kind of GPU; by default h100.")
@click.option(
    "--gpus-per-node",
    type=_AT_LEAST_ONE,
    metavar="N",
    help="GPUs of one fast (NVLink) domain; by default 8.",
)
@click.option(
    "--inter-node",
    metavar="LINK",
    help="Between nodes, per GPU and direction: 50GB/s, 400Gb/s or a name; by default ndr.",
)
@click.option(
    "--compute-efficiency",
    type=_SHARE,
    default=0.6,
    show_default=True,
    help="Share of the dense peak that kernels reach.",
)
@click.option(
    "--link-efficiency",
    type=_SHARE,
    default=0.8,
    show_default=True,
    help="Share of their bandwidth that links reach.",
)
@click.option(
    "--reserve",
    type=_SHARE,
    default=0.1,
    show_default=True,
    help="Share of memory that stays free.",
)
@click.option("--fp32-gradients", is_flag=True, help="Gradients are accumulated in fp32.")
@click.option(
    "--layout", metavar="tp=8,pp=4,…", help="Judge this layout alone instead of all there are."
)
@click.option(
    "--lint",
    type=click.Path(),
    metavar="FILE",
    help="Check the layout of a configuration: own or torchtitan TOML, Megatron arguments,"
    " DeepSpeed JSON.",
)
@output_options
@debug_option
def plan(**options: Any) -> int:
    """Find the layouts that fit a model on a cluster, and estimate what each costs.

    Everything is modelled from the model's shape and the hardware sheet; nothing is measured. The
    report says what the estimate assumes. GPUs and links that distprof does not know are added in
    distprof.toml.

    \b
      distprof plan --model llama3-70b --gpus 1024 --gpu h100
      distprof plan --layers 32 --hidden 4096 --heads 32 --gpus 64 --inter-node 25GB/s
      distprof plan --model gpt3-175b --gpus 64 --gpu a100 --layout tp=8,pp=8,stages=3
      distprof plan --lint train.toml --model llama3-70b --gpus 64
    """  # noqa: D301 - click reads it
    keys = ("format_name", "output", "force", "width", "show_all", "quiet")
    output = Output(**{key: options.pop(key) for key in keys})
    from distprof.verbs.plan.show import PLAN

    output.check(PLAN)
    if options["lint"] is not None:
        return _lint(options, output)
    found = _plan(options, most=_MANY if output.show_all else _FEW)
    deliver(PLAN, found, output)
    return ExitCode.FINE if found.fitting else ExitCode.FINDINGS


def _plan(options: dict[str, Any], *, most: int) -> Plan:
    from distprof.verbs.plan.layout import parse_layout
    from distprof.verbs.plan.search import judge_layout, make_plan
    from distprof.version import __version__

    question = _question(options)
    if options["layout"] is None:
        return make_plan(question, version=__version__, most=most)
    layout = parse_layout(
        options["layout"], num_gpus=question.cluster.num_gpus, batch=question.batch
    )
    return judge_layout(question, layout, version=__version__)


def _lint(options: dict[str, Any], output: Output) -> int:
    """The layout of a file; what it does not say is taken from the command line."""
    from distprof.config import load_config
    from distprof.terms import Severity
    from distprof.verbs.plan.job_file import layout_of, num_gpus_of, read_job_file
    from distprof.verbs.plan.lint import LINT, check_layout
    from distprof.version import __version__

    if options["layout"] is not None:
        raise UsageError("--lint and --layout: the layout is the file's")
    file = read_job_file(Path(options["lint"]))
    merged = _merged(options, file, num_gpus_of(file))
    if merged["gpus"] is None:
        raise UsageError(f"{file.source} does not say how many GPUs: add --gpus")
    layout, batch = layout_of(file, num_gpus=merged["gpus"], batch=options["batch"])
    question = _question({**merged, "batch": batch})
    limits = load_config().limits
    found = check_layout(question, layout, file, version=__version__, limits=limits)
    deliver(LINT, found, output)
    failed = any(finding.severity is Severity.ERROR for finding in found.findings)
    return ExitCode.FINDINGS if failed else ExitCode.FINE


def _merged(options: dict[str, Any], file: JobFile, num_gpus: int | None) -> dict[str, Any]:
    """What was typed wins over what the file says."""
    said = {
        key: file.values.get(key)
        for key in ("gpu", "gpus_per_node", "inter_node", "sequence", "params")
    }
    merged = {**options, "gated": file.values.get("gated", True)}
    for key, value in {**said, "gpus": num_gpus}.items():
        merged[key] = value if merged[key] is None else merged[key]
    if options["model"] is not None or any(options[key] is not None for key in _SHAPE_KEYS):
        return merged
    merged["model"] = file.values.get("model")
    if merged["model"] is None:
        merged |= {key: file.values.get(f"shape.{key}") for key in _SHAPE_KEYS}
    return merged


def _question(options: dict[str, Any]) -> Question:
    from distprof.verbs.plan.question import Question

    model, sequence = _model(options)
    sequence = options["sequence"] or sequence
    return Question(
        model=model,
        cluster=_cluster(options),
        batch=options["batch"] or max(1, _TOKENS // sequence),
        sequence=sequence,
        compute_efficiency=options["compute_efficiency"],
        reserve_ratio=options["reserve"],
        fp32_gradients=options["fp32_gradients"],
    )


def _model(options: dict[str, Any]) -> tuple[Transformer, int]:
    """The shape, and the sequence that goes with it."""
    from distprof.sections.efficiency.models import preset, preset_sequence, shape_from

    shape = {key: options[key] for key in _SHAPE_KEYS}
    given = [key for key in (*_SHAPE_KEYS, "params") if options[key] is not None]
    if options["model"] is None:
        is_gated = options.get("gated", True)
        model = shape_from(shape, params=options["params"], is_gated=is_gated)
        return model, _DEFAULT_SEQUENCE
    if given:
        spelled = given[0].replace("_", "-")
        raise UsageError(f"--model and --{spelled}: a published model has its own shape")
    return preset(options["model"]), preset_sequence(options["model"])


def _cluster(options: dict[str, Any]) -> Cluster:
    from distprof.config import CONFIG_FILE, load_config
    from distprof.hardware import load_sheet
    from distprof.verbs.plan.question import Cluster, inter_node_link

    if options["gpus"] is None:
        raise UsageError("how many GPUs? Add --gpus N")
    config = load_config()
    sheet = load_sheet(config.hardware, config.source or CONFIG_FILE)
    return Cluster(
        gpu=sheet.gpu(options["gpu"] or _GPU),
        num_gpus=options["gpus"],
        per_node=options["gpus_per_node"] or _PER_NODE,
        link=inter_node_link(options["inter_node"] or _LINK, sheet),
        link_efficiency=options["link_efficiency"],
    )
