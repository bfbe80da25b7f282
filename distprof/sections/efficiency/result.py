"""How much of the hardware a step uses: FLOP against the peak, memory against its size.

MFU counts what the model needs, HFU also what is recomputed; both are held against the dense peak
of all devices (formula sheet, "Computation and communication"). Nothing is counted in the kernels:
the model's shape says what a token needs, so a job that computes more than it must has a low MFU.
"""

from __future__ import annotations

from distprof.schema import Record
from distprof.sections.base import Result

__all__ = ["DeviceMemory", "EfficiencyResult"]


class DeviceMemory(Record, frozen=True, kw_only=True):
    """One rank's device, over all steps. None is not known.

    Args:
        rank: Global rank.
        stage: Pipeline rank, whose peers are to hold as much; 0 without a pipeline.
        capacity_bytes: Size of the device: as the trace says, else as the hardware sheet does.
        allocated_bytes: Highest held by tensors.
        reserved_bytes: Highest held by the caching allocator.
        allocated_ratio: Held by tensors over the size.
        reserved_ratio: Held by the allocator over the size.
        num_retries: Allocations retried in the second half of the steps.
        retry_ns_per_step: What they cost, where it was measured.
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
    """How much of the hardware a step uses. None is not known.

    Args:
        model: For people; empty where nothing says which model it is.
        model_source: Who says so.
        parameters: N of the model.
        flop_per_token: Forward and backward, each product once.
        tokens_per_step: All ranks together.
        flop_per_step: Needed by the model, all ranks together.
        computed_flop_per_step: The same with what is recomputed.
        step_ns: Median step without a profiler, or of traced steps where no log has others.
        num_devices: Devices of the job, one for each rank.
        tokens_per_s_per_device: Tokens over that step.
        flops_per_device: FLOP per second that the model gets, of one device.
        device: As its driver calls it; ``cpu`` for ranks without an accelerator.
        sheet_device: What it is on the hardware sheet; empty where it is not there.
        backend: Of the process groups, as the traces say.
        precision: Whose peak is meant.
        peak_flops: Dense, of one device, FLOP per second.
        mfu_ratio: Model FLOP utilisation, 0 to 1.
        hfu_ratio: The same with what is recomputed.
        computing_ratio: Computed FLOP over the peak during computation alone, by the traced steps:
            what remains is kernels that are slow, not time that is lost elsewhere.
        flop_per_byte: Computed FLOP per byte that a rank sends in collectives.
        ridge_flop_per_byte: At which computing at the peak takes as long as sending, at the
            bandwidth that the run's own transfers reach.
        regime: What bounds a step, by their ratio; empty where one is not known.
        bound_ratio: Highest share of the peak if communication hid perfectly.
        recomputation: ``none``, ``selective`` or ``full``; empty where not known.
        zero_stage: What of the state is sharded, 0 to 3.
        num_micro_batches: Forward passes of a step.
        is_data_parallel_only: Whether all axes are data-parallel; None without process groups.
        unsharded_bytes: Modelled peak of the fullest device if it held the whole state.
        recomputed_bytes: Modelled size of the activations that recomputation saves, of a rank.
        memory: Of each rank whose counters are known.
        assumptions: What the figures rest on, one sentence each.
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
