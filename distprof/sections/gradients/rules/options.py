"""Rules about options of data parallelism."""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.gradients.result import GradientsResult
from distprof.sections.gradients.rules.buckets import gradient_groups
from distprof.sections.settings.result import SettingsResult
from distprof.sections.shares import WIDER_TRANSFER, StepTimes
from distprof.sections.time.result import StepTimeResult
from distprof.terms import Confidence, Severity
from distprof.units import format_duration


@rule(
    "COM110",
    Severity.WARNING,
    times_reduced=Limit(
        1.5, "reductions of the same gradients per update from which they count as repeated"
    ),
    min_step_ratio=Limit(
        0.01, "smallest share of the step in unnecessary reductions that is worth reporting"
    ),
)
def accumulation_without_no_sync(
    gradients: GradientsResult, times: StepTimes, limits: Limits
) -> Iterator[Draft]:
    """DistributedDataParallel reduces the gradients of every micro-batch, although the optimizer
    updates the weights only once every few micro-batches.

    ## Why it costs time
    Adding up the gradients of micro-batches on each rank is free. Only their sum has to be reduced,
    once before the update. With M micro-batches the network carries M times the necessary bytes.

    ## Evidence needed
    Traces in which torch marks each forward (`DistributedDataParallel.forward`) and each update
    (`Optimizer.step`), and the sizes of collectives. Reductions count as repeated if several
    forwards before one update are each followed by the same number of buckets and bytes. With
    matched collectives, the cost excludes waiting for late ranks. Without them, the finding is
    marked *inferred*.

    ## How the cost is computed
    Exposed transfer of all reductions but the last before each update, mean over ranks and steps.
    The part that overlaps with backward costs nothing. The time is part of what `low-overlap` and
    `exposed-communication` count.

    ## How to fix
    Run forward and backward of all micro-batches but the last inside `with model.no_sync():`
    (Hugging Face Accelerate: `accelerator.accumulate(model)`; Lightning does it automatically). The
    forward has to be inside too. `static_graph=True` needs one step without `no_sync` first.

    ## When it is wrong
    Memory may not suffice for complete gradients in addition to their buckets (`no_sync` keeps
    both). Two backwards of different losses through the same module before one update, as in
    adversarial training, look the same, and `no_sync` fits them as well.

    ## Sources
    Formula sheet, "Volume per training step" (DDP) and "Anti-patterns" (accumulation without
    `no_sync`). PyTorch documentation of `DistributedDataParallel.no_sync`.
    """
    for group in gradient_groups(gradients):
        if group.times_reduced is None:
            raise InsufficientEvidenceError("the trace does not mark the updates of the optimizer")
        step = times.mean_step()
        cost = group.redundant_ns_per_step
        if group.times_reduced < limits["times_reduced"]:
            continue
        if step.ratio(cost) < limits["min_step_ratio"]:
            continue
        yield Draft(
            message=(
                f"DDP reduces the gradients {group.times_reduced:.3g} times before each update "
                f"({group.micro_batches:.3g} micro-batches): {group.exposed_label} of unnecessary "
                f"reductions takes {step.share(cost)}."
            ),
            fix="Run forward and backward of all micro-batches but the last under model.no_sync().",
            cost_ns_per_step=cost,
            confidence=group.confidence,
            ranks=group.ranks,
            evidence=("gradients.groups", "waterfall.all"),
            without="repeated gradients",
            explains=WIDER_TRANSFER,
        )


_WIDE = {"float32", "float64"}


@rule(
    "COM111",
    Severity.WARNING,
    min_step_ratio=Limit(0.05, "share of the step that 16 bits would save"),
    min_bucket_bytes=Limit(1_000_000, "mean bucket below which latency dominates"),
)
def full_precision_gradients(
    gradients: GradientsResult, times: StepTimes, limits: Limits
) -> Iterator[Draft]:
    """DistributedDataParallel reduces gradients in 32 bits, and their transfer is exposed.

    ## Why it costs time
    Twice the bytes take twice the time. Training does not need more than 16 bits on the wire if the
    optimizer of each rank works in 32.

    ## Evidence needed
    Element types and sizes of collectives (argument records of NCCL, or those of the Flight
    Recorder for gloo), and torch's marks of DDP in the trace. The finding is a warning if the
    groups span nodes. Within a node, or if the nodes are unknown, it is informational.

    ## How the cost is computed
    Half of the exposed transfer of one reduction per update: mean over ranks and steps. The cost is
    modelled, because it assumes that transfer is proportional to bytes. It excludes unnecessary
    reductions (`accumulation-without-no-sync`). The time is part of what `low-overlap` and
    `exposed-communication` count.

    ## How to fix
    Register a communication hook: `model.register_comm_hook(None,
    default_hooks.bf16_compress_hook)` halves the bytes (on gloo: `fp16_compress_hook`).
    `powerSGD_hook` sends far less, at the price of an approximation. Compare the loss over a few
    hundred steps.

    ## When it is wrong
    If buckets are bound by latency, half the bytes take more than half the time; the rule ignores
    buckets below 1 MB for that reason. Some models need gradients in 32 bits (sums over thousands
    of ranks, losses with rare large values).

    ## Sources
    Formula sheet, "Volume per training step" (DDP) and "Anti-patterns" (full-precision gradient
    traffic on a slow link). PyTorch documentation, "DDP Communication Hooks".
    """
    for group in gradient_groups(gradients):
        step = times.mean_step()
        exposed = group.exposed_once_ns
        if not group.dtypes or not set(group.dtypes) <= _WIDE:
            continue
        if group.bytes < limits["min_bucket_bytes"] * group.num_buckets:
            continue
        if step.ratio(exposed // 2) < limits["min_step_ratio"]:
            continue
        yield Draft(
            message=(
                f"Each update reduces {group.label}: their {group.exposed_label} takes "
                f"{step.share(exposed)}. With 16 bits it would take half."
            ),
            fix=(
                "Compress gradients on the wire: register_comm_hook with bf16_compress_hook (gloo: "
                "fp16_compress_hook), or powerSGD_hook on a slow network. Watch the loss."
            ),
            cost_ns_per_step=exposed // 2,
            confidence=Confidence.MODELLED,
            ranks=group.ranks,
            evidence=("gradients.groups", "waterfall.all"),
            severity=None if (group.num_nodes or 1) > 1 else Severity.INFO,
            explains=WIDER_TRANSFER,
        )


@rule(
    "COM115",
    Severity.INFO,
    min_step_ratio=Limit(0.001, "smallest share of the step that is worth reporting"),
)
def unused_parameter_search(
    gradients: GradientsResult, times: StepTimes, limits: Limits
) -> Iterator[Draft]:
    """DistributedDataParallel searches the graph after each forward for parameters that were not
    used (`find_unused_parameters=True`).

    ## Why it costs time
    The search walks the whole graph on the training thread before backward can begin. The ranks
    then exchange the result in one more all-reduce. The search also prevents DDP from ordering
    buckets as gradients become ready, so the buckets overlap less.

    ## Evidence needed
    A trace with CPU events: torch names the search
    (`torch.distributed.ddp.reducer::search_unused_parameters`).

    ## How the cost is computed
    Time of the search during which the GPU is idle (on CPUs: all of it), plus the exposed time of
    the all-reduce: mean over ranks and steps. The cost of a poor order of buckets is not included.

    ## How to fix
    Leave `find_unused_parameters` at `False` if every forward uses every parameter; torch warns
    once per run if the search found none unused. If some parameters are never used, freeze them
    (`requires_grad_(False)`). If the same parameters always stay unused, set `static_graph=True`,
    which finds them in the first step.

    ## When it is wrong
    With routed branches the used parameters differ from step to step. DDP then needs the search,
    and this is its price.

    ## Sources
    Formula sheet, "Anti-patterns" (`find_unused_parameters` without need). PyTorch documentation of
    `DistributedDataParallel`; `torch/csrc/distributed/c10d/reducer.cpp`.
    """
    if not gradients.search_ns_per_step:
        return
    step = times.mean_step()
    cost = gradients.search_exposed_ns_per_step
    if step.ratio(cost) < limits["min_step_ratio"]:
        return
    searched = format_duration(gradients.search_ns_per_step)
    yield Draft(
        message=(
            f"DDP searches for unused parameters for {searched} of each {step.word}; "
            f"{step.share(cost)} is lost to the search and to sharing its result with the other "
            "ranks."
        ),
        fix=(
            "Set find_unused_parameters=False if every forward uses every parameter. Otherwise "
            "freeze the parameters that are never used, or set static_graph=True."
        ),
        cost_ns_per_step=cost,
        evidence=("gradients.search_ns_per_step", "gradients.search_exposed_ns_per_step"),
    )


@rule(
    "COM123",
    Severity.INFO,
    min_looks=Limit(3.0, "iterations that must have been inspected on each rank"),
    warning_ratio=Limit(0.01, "share of the step from which the finding is a warning"),
)
def needless_unused_parameter_search(
    settings: SettingsResult,
    gradients: GradientsResult,
    step_time: StepTimeResult,
    limits: Limits,
) -> Iterator[Draft]:
    """DDP searches for unused parameters in each step and never finds any.

    ## Why it costs time
    With `find_unused_parameters=True` DDP walks the whole autograd graph after each forward, and
    the ranks exchange a bitmap of the parameters that they used. The CPU does nothing else during
    this time.

    ## Evidence needed
    A run directory with `settings.json`: the parameters that torch's logger recorded as unused in
    the first ten iterations and every hundredth one after them, on every rank.

    ## How the cost is computed
    Exposed time of DDP's search and of the bitmap's all-reduce in the traces, mean over ranks and
    steps. None if the traces do not show it. `unused-parameter-search` counts the same time without
    knowing whether the search is needed, so this finding replaces it.

    ## How to fix
    Leave `find_unused_parameters` at False. If iterations always leave the same parameters unused,
    set `static_graph=True`, which searches only once.

    ## When it is wrong
    Some parameters may be unused only in rare iterations. Without the search, DDP stops with an
    error in the first such iteration.

    ## Sources
    Formula sheet, "Anti-patterns" (`find_unused_parameters` without need). PyTorch documentation of
    `DistributedDataParallel`; `unused_parameter_size` in `torch/csrc/distributed/c10d/logger.cpp`.
    """
    searching = [one for one in settings.ddp if one.find_unused_parameters and not one.static_graph]
    if not searching or any(
        (one.max_unused_bytes != 0 or one.num_looks < limits["min_looks"]) for one in searching
    ):
        return
    cost = gradients.search_exposed_ns_per_step or None
    step_ns = step_time.median_ns or 0
    is_costly = cost is not None and cost >= limits["warning_ratio"] * step_ns > 0
    costs = f", which costs {format_duration(cost)}" if cost else ""
    num_looks = min(one.num_looks for one in searching)
    yield Draft(
        message=(
            f"DDP searches for unused parameters in each step{costs}, but found none in the "
            f"{num_looks:,} iterations inspected on each rank."
        ),
        fix=(
            "Leave find_unused_parameters at False. If the same parameters always stay unused, set "
            "static_graph=True."
        ),
        cost_ns_per_step=cost,
        ranks=tuple(sorted({rank for one in searching for rank in one.ranks})),
        evidence=("settings.ddp", "gradients.search_exposed_ns_per_step"),
        severity=Severity.WARNING if is_costly else None,
        explains=("COM115",),
    )
