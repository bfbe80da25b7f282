"""# tensor-parallelism-without-sequence-parallelism

## What it detects
Tensor parallelism sums whole activations with all-reduces instead of reduce-scatters after and
all-gathers before each block (sequence parallelism).

## Why it costs time
The bytes are the same, but between blocks every rank keeps and processes the whole sequence. Norms,
dropout and residuals are computed T times, and their activations take T times the memory, which
could serve larger micro-batches or less recomputation. An all-reduce cannot begin before a block
has ended, while a gather or scatter can be split and overlap with the adjacent matrix
multiplication.

## Evidence needed
Collectives along the tensor axis of a mesh (groups named `tp`, `tensor_model_parallel`, …) in a
recording with training steps.

## How the cost is computed
No cost: the gain depends on how the memory and the overlap are used. Overlap can recover at most
the exposed time of the all-reduces in the message.

## How to fix
PyTorch: use `SequenceParallel` for norms and dropout in the plan of `parallelize_module`, with
`PrepareModuleInput` and row-wise outputs of `Shard(1)`. Megatron: `--sequence-parallel`. Then
enable overlap: asynchronous tensor parallelism (`enable_async_tensor_parallel`),
`--tp-comm-overlap`.

## When it is wrong
Inference on single tokens has no sequence to shard. Short sequences make shards too small to be
useful, and some models (odd sequence lengths, attention that needs whole sequences in the norms)
cannot be sharded this way.

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
    limits={
        "min_all_reduces": Limit(
            4, "smallest number of all-reduces per step, that of a single layer"
        ),
        "max_pair_ratio": Limit(
            0.2, "share of gathered or scattered bytes from which the sequence counts as sharded"
        ),
        "min_step_ratio": Limit(0.05, "smallest exposed share of the step that is worth reporting"),
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
            "Shard the sequence between blocks: SequenceParallel in the plan of "
            "parallelize_module, or --sequence-parallel in Megatron. Its gathers and scatters can "
            "then overlap with matrix multiplications."
        ),
        evidence=("sharding.tensor", "waterfall.all"),
    )


def _pair_ratio(tensor: TensorTraffic) -> float:
    """Share of gathers and scatters, in bytes if known, otherwise by count."""
    reduced, pairs = tensor.all_reduce_bytes_per_step, tensor.pair_bytes_per_step
    if reduced is not None and pairs is not None and reduced + pairs:
        return pairs / (reduced + pairs)
    number = tensor.all_gathers_per_step + tensor.reduce_scatters_per_step
    return number / (number + tensor.all_reduces_per_step)


def _message(tensor: TensorTraffic, step: MeanStep) -> str:
    size = tensor.all_reduce_bytes_per_step
    together = "" if size is None else f" of {format_bytes(size)} in total"
    who = "Tensor" if tensor.group_size is None else f"{tensor.group_size} ranks of tensor"
    verb = "sums" if tensor.group_size is None else "sum"
    return (
        f"{who} parallelism {verb} activations with {tensor.all_reduces_per_step:.0f} "
        f"all-reduces{together} per step and gathers or scatters almost nothing: "
        f"{step.share(tensor.all_reduce_exposed_ns_per_step)} is exposed."
    )
