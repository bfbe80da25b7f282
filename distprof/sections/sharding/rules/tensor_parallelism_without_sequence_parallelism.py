"""# tensor-parallelism-without-sequence-parallelism

## What it detects
Tensor parallelism adds up whole activations with all-reduces, instead of reduce-scatters after and
all-gathers before each block (sequence parallelism).

## Why it costs time
The bytes are the same. But between the blocks every rank keeps and computes on the whole sequence:
norms, dropout and residuals are done T times over, and their activations take T times the memory,
which micro-batches or less recomputation could use. And an all-reduce cannot begin before a block
has ended, while a gather or scatter can be cut and run beside the multiplication next to it.

## Evidence needed
Collectives along the tensor axis of a mesh (groups called `tp`, `tensor_model_parallel`, …), in a
recording with training steps.

## How the cost is computed
It is not: what memory and overlap are worth depends on what is done with them. The exposed time of
the all-reduces in the message is what overlap can hide at most.

## How to fix
PyTorch: `SequenceParallel` for norms and dropout in the plan of `parallelize_module`, with
`PrepareModuleInput` and row-wise outputs of `Shard(1)`. Megatron: `--sequence-parallel`. Then
overlap: asynchronous tensor parallelism (`enable_async_tensor_parallel`), `--tp-comm-overlap`.

## When it is wrong
Inference on single tokens has no sequence to share. Short sequences make pieces too small to be
worth it, and some models (odd sequence lengths, attention that needs whole sequences in the norms)
do not divide.

## Sources
Formula sheet, "Volume per training step" (TP). Korthikanti et al., Reducing Activation
Recomputation in Large Transformer Models, 2022.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.sharding.result import ShardingResult, TensorTraffic
from distprof.sections.shares import MeanStep, mean_step
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Severity
from distprof.units import format_bytes


@rule(
    code="COM120",
    severity=Severity.INFO,
    since="0.1.0",
    needs=(ShardingResult, WaterfallResult, StepTimeResult),
    limits={
        "min_all_reduces": Limit(4, "all-reduces in a step: a single layer has as many"),
        "max_pair_ratio": Limit(
            0.2, "share of bytes that are gathered or scattered, from which on sequences are shared"
        ),
        "min_step_ratio": Limit(0.05, "share of the step below which exposed time is not named"),
    },
    costs_time=False,
)
def check(
    sharding: ShardingResult, waterfall: WaterfallResult, step_time: StepTimeResult, limits: Limits
) -> Iterator[Draft]:
    """Yield one finding for the tensor axis."""
    tensor = sharding.tensor
    if tensor is None or step_time.median_ns is None:
        return
    step = mean_step(waterfall, step_time)
    if tensor.all_reduces_per_step < limits["min_all_reduces"]:
        return
    if _pair_ratio(tensor) >= limits["max_pair_ratio"]:
        return
    if step.ratio(tensor.all_reduce_exposed_ns_per_step) < limits["min_step_ratio"]:
        return
    yield Draft(
        message=_message(tensor, step),
        fix=(
            "Share the sequence between blocks: SequenceParallel in the plan of "
            "parallelize_module, --sequence-parallel in Megatron; then its gathers and scatters "
            "can overlap with multiplications."
        ),
        evidence=("sharding.tensor", "waterfall.all"),
    )


def _pair_ratio(tensor: TensorTraffic) -> float:
    """Share of gathers and scatters: by bytes where they are known, else by number."""
    reduced, pairs = tensor.all_reduce_bytes_per_step, tensor.pair_bytes_per_step
    if reduced is not None and pairs is not None and reduced + pairs:
        return pairs / (reduced + pairs)
    number = tensor.all_gathers_per_step + tensor.reduce_scatters_per_step
    return number / (number + tensor.all_reduces_per_step)


def _message(tensor: TensorTraffic, step: MeanStep) -> str:
    size = tensor.all_reduce_bytes_per_step
    together = "" if size is None else f" of {format_bytes(size)} together"
    who = "Tensor" if tensor.group_size is None else f"{tensor.group_size} ranks of tensor"
    verb = "adds" if tensor.group_size is None else "add"
    return (
        f"{who} parallelism {verb} up activations by {tensor.all_reduces_per_step:.0f} "
        f"all-reduces{together} in each step, and hardly anything is gathered or scattered: "
        f"{step.share(tensor.all_reduce_exposed_ns_per_step)} is exposed."
    )
