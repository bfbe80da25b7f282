"""Rules about units of sharding."""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.overlap.result import OverlapResult
from distprof.sections.sharding.result import ShardedAxis, ShardingResult
from distprof.sections.shares import WIDER_TRANSFER, MeanStep, StepTimes, alone_ns
from distprof.terms import Confidence, Severity
from distprof.units import format_bytes, format_ratio


@rule(
    "COM117",
    Severity.WARNING,
    max_ahead_ratio=Limit(
        0.25, "share of overlappable gathers from which parameters count as prefetched"
    ),
    min_unit_bytes=Limit(100_000, "median size of a gather in bytes below which latency dominates"),
    min_step_ratio=Limit(0.03, "smallest share of the step that is worth reporting"),
)
def no_parameter_prefetch(
    sharding: ShardingResult, overlap: OverlapResult, times: StepTimes, limits: Limits
) -> Iterator[Draft]:
    """Sharded parameters are gathered only after the previous computation has ended, so the GPU
    waits for each unit. The rule also reports a model that is a single unit, which leaves nothing
    to compute during the gather.

    ## Why it costs time
    A gather that begins during the computation of the previous unit costs nothing unless it takes
    longer than that computation. A gather that begins afterwards adds its full length to the step,
    in forward and again in backward.

    ## Evidence needed
    All-gathers and reduce-scatters of a sharding axis (`dp_shard`, or any group that gathers
    parameters unit by unit), with the computation of the same rank.

    ## How the cost is computed
    The smaller of two means per rank and step: exposed transfer of the gathers, and computation
    that runs without concurrent communication. If waiting for late members is unknown, all exposed
    time counts as transfer and the finding is marked *inferred*. The time is part of what
    `exposed-communication` and `low-overlap` report.

    ## How to fix
    FSDP2 (`fully_shard`): wrap each transformer block, keep the implicit prefetch (no
    `torch.cuda.synchronize` or `.item()` in forward), and call `set_modules_to_forward_prefetch`
    and `set_modules_to_backward_prefetch` if the CPU is slow. FSDP1: `forward_prefetch=True`,
    `backward_prefetch=BackwardPrefetch.BACKWARD_PRE`. DeepSpeed: `stage3_prefetch_bucket_size`,
    `overlap_comm`. Megatron: `--overlap-param-gather`. Prefetch needs memory for one more unit.

    ## When it is wrong
    The computation of a unit may be too short to overlap with a prefetched gather, or there may be
    no memory for a second unit. `tiny-collectives` covers units of a few kilobytes.

    ## Sources
    Formula sheet, "Anti-patterns" (FSDP without prefetch) and "Volume per training step" (FSDP).
    PyTorch documentation of `fully_shard`.
    """
    if not sharding.axes:
        return
    step = times.mean_step()
    alone = alone_ns(step, overlap)
    for axis in sharding.axes:
        if axis.ahead_ratio is None:
            continue
        # share of gathers that can overlap: no computation precedes the root and the first block
        units = axis.num_units or 0
        if axis.ahead_ratio >= limits["max_ahead_ratio"] * (
            (units - 2) / units if units > 2 else 1.0
        ):
            continue
        if (axis.gather_bytes_median or limits["min_unit_bytes"]) < limits["min_unit_bytes"]:
            continue
        cost = min(axis.gather_transfer_ns, alone)
        if step.ratio(cost) < limits["min_step_ratio"]:
            continue
        yield Draft(
            message=_message(axis, step, cost),
            fix=(
                "Gather the next unit while this one computes: one unit per transformer block, "
                "set_modules_to_forward_prefetch and set_modules_to_backward_prefetch (FSDP2), "
                "forward_prefetch=True (FSDP1)."
            ),
            cost_ns_per_step=cost,
            confidence=axis.confidence,
            evidence=("sharding.axes", "overlap.ranks", "waterfall.all"),
            without=f"collectives all_gather {axis.axis}",
            explains=WIDER_TRANSFER,
        )


def _message(axis: ShardedAxis, step: MeanStep, cost_ns: int) -> str:
    size = "" if axis.gather_bytes_median is None else f" {format_bytes(axis.gather_bytes_median)}"
    times = f"{axis.gathers_per_step:.0f} times{size}"
    if axis.num_units == 1:
        return (
            f"All parameters sharded over {axis.label} are one unit, gathered {times}: "
            f"{step.share(cost_ns)} is spent gathering with nothing to compute."
        )
    return (
        f"Only {format_ratio(axis.ahead_ratio)} of the parameters sharded over {axis.label} "
        f"are gathered during computation: {step.share(cost_ns)} is exposed gathering, {times}."
    )


@rule(
    "COM118",
    Severity.WARNING,
    unit_bytes=Limit(4_000_000, "gather size from which a unit is large enough, in bytes"),
    min_units=Limit(16, "smallest number of units per pass that is worth merging"),
    min_step_ratio=Limit(0.02, "smallest share of the step that is worth reporting"),
)
def small_sharding_units(
    sharding: ShardingResult, times: StepTimes, limits: Limits
) -> Iterator[Draft]:
    """Parameters are sharded in many small units, with gathers of a few megabytes or less in
    sequence.

    ## Why it costs time
    Each gather of any size pays a start-up cost (α times the steps of its ring), and small messages
    do not reach the bandwidth of the network. One unit per transformer block moves the same bytes
    in far fewer operations.

    ## Evidence needed
    All-gathers and reduce-scatters of a sharding axis with their sizes. A fabric profile
    (`--fabric`) provides the start-up cost.

    ## How the cost is computed
    Modelled: the share of gathers that units of the limit's size would avoid (1 − total bytes /
    (number · limit)), times their exposed transfer. With a fabric profile the cost is at most the
    start-up cost of the avoided gathers, from the fitted α. If waiting for late members is unknown,
    it counts as transfer, so the cost is an upper bound.

    ## How to fix
    Apply `fully_shard` to whole transformer blocks instead of their layers (FSDP1: an
    `auto_wrap_policy` on the block's class; `size_based_auto_wrap_policy` with a larger
    `min_num_params`). DeepSpeed: a larger `stage3_prefetch_bucket_size` and
    `stage3_param_persistence_threshold`.

    ## When it is wrong
    A small model has few small blocks, and merging them leaves nothing to overlap with. The rule
    therefore stays silent below `min_units`.

    ## Sources
    Formula sheet, "Collectives" (α and β) and "Volume per training step" (FSDP). PyTorch
    documentation of `fully_shard`.
    """
    if not sharding.axes:
        return
    step = times.mean_step()
    if all(axis.gather_bytes_median is None for axis in sharding.axes):
        raise InsufficientEvidenceError("the recording has no message sizes")
    for axis in sharding.axes:
        size, units = axis.gather_bytes_median, axis.num_units
        if size is None or units is None:
            continue
        if size >= limits["unit_bytes"] or units < limits["min_units"]:
            continue
        cost = _cost(axis, limits["unit_bytes"])
        if step.ratio(cost) < limits["min_step_ratio"]:
            continue
        yield Draft(
            message=(
                f"A pass over the parameters sharded over {axis.label} takes {units} gathers "
                "of "
                f"{format_bytes(size)}. Units of {format_bytes(limits['unit_bytes'])} would "
                f"recover {step.share(cost)}."
            ),
            fix=(
                "Shard whole transformer blocks: fully_shard(block) for each, or an "
                "auto_wrap_policy on the block's class (FSDP1)."
            ),
            cost_ns_per_step=cost,
            confidence=Confidence.MODELLED,
            evidence=("sharding.axes", "waterfall.all"),
            without=f"collectives all_gather {axis.axis}",
        )


def _cost(axis: ShardedAxis, unit_bytes: float) -> int:
    """Time of the gathers that larger units would avoid."""
    needed = max((axis.gather_bytes_per_step or 0) / unit_bytes, 1.0)
    gone = max(axis.gathers_per_step - needed, 0.0)
    cost = axis.gather_transfer_ns * gone / max(axis.gathers_per_step, 1.0)
    if axis.latency_ns_per_gather is not None:
        cost = min(cost, gone * axis.latency_ns_per_gather)
    return int(cost)


_GATHERS = 2  # Gather passes of one micro-batch: forward and backward


@rule(
    "COM119",
    Severity.INFO,
    min_gather_passes=Limit(3.5, "gather passes per step from which gathers count as repeated"),
    min_scatter_passes=Limit(2, "reduce-scatter passes per step from which they count as repeated"),
    min_step_ratio=Limit(0.03, "smallest share of the step that is worth reporting"),
)
def gathers_repeated_while_accumulating(
    sharding: ShardingResult, times: StepTimes, limits: Limits
) -> Iterator[Draft]:
    """Gradients are accumulated over micro-batches, and each micro-batch gathers the sharded
    parameters again or reduces its own gradients, although parameters change only once per step.

    ## Why it costs time
    With M micro-batches the sharding axis moves M times the necessary traffic: 3M · N bytes instead
    of 3 · N (formula sheet). The exposed part of it adds to the step.

    ## Evidence needed
    All-gathers and reduce-scatters of a sharding axis, in order: how many passes a step makes
    follows from that, without knowing the program. Element types and sizes for the passes of
    gathers.

    ## How the cost is computed
    Exposed transfer of reduce-scatters times 1 − 1/passes, plus that of gathers times 1 − 2/passes
    (forward and backward each gather once even without accumulation), mean per rank and step. This
    is an upper bound. If waiting for late members is unknown, all exposed time counts as transfer.

    ## How to fix
    All fixes cost memory. Reduce gradients only in the last micro-batch:
    `set_requires_gradient_sync(False)` before the others (FSDP2) or `no_sync()` (FSDP1). Each rank
    then keeps unsharded gradients. Gather once per step: `set_reshard_after_forward(False)` and
    `set_reshard_after_backward(False)` in all but the last micro-batch. Each rank then also keeps
    unsharded parameters. If memory allows, use a larger micro-batch instead of accumulation, which
    costs no extra traffic.

    ## When it is wrong
    There may be no memory for unsharded gradients, unsharded parameters or a larger micro-batch.
    The traffic is then the price of the model's size, so this finding is not a warning. Pipelines
    always run on micro-batches; shard less inside a stage there (ZeRO-1 or ZeRO-2).

    ## Sources
    Formula sheet, "Volume per training step" (FSDP) and "Anti-patterns" (accumulation). PyTorch
    documentation of `fully_shard`.
    """
    if not sharding.axes:
        return
    step = times.mean_step()
    for axis in sharding.axes:
        gathers, scatters = axis.gather_passes or 0.0, axis.scatter_passes or 0
        repeats = scatters >= limits["min_scatter_passes"]
        if gathers < limits["min_gather_passes"] and not repeats:
            continue
        of_gathers = axis.gather_transfer_ns * (1 - min(_GATHERS / gathers, 1)) if gathers else 0.0
        of_scatters = axis.scatter_transfer_ns * (1 - 1 / scatters) if scatters else 0.0
        cost = int(of_gathers + of_scatters)
        if step.ratio(cost) < limits["min_step_ratio"]:
            continue
        yield Draft(
            message=(
                f"A step of {axis.label} {_what(gathers, scatters)}: the exposed transfer "
                f"beyond that of one micro-batch takes {step.share(cost)}."
            ),
            fix=(
                "If memory allows, reduce gradients in the last micro-batch only "
                "(set_requires_gradient_sync, no_sync) and keep parameters gathered until then "
                "(set_reshard_after_forward, set_reshard_after_backward), or use a larger "
                "micro-batch."
            ),
            cost_ns_per_step=cost,
            confidence=axis.confidence,
            evidence=("sharding.axes", "waterfall.all"),
        )


def _what(gathers: float, scatters: int) -> str:
    parts = []
    if gathers > _GATHERS:
        parts.append(f"gathers every parameter {gathers:.0f} times")
    if scatters > 1:
        parts.append(f"reduces every gradient {scatters} times")
    return " and ".join(parts)
