"""How much of the hardware a step uses: FLOP relative to the peak, memory relative to its size."""

from __future__ import annotations

from distprof.artefacts.record import Record
from distprof.sections.base import Result

CPU = "cpu"

NO_MODEL = (
    "the model is unknown, and so are its FLOP: name the model under [model] in distprof.toml"
)


class DeviceMemory(Record, frozen=True, kw_only=True):
    """Memory of one rank's device over all steps. None means unknown."""

    rank: int  # Global rank.
    # Pipeline rank; ranks of one stage should hold the same amount. 0 without a pipeline.
    stage: int = 0
    # Size of the device memory, from the trace or the hardware sheet.
    capacity_bytes: int | None = None
    allocated_bytes: int | None = None  # Peak of the memory that tensors hold.
    reserved_bytes: int | None = None  # Peak of the memory that the caching allocator holds.
    allocated_ratio: float | None = None  # ``allocated_bytes`` over the size.
    reserved_ratio: float | None = None  # ``reserved_bytes`` over the size.
    num_retries: int | None = None  # Allocations retried in the second half of the steps.
    retry_ns_per_step: int | None = None  # Time that the retries cost, if it was measured.


class EfficiencyResult(Result, frozen=True, kw_only=True):
    """How much of the hardware a step uses. None means unknown."""

    model: str = ""  # Name of the model as text; empty if the model is unknown.
    model_source: str = ""  # File that describes the model.
    parameters: int | None = None  # N of the model.
    # FLOP of forward and backward per token, without recomputation.
    flop_per_token: float | None = None
    tokens_per_step: int | None = None  # Tokens per step, all ranks together.
    flop_per_step: float | None = None  # FLOP per step that the model needs, all ranks together.
    computed_flop_per_step: float | None = None  # The same, including recomputation.
    # Median step without a profiler, or of traced steps if no log has any.
    step_ns: int | None = None
    num_devices: int | None = None  # Devices of the job, one for each rank.
    tokens_per_s_per_device: float | None = None  # Tokens per second and device in that step.
    flops_per_device: float | None = None  # FLOP per second that one device spends on the model.
    # Name of the device from its driver; ``cpu`` for ranks without an accelerator.
    device: str = ""
    sheet_device: str = ""  # Name of the device on the hardware sheet; empty if it is not listed.
    backend: str = ""  # Backend of the process groups, from the traces.
    precision: str = ""  # Precision that the peak refers to.
    peak_flops: float | None = None  # Dense peak of one device, FLOP per second.
    mfu_ratio: float | None = None  # Model FLOP utilisation, 0 to 1.
    hfu_ratio: float | None = None  # The same, including recomputation.
    # Computed FLOP over the peak during computation alone, from the traced steps: the rest is due
    # to slow kernels, not to time lost elsewhere.
    computing_ratio: float | None = None
    flop_per_byte: float | None = None  # Computed FLOP per byte that a rank sends in collectives.
    # FLOP per byte at which computing at the peak takes as long as sending at the bandwidth that
    # the transfers of this run reach.
    ridge_flop_per_byte: float | None = None
    regime: str = ""  # What bounds a step, from the ratio of the two; empty if one is unknown.
    # Highest share of the peak if communication overlapped perfectly.
    bound_ratio: float | None = None
    recomputation: str = ""  # ``none``, ``selective`` or ``full``; empty if unknown.
    zero_stage: int | None = None  # ZeRO stage, 0 to 3: which part of the state is sharded.
    num_micro_batches: int | None = None  # Forward passes per step.
    # Whether all axes are data-parallel; None without process groups.
    is_data_parallel_only: bool | None = None
    # Modelled peak of the fullest device if it held the whole state.
    unsharded_bytes: int | None = None
    # Modelled size of the activations that recomputation saves per rank.
    recomputed_bytes: int | None = None
    memory: tuple[DeviceMemory, ...] = ()  # Memory of each rank whose counters are known.
    assumptions: tuple[str, ...] = ()  # Assumptions behind the figures, one sentence each.
