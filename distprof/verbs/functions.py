"""The verbs as functions: ``distprof.compare``, ``hang``, ``plan`` and ``check``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from distprof.config import Config
    from distprof.documents.saved import Report
    from distprof.verbs.compare import Comparison
    from distprof.verbs.gate.check import CheckResult
    from distprof.verbs.hang import HangReport
    from distprof.verbs.plan import Plan

Source: TypeAlias = "str | os.PathLike[str]"


def compare(first: Report | Source, second: Report | Source) -> Comparison:
    """Compare two runs: what changed, and which parts of the step account for it.

    Args:
        first: The reference run: a report, a saved report, a run directory or traces.
        second: The run to compare with it, in the same forms.

    Raises:
        InputError: If one of them cannot be read.
    """
    from distprof.documents.saved import Report
    from distprof.verbs.compare.show import compare_reports
    from distprof.verbs.summaries import open_report

    mine, theirs = (one if isinstance(one, Report) else open_report(one) for one in (first, second))
    names = [
        one.run.source if isinstance(one, Report) else os.fspath(one) for one in (first, second)
    ]
    return compare_reports(mine, theirs, names=(names[0], names[1]))


def hang(
    *sources: Source, executor: str = "process", progress: Callable[[int, int], None] | None = None
) -> HangReport:
    """Diagnose a hang: the operation in which a job is stuck, and the ranks that others wait for.

    Args:
        sources: Folders of dumps of torch's Flight Recorder, run directories, dumps, logs, or globs
            of logs, all of one job.
        executor: How to read the dumps if there are many: ``process``, ``process:N``, ``serial``.
        progress: Called with the number of dumps read and the total number.

    Raises:
        InputError: If no dump and no text can be read.
    """
    from distprof.verbs.hang.evidence import read_evidence
    from distprof.verbs.hang.measure import diagnose
    from distprof.version import __version__

    evidence = read_evidence(
        *(os.fspath(one) for one in sources), executor=executor, progress=progress
    )
    return diagnose(evidence, version=__version__)


def check(
    runs: Sequence[Source],
    *,
    baseline: Source | None = None,
    against: Sequence[Source] = (),
    config: Config | Source | None = None,
    allow_unlike: bool = False,
) -> CheckResult:
    """Check whether runs are slower than a baseline by more than chance and tolerance.

    Args:
        runs: Repeats of one job: run directories, saved reports, summaries or a sweep's folder.
        baseline: Baseline file; alternatively pass ``against``.
        against: Runs to compare with, instead of a baseline.
        config: Metrics and tolerances; None for the nearest ``distprof.toml``.
        allow_unlike: Allow differences in hardware, job or software.

    Raises:
        InputError: If an input cannot be read, or is not comparable.
        UsageError: If neither or both of ``baseline`` and ``against`` are given.
    """
    from distprof.config import Config, load_config
    from distprof.errors import UsageError
    from distprof.verbs.gate.baseline import read_baseline
    from distprof.verbs.gate.check import judge_runs, sizes_of
    from distprof.verbs.summaries import load_summaries

    if (baseline is None) == (not against):
        raise UsageError("give either baseline= or against=")
    if not isinstance(config, Config):
        config = load_config(None if config is None else os.fspath(config))
    names = [os.fspath(one) for one in ([baseline] if baseline is not None else against)]
    source = ", ".join(names)
    return judge_runs(
        sizes_of(load_summaries(runs)),
        sizes_of(load_summaries(against)) if against else read_baseline(source),
        source=source,
        settings=config.check,
        allow_unlike=allow_unlike,
    )


def plan(
    model: str | None = None,
    *,
    gpus: int,
    gpu: str | None = None,
    gpus_per_node: int | None = None,
    inter_node: str | None = None,
    sequence: int | None = None,
    batch: int | None = None,
    layout: str | None = None,
    params: float | None = None,
    shape: Mapping[str, int] | None = None,
    compute_efficiency: float = 0.6,
    link_efficiency: float = 0.8,
    reserve: float = 0.1,
    fp32_gradients: bool = False,
    most: int = 10,
) -> Plan:
    """Plan layouts of a model on a cluster, and model their costs.

    Args:
        model: A published model, for example ``llama3-70b``; or give ``params`` or ``shape``.
        gpus: GPUs of the job.
        gpu: Kind of GPU; None for h100.
        gpus_per_node: GPUs of one fast (NVLink) domain; None for 8.
        inter_node: Link between nodes, per GPU and direction: ``50GB/s`` or a name; None for ndr.
        sequence: Tokens per sequence; None for the model's, or 4096.
        batch: Sequences per step, over all ranks; None for 4 Mi tokens.
        layout: Judge only this layout, for example ``tp=8,pp=4``.
        params: Number of parameters, for a model without a name.
        shape: ``layers``, ``hidden``, ``heads`` and others of
            :data:`distprof.sections.efficiency.models.SHAPE_KEYS`, for a model without a name.
        compute_efficiency: Share of the dense peak that kernels reach.
        link_efficiency: Share of nominal bandwidth that links reach.
        reserve: Share of GPU memory that stays free.
        fp32_gradients: Whether gradients are accumulated in fp32.
        most: Number of layouts to list.

    Raises:
        UsageError: If arguments contradict each other, or a name is unknown.
    """
    options = {name: value for name, value in locals().items() if name not in ("shape", "most")}
    from distprof.errors import UsageError
    from distprof.sections.efficiency.models import SHAPE_KEYS

    given = dict(shape or {})
    unknown = sorted(set(given) - set(SHAPE_KEYS))
    if unknown:
        raise UsageError(
            f"unknown keys in shape: {', '.join(unknown)}. Choose from {', '.join(SHAPE_KEYS)}"
        )
    return plan_of(options | {name: given.get(name) for name in SHAPE_KEYS}, most=most)


def plan_of(options: Mapping[str, Any], *, most: int) -> Plan:
    """Make a plan from the options of ``distprof plan``, by name."""
    from distprof.verbs.plan.layout import parse_layout, question_of
    from distprof.verbs.plan.search import judge_layout, make_plan

    question = question_of(options)
    if options["layout"] is None:
        return make_plan(question, most=most)
    layout = parse_layout(
        options["layout"], num_gpus=question.cluster.num_gpus, batch=question.batch
    )
    return judge_layout(question, layout)
