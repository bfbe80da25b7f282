"""How much of the hardware a step uses: FLOP relative to the peak, memory relative to its size.

MFU counts the FLOP that the model needs, and HFU also recomputation. Both are relative to the dense
peak of all devices (formula sheet, "Computation and communication").
"""

from __future__ import annotations

from distprof.artefacts.record import Record
from distprof.sections.base import Result

CPU = "cpu"

NO_MODEL = (
    "the model is unknown, and so are its FLOP: name the model under [model] in distprof.toml"
)


class DeviceMemory(Record, frozen=True, kw_only=True):
    """Memory of one rank's device over all steps. None means unknown.

    Args:
        rank: Global rank.
        stage: Pipeline rank; ranks of one stage should hold the same amount. 0 without a pipeline.
        capacity_bytes: Size of the device memory, from the trace or the hardware sheet.
        allocated_bytes: Peak of the memory that tensors hold.
        reserved_bytes: Peak of the memory that the caching allocator holds.
        allocated_ratio: ``allocated_bytes`` over the size.
        reserved_ratio: ``reserved_bytes`` over the size.
        num_retries: Allocations retried in the second half of the steps.
        retry_ns_per_step: Time that the retries cost, if it was measured.
    """

    rank: int
    stage: int = 0
    capacity_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    allocated_ratio: float | None = None
    reserved_ratio: float | None = None
    num_retries: int | None = None
    retry_ns_per_step: int | None = None


class EfficiencyResult(Result, frozen=True, kw_only=True):
    """How much of the hardware a step uses. None means unknown.

    Args:
        model: Name of the model as text; empty if the model is unknown.
        model_source: File that describes the model.
        parameters: N of the model.
        flop_per_token: FLOP of forward and backward per token, without recomputation.
        tokens_per_step: Tokens per step, all ranks together.
        flop_per_step: FLOP per step that the model needs, all ranks together.
        computed_flop_per_step: The same, including recomputation.
        step_ns: Median step without a profiler, or of traced steps if no log has any.
        num_devices: Devices of the job, one for each rank.
        tokens_per_s_per_device: Tokens per second and device in that step.
        flops_per_device: FLOP per second that one device spends on the model.
        device: Name of the device from its driver; ``cpu`` for ranks without an accelerator.
        sheet_device: Name of the device on the hardware sheet; empty if it is not listed.
        backend: Backend of the process groups, from the traces.
        precision: Precision that the peak refers to.
        peak_flops: Dense peak of one device, FLOP per second.
        mfu_ratio: Model FLOP utilisation, 0 to 1.
        hfu_ratio: The same, including recomputation.
        computing_ratio: Computed FLOP over the peak during computation alone, from the traced
            steps: the rest is due to slow kernels, not to time lost elsewhere.
        flop_per_byte: Computed FLOP per byte that a rank sends in collectives.
        ridge_flop_per_byte: FLOP per byte at which computing at the peak takes as long as sending
            at the bandwidth that the transfers of this run reach.
        regime: What bounds a step, from the ratio of the two; empty if one is unknown.
        bound_ratio: Highest share of the peak if communication overlapped perfectly.
        recomputation: ``none``, ``selective`` or ``full``; empty if unknown.
        zero_stage: ZeRO stage, 0 to 3: which part of the state is sharded.
        num_micro_batches: Forward passes per step.
        is_data_parallel_only: Whether all axes are data-parallel; None without process groups.
        unsharded_bytes: Modelled peak of the fullest device if it held the whole state.
        recomputed_bytes: Modelled size of the activations that recomputation saves per rank.
        memory: Memory of each rank whose counters are known.
        assumptions: Assumptions behind the figures, one sentence each.
    """

    model: str = ""
    model_source: str = ""
    parameters: int | None = None
    flop_per_token: float | None = None
    tokens_per_step: int | None = None
    flop_per_step: float | None = None
    computed_flop_per_step: float | None = None
    step_ns: int | None = None
    num_devices: int | None = None
    tokens_per_s_per_device: float | None = None
    flops_per_device: float | None = None
    device: str = ""
    sheet_device: str = ""
    backend: str = ""
    precision: str = ""
    peak_flops: float | None = None
    mfu_ratio: float | None = None
    hfu_ratio: float | None = None
    computing_ratio: float | None = None
    flop_per_byte: float | None = None
    ridge_flop_per_byte: float | None = None
    regime: str = ""
    bound_ratio: float | None = None
    recomputation: str = ""
    zero_stage: int | None = None
    num_micro_batches: int | None = None
    is_data_parallel_only: bool | None = None
    unsharded_bytes: int | None = None
    recomputed_bytes: int | None = None
    memory: tuple[DeviceMemory, ...] = ()
    assumptions: tuple[str, ...] = ()
