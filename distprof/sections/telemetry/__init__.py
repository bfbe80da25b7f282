"""Sensors of each rank's GPU: clocks, throttling, power, temperature, links, errors."""

from __future__ import annotations

from distprof.artefacts.record import Record
from distprof.sections.base import Result


class WindowSensors(Record, frozen=True, kw_only=True):
    """One GPU between the start of the first analysed step and the end of the last.

    Null means that the GPU does not report the value, never 0.
    """

    num_samples: int  # Number of samples.
    # Whether no sample is inside, so the last one before and the first one after are used.
    is_bracketed: bool
    sm_clock_mhz_median: int | None  # Median clock of the streaming multiprocessors.
    sm_clock_mhz_min: int | None  # Lowest clock.
    throttled_ratio: float | None  # Share of samples in which the GPU was throttled.
    throttle_reasons: dict[str, float]  # Throttle reason to its share of samples.
    # Energy over time in watts, or the mean of the samples if the energy is unknown.
    power_w_mean: float | None
    temperature_c_max: int | None  # Highest temperature, degrees Celsius.
    gpu_utilization_ratio: float | None  # Mean share of time with a kernel running.
    # Energy of all analysed steps, from the GPU's counter, interpolated, otherwise from power,
    # interpolated and integrated. Null if samples do not cover the steps.
    energy_j: float | None


class RankTelemetry(Record, frozen=True, kw_only=True):
    """One rank's GPU over the whole run.

    Null means that the GPU does not report the value, never 0.
    """

    rank: int  # Global rank.
    num_samples: int  # Number of samples.
    sm_clock_mhz_median: int | None  # Median clock of the streaming multiprocessors.
    sm_clock_mhz_min: int | None  # Lowest clock.
    throttled_ratio: float | None  # Share of samples in which the GPU was throttled.
    throttle_reasons: dict[str, float]  # Throttle reason to its share of samples.
    power_w_mean: float | None  # Mean power, watts.
    power_w_max: float | None  # Highest power, watts.
    temperature_c_max: int | None  # Highest temperature, degrees Celsius.
    # Mean share of time with a kernel running, as the driver counts it.
    gpu_utilization_ratio: float | None
    memory_utilization_ratio: float | None  # Mean share of time with memory busy.
    memory_used_bytes: int | None  # Largest memory use of all processes on the GPU.
    pcie_tx_bytes_per_s: float | None  # Mean rate sent by the GPU over PCIe.
    pcie_rx_bytes_per_s: float | None  # Mean rate received by the GPU over PCIe.
    nvlink_tx_bytes_per_s: float | None  # Mean rate sent over all NVLinks.
    nvlink_rx_bytes_per_s: float | None  # Mean rate received over all NVLinks.
    ecc_uncorrected: int | None  # New uncorrected errors during the run.
    xid: tuple[int, ...]  # Numbers of XID errors during the run, ascending, each once.
    # Figures inside the analysed steps; null if no sample covers them.
    in_steps: WindowSensors | None = None
    # File and device of the samples; null for samples of the rank's probe.
    origin: str | None = None
    uuid: str | None = None  # UUID of the GPU, or of its MIG slice; null if not reported.
    # Largest number of processes that computed on the GPU at once, including the job's own.
    num_processes: int | None = None


class DeviceTelemetry(Record, frozen=True, kw_only=True):
    """A GPU whose rank is unknown."""

    file: str  # Source of the samples.
    host: str  # Name of the host; empty if unknown.
    index: int | None  # Index in the driver; null if unknown.
    uuid: str  # UUID of the GPU; empty if unknown.
    bus_id: str  # PCI bus id; empty if unknown.
    name: str  # For example ``NVIDIA H200``; empty if unknown.
    sensors: RankTelemetry  # Figures of the GPU; ``rank`` is -1.


class DeviceError(Record, frozen=True, kw_only=True):
    """Errors of one kind that a kernel, a GPU driver or a fabric manager logged."""

    # ``xid`` of a GPU, ``fabric`` of an NVSwitch, ``crash`` of a process, ``oom`` for a process
    # that the kernel killed to free memory, ``iommu`` for a GPU's accesses that it refused.
    kind: str
    number: int | None  # Number of the error; null if unknown.
    # Readable name, for example ``GPU 3 of node-1``; for a process, its host. Empty if unknown.
    device: str
    rank: int | None  # Rank that ran there; null if unknown.
    count: int  # Number of errors.
    text: str  # Text of the first error.
    time: str  # Time of the first error as in the log; empty if the log has none.
    is_dated: bool  # Whether the log has times, so errors outside the recording are left out.
    file: str  # Log that holds the error.
    process: str = ""  # Name of the process of the first error; empty if unknown.
    pid: int | None = None  # Id of that process, or of the thread that crashed; null if unknown.
    # Largest memory of such a process when it was killed; null if unknown.
    memory_bytes: int | None = None


class DeviceNvlink(Record, frozen=True, kw_only=True):
    """NVLink of one GPU."""

    device: str  # Readable name, for example ``GPU 3 of node-1``.
    name: str  # For example ``NVIDIA A100-SXM4-80GB``.
    rank: int | None  # Rank that ran there; null if unknown.
    num_links: int  # Number of links.
    num_active: int  # Number of active links.
    bytes_per_s: float  # Total bandwidth of the active links, per direction.
    inactive: tuple[int, ...]  # Numbers of the inactive links.
    # Bandwidth in the hardware sheet, for models sold with all links active; null for others.
    expected_bytes_per_s: float | None = None


class DeviceCondition(Record, frozen=True, kw_only=True):
    """State of a GPU's link to the CPU and of its memory, from ``nvidia-smi -q``.

    Null means not reported, never 0.
    """

    device: str  # Readable name, for example ``GPU 3 of node-1``.
    name: str  # For example ``NVIDIA H200``.
    rank: int | None  # Rank that ran there; null if unknown.
    driver: str  # Version of the driver; empty if not reported.
    cuda: str  # Newest version of CUDA that the driver supports; empty if not reported.
    # Whether the GPU was working, so its link was not slowed down to save power.
    is_in_use: bool | None
    pcie_generation: int | None  # Current generation of the link.
    pcie_generation_max: int | None  # Highest generation that the GPU and its host allow.
    pcie_width: int | None  # Current number of lanes.
    pcie_width_max: int | None  # Largest number of lanes that the GPU and its host allow.
    ecc_uncorrected: int | None  # Uncorrected memory errors since the driver was loaded.
    is_repair_pending: bool | None  # Whether a memory repair is pending until the GPU is reset.
    has_repair_failed: bool | None  # Whether memory could not be repaired.
    # Recovery action that the driver requests, for example ``Reset``; empty if none is requested or
    # reported.
    recovery: str


class TelemetryResult(Result, frozen=True, kw_only=True):
    """Sensors of each rank's GPU; ``unavailable`` says why there are none."""

    ranks: tuple[RankTelemetry, ...] = ()  # One row per rank with sensors.
    devices: tuple[DeviceTelemetry, ...] = ()  # GPUs in sensor files whose rank is unknown.
    # Errors in logs of kernels, drivers and switches during the recording.
    errors: tuple[DeviceError, ...] = ()
    kernel_logs: tuple[str, ...] = ()  # Kernel logs that were read, with or without errors.
    nvlinks: tuple[DeviceNvlink, ...] = ()  # NVLinks by GPU, from ``nvidia-smi nvlink --status``.
    # Links to the CPU and memory by GPU, from ``nvidia-smi -q``.
    conditions: tuple[DeviceCondition, ...] = ()
    # Energy of all GPUs, mean of the analysed steps; null unless it is known for every rank. Ranks
    # that were not traced count in the time of one that was.
    energy_per_step_j: float | None = None
    energy_per_token_j: float | None = None  # Energy of a step over its tokens in the step log.
    # Energy drawn while ranks wait in collectives and for messages, at the mean power of each
    # rank's steps: samples are too far apart to show the power of a GPU while it waits.
    waiting_energy_per_step_j: float | None = None
    # Share of energy drawn while ranks wait, over the traced ranks; null unless the energy of each
    # of them is known.
    waiting_energy_ratio: float | None = None
    is_missing: bool = False  # Whether the job used GPUs, but no sensors of them were recorded.
