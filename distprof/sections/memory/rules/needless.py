"""Rules about memory saved without need."""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.efficiency.result import CPU, NO_MODEL, DeviceMemory, EfficiencyResult
from distprof.sections.job.result import NO_RUN_DIRECTORY
from distprof.sections.memory.result import MemoryResult
from distprof.sections.sharding.result import ShardingResult
from distprof.sections.shares import StepTimes
from distprof.terms import Confidence, Severity
from distprof.units import format_bytes, format_ratio


def measured_memory(efficiency: EfficiencyResult, memory: MemoryResult) -> tuple[DeviceMemory, ...]:
    """Ranks with recorded GPU memory; none for bare traces and for ranks on a CPU."""
    if efficiency.device == CPU or NO_RUN_DIRECTORY in memory.unavailable:
        return ()
    if not efficiency.memory:
        why = "; ".join(memory.unavailable) or "the ranks have no GPU memory"
        raise InsufficientEvidenceError(f"GPU memory was not recorded: {why}")
    return efficiency.memory


def sized_memory(efficiency: EfficiencyResult, memory: MemoryResult) -> tuple[DeviceMemory, ...]:
    """Ranks with recorded GPU memory whose GPU's memory size is known."""
    measured = measured_memory(efficiency, memory)
    sized = tuple(r for r in measured if r.capacity_bytes and r.allocated_ratio is not None)
    if measured and not sized:
        raise InsufficientEvidenceError(
            "the memory size of the GPUs is neither in the traces nor on the hardware sheet"
        )
    return sized


@rule(
    "MEM102",
    Severity.INFO,
    costs_time=False,
    reserved_ratio=Limit(0.45, "share of a GPU's memory below which twice as much fits"),
)
def needless_accumulation(
    efficiency: EfficiencyResult, memory: MemoryResult, limits: Limits
) -> Iterator[Draft]:
    """Gradients are accumulated over micro-batches although larger micro-batches would fit.

    ## Why it costs time
    Each micro-batch launches every kernel again on smaller matrices, and sharded weights are
    gathered again for it. Half as many micro-batches of twice the size do the same work with less
    of both.

    ## Evidence needed
    A run directory: forward passes per step from the step log, memory counters of every rank, the
    memory size of its GPU, and a mesh with only data-parallel axes (a pipeline needs its
    micro-batches).

    ## How the cost is computed
    No cost: the gain from larger matrices depends on kernels that did not run.

    ## How to fix
    Double the micro-batch and halve the number of micro-batches: the optimizer's batch and the
    training stay the same.

    ## When it is wrong
    Memory use at most doubles with the micro-batch, so the larger one fits. But sequences of
    different lengths may need the memory in other steps, and layers that normalise over the
    micro-batch train differently.

    ## Sources
    Formula sheet, "Anti-patterns" (accumulation when the batch fits in memory).
    """
    ranks = sized_memory(efficiency, memory)
    if not ranks:
        return
    if efficiency.num_micro_batches is None or efficiency.is_data_parallel_only is None:
        raise InsufficientEvidenceError(
            "the number of micro-batches per step, or the mesh, is unknown"
        )
    if efficiency.num_micro_batches < 2 or not efficiency.is_data_parallel_only:
        return
    fullest = max(ranks, key=lambda rank: rank.reserved_ratio or rank.allocated_ratio or 0.0)
    used = fullest.reserved_ratio or fullest.allocated_ratio or 0.0
    if used >= limits["reserved_ratio"]:
        return
    yield Draft(
        message=(
            f"Gradients are accumulated over {efficiency.num_micro_batches} micro-batches, while"
            f" the fullest GPU reserves {format_ratio(used)} of its"
            f" {format_bytes(fullest.capacity_bytes)}: micro-batches of twice the size fit."
        ),
        fix=(
            "Double the micro-batch and halve the number of micro-batches. The optimizer's batch "
            "stays the same."
        ),
        confidence=Confidence.INFERRED,
        evidence=("efficiency.num_micro_batches", "efficiency.memory"),
    )


_SHARDED = 3
_REPEATED = 1.5


@rule(
    "MEM106",
    Severity.INFO,
    filled_ratio=Limit(0.85, "largest acceptable share of a GPU's memory for the whole state"),
    exposed_ratio=Limit(0.02, "largest acceptable share of exposed gathers in the step"),
)
def needless_sharding(
    efficiency: EfficiencyResult,
    memory: MemoryResult,
    sharding: ShardingResult,
    times: StepTimes,
    limits: Limits,
) -> Iterator[Draft]:
    """Weights are sharded and gathered again in each forward and backward pass although every GPU
    could hold the whole state.

    ## Why it costs time
    Sharded data parallelism gathers the weights twice per step and scatters gradients once. This
    moves one and a half times the bytes of an all-reduce, and computation has to wait for the
    gathers of the forward pass.

    ## Evidence needed
    Traces with weight gathers that repeat within a step; the model (run.json or `[model]` in
    `distprof.toml`) with only data-parallel axes; memory counters of every rank; GPU memory sizes.

    ## How the cost is computed
    Modelled: the exposed transfer of the all-gathers except for one pass over the weights (half of
    it for two passes), because one pass becomes the second half of an all-reduce. Memory is
    modelled too: the present use of the fullest GPU, plus 16 bytes for each parameter that it does
    not hold now.

    ## How to fix
    Use DistributedDataParallel, or ZeRO-1, which shards optimizer memory without more traffic. Or
    keep FSDP and leave weights gathered after the forward pass (`reshard_after_forward=False`).

    ## When it is wrong
    A larger micro-batch may gain more than less traffic. The state is smaller or larger than
    modelled if parameters, gradients and moments do not take 16 bytes in total.

    ## Sources
    Formula sheet, "Volume per training step", "Memory", "Anti-patterns" (FSDP where DDP would fit).
    """
    ranks = sized_memory(efficiency, memory)
    if not ranks:
        return
    if efficiency.zero_stage is None:
        raise InsufficientEvidenceError("it is unknown whether weights are sharded")
    whole = efficiency.unsharded_bytes
    if efficiency.zero_stage != _SHARDED or whole is None:
        return
    size = min(rank.capacity_bytes or 0 for rank in ranks)
    step = times.mean_step()
    repeated = [axis for axis in sharding.axes if (axis.gather_passes or 0.0) >= _REPEATED]
    exposed = sum(axis.gather_transfer_ns for axis in repeated)
    if not repeated or whole > limits["filled_ratio"] * size:
        return
    if step.ratio(exposed) < limits["exposed_ratio"]:
        return
    yield Draft(
        message=(
            f"Weights are gathered {max(axis.gather_passes or 0.0 for axis in repeated):.2g} times "
            f"per step although the whole state would fit: {format_bytes(whole)} of "
            f"{format_bytes(size)} (modelled). Exposed gathers take {step.share(exposed)}."
        ),
        fix="Use DistributedDataParallel, ZeRO-1, or FSDP with reshard_after_forward=False.",
        cost_ns_per_step=round(
            sum(a.gather_transfer_ns * (1 - 1 / (a.gather_passes or 1.0)) for a in repeated)
        ),
        confidence=Confidence.MODELLED,
        evidence=("efficiency.unsharded_bytes", "sharding.axes"),
    )


_LEFT_FREE_RATIO = 0.10
_WORTH_IT_RATIO = 0.1


@rule(
    "MEM107",
    Severity.WARNING,
    computed_ratio=Limit(1.2, "computed FLOP over required FLOP (HFU over MFU)"),
    free_ratio=Limit(0.15, "share of the fullest GPU's memory that may be free"),
)
def needless_recomputation(
    efficiency: EfficiencyResult, memory: MemoryResult, times: StepTimes, limits: Limits
) -> Iterator[Draft]:
    """Activations are recomputed in the backward pass although there is memory to keep them.

    ## Why it costs time
    Full recomputation repeats the forward pass of every block: a quarter of the computation of a
    step, which HFU counts and MFU does not.

    ## Evidence needed
    A configuration with recomputed activations (run.json or `[model]`) and only data-parallel axes,
    memory counters of every rank, GPU memory sizes, and tokens and micro-batches per step.

    ## How the cost is computed
    Modelled: the measured computation of a step times the share of its FLOP that is recomputed,
    times the share of blocks whose activations fit into the free memory (34 bytes per token and
    hidden unit of a GPT block, formula sheet, minus what recomputation keeps).

    ## How to fix
    Recompute only as many blocks as memory requires, or only attention (selective recomputation,
    which fused attention already does). Alternatively, use the free memory for a larger
    micro-batch.

    ## When it is wrong
    Layers that keep more activations than a transformer block make the modelled size too small.
    Long sequences in other steps may need the memory.

    ## Sources
    Formula sheet, "Memory". Korthikanti et al., "Reducing Activation Recomputation in Large
    Transformer Models".
    """
    ranks = sized_memory(efficiency, memory)
    if not ranks:
        return
    if not efficiency.recomputation:
        raise InsufficientEvidenceError(NO_MODEL)
    needed, computed = efficiency.flop_per_step, efficiency.computed_flop_per_step
    saved = efficiency.recomputed_bytes
    if efficiency.recomputation == "none" or not needed or not computed or not saved:
        return
    fullest = max(ranks, key=lambda rank: rank.allocated_ratio or 0.0)
    size, used = fullest.capacity_bytes or 0, fullest.allocated_bytes or 0
    if computed < limits["computed_ratio"] * needed or 1 - used / size < limits["free_ratio"]:
        return
    fits = min(1.0, ((1 - _LEFT_FREE_RATIO) * size - used) / saved)
    if fits < _WORTH_IT_RATIO:
        return
    step = times.mean_step()
    recomputed_ns = step.mean(step.total.computation_ns) * (1 - needed / computed)
    yield Draft(
        message=(
            f"The forward pass of every block is computed twice{_ratios(efficiency)} while"
            f" {format_bytes(size - used)} of {format_bytes(size)} are free:"
            f" {format_ratio(fits)} of the activations would fit (modelled)."
        ),
        fix="Recompute only as many blocks as memory requires, or use a larger micro-batch.",
        cost_ns_per_step=round(recomputed_ns * fits),
        confidence=Confidence.MODELLED,
        evidence=("efficiency.memory", "efficiency.recomputed_bytes", "waterfall.all"),
    )


def _ratios(efficiency: EfficiencyResult) -> str:
    if efficiency.hfu_ratio is None or efficiency.mfu_ratio is None:
        return ""
    return f" (HFU {format_ratio(efficiency.hfu_ratio)}, MFU {format_ratio(efficiency.mfu_ratio)})"
