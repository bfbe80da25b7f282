"""Sensors of each rank's GPU: clocks, throttling, power, temperature, links, errors."""

from __future__ import annotations

from distprof.artefacts.record import Record
from distprof.sections.base import Result


class WindowSensors(Record, frozen=True, kw_only=True):
    """One GPU between the start of the first analysed step and the end of the last.

    Null means that the GPU does not report the value, never 0.

    Args:
        num_samples: Number of samples.
        is_bracketed: Whether no sample is inside, so the last one before and the first one after
            are used.
        sm_clock_mhz_median: Median clock of the streaming multiprocessors.
        sm_clock_mhz_min: Lowest clock.
        throttled_ratio: Share of samples in which the GPU was throttled.
        throttle_reasons: Throttle reason to its share of samples.
        power_w_mean: Energy over time in watts, or the mean of the samples if the energy is
            unknown.
        temperature_c_max: Highest temperature, degrees Celsius.
        gpu_utilization_ratio: Mean share of time with a kernel running.
        energy_j: Energy of all analysed steps, from the GPU's counter, interpolated, otherwise from
            power, interpolated and integrated. Null if samples do not cover the steps.
    """

    num_samples: int
    is_bracketed: bool
    sm_clock_mhz_median: int | None
    sm_clock_mhz_min: int | None
    throttled_ratio: float | None
    throttle_reasons: dict[str, float]
    power_w_mean: float | None
    temperature_c_max: int | None
    gpu_utilization_ratio: float | None
    energy_j: float | None


class RankTelemetry(Record, frozen=True, kw_only=True):
    """One rank's GPU over the whole run.

    Null means that the GPU does not report the value, never 0.

    Args:
        rank: Global rank.
        num_samples: Number of samples.
        sm_clock_mhz_median: Median clock of the streaming multiprocessors.
        sm_clock_mhz_min: Lowest clock.
        throttled_ratio: Share of samples in which the GPU was throttled.
        throttle_reasons: Throttle reason to its share of samples.
        power_w_mean: Mean power, watts.
        power_w_max: Highest power, watts.
        temperature_c_max: Highest temperature, degrees Celsius.
        gpu_utilization_ratio: Mean share of time with a kernel running, as the driver counts it.
        memory_utilization_ratio: Mean share of time with memory busy.
        memory_used_bytes: Largest memory use of all processes on the GPU.
        pcie_tx_bytes_per_s: Mean rate sent by the GPU over PCIe.
        pcie_rx_bytes_per_s: Mean rate received by the GPU over PCIe.
        nvlink_tx_bytes_per_s: Mean rate sent over all NVLinks.
        nvlink_rx_bytes_per_s: Mean rate received over all NVLinks.
        ecc_uncorrected: New uncorrected errors during the run.
        xid: Numbers of XID errors during the run, ascending, each once.
        in_steps: Figures inside the analysed steps; null if no sample covers them.
        origin: File and device of the samples; null for samples of the rank's probe.
        uuid: UUID of the GPU, or of its MIG slice; null if not reported.
        num_processes: Largest number of processes that computed on the GPU at once, including the
            job's own.
    """

    rank: int
    num_samples: int
    sm_clock_mhz_median: int | None
    sm_clock_mhz_min: int | None
    throttled_ratio: float | None
    throttle_reasons: dict[str, float]
    power_w_mean: float | None
    power_w_max: float | None
    temperature_c_max: int | None
    gpu_utilization_ratio: float | None
    memory_utilization_ratio: float | None
    memory_used_bytes: int | None
    pcie_tx_bytes_per_s: float | None
    pcie_rx_bytes_per_s: float | None
    nvlink_tx_bytes_per_s: float | None
    nvlink_rx_bytes_per_s: float | None
    ecc_uncorrected: int | None
    xid: tuple[int, ...]
    in_steps: WindowSensors | None = None
    origin: str | None = None
    uuid: str | None = None
    num_processes: int | None = None


class DeviceTelemetry(Record, frozen=True, kw_only=True):
    """A GPU whose rank is unknown.

    Args:
        file: Source of the samples.
        host: Name of the host; empty if unknown.
        index: Index in the driver; null if unknown.
        uuid: UUID of the GPU; empty if unknown.
        bus_id: PCI bus id; empty if unknown.
        name: For example ``NVIDIA H200``; empty if unknown.
        sensors: Figures of the GPU; ``rank`` is -1.
    """

    file: str
    host: str
    index: int | None
    uuid: str
    bus_id: str
    name: str
    sensors: RankTelemetry


class DeviceError(Record, frozen=True, kw_only=True):
    """Errors of one kind that a kernel, a GPU driver or a fabric manager logged.

    Args:
        kind: ``xid`` of a GPU, ``fabric`` of an NVSwitch, ``crash`` of a process, ``oom`` for a
            process that the kernel killed to free memory.
        number: Number of the error; null if unknown.
        device: Readable name, for example ``GPU 3 of node-1``; for a process, its host. Empty if
            unknown.
        rank: Rank that ran there; null if unknown.
        count: Number of errors.
        text: Text of the first error.
        time: Time of the first error as in the log; empty if the log has none.
        is_dated: Whether the log has times, so errors outside the recording are left out.
        file: Log that holds the error.
        process: Name of the process of the first error; empty if unknown.
        pid: Id of that process, or of the thread that crashed; null if unknown.
        memory_bytes: Largest memory of such a process when it was killed; null if unknown.
    """

    kind: str
    number: int | None
    device: str
    rank: int | None
    count: int
    text: str
    time: str
    is_dated: bool
    file: str
    process: str = ""
    pid: int | None = None
    memory_bytes: int | None = None


class DeviceNvlink(Record, frozen=True, kw_only=True):
    """NVLink of one GPU.

    Args:
        device: Readable name, for example ``GPU 3 of node-1``.
        name: For example ``NVIDIA A100-SXM4-80GB``.
        rank: Rank that ran there; null if unknown.
        num_links: Number of links.
        num_active: Number of active links.
        bytes_per_s: Total bandwidth of the active links, per direction.
        inactive: Numbers of the inactive links.
        expected_bytes_per_s: Bandwidth in the hardware sheet, for models sold with all links
            active; null for others.
    """

    device: str
    name: str
    rank: int | None
    num_links: int
    num_active: int
    bytes_per_s: float
    inactive: tuple[int, ...]
    expected_bytes_per_s: float | None = None


class DeviceCondition(Record, frozen=True, kw_only=True):
    """State of a GPU's link to the CPU and of its memory, from ``nvidia-smi -q``.

    Null means not reported, never 0.

    Args:
        device: Readable name, for example ``GPU 3 of node-1``.
        name: For example ``NVIDIA H200``.
        rank: Rank that ran there; null if unknown.
        driver: Version of the driver; empty if not reported.
        cuda: Newest version of CUDA that the driver supports; empty if not reported.
        is_in_use: Whether the GPU was working, so its link was not slowed down to save power.
        pcie_generation: Current generation of the link.
        pcie_generation_max: Highest generation that the GPU and its host allow.
        pcie_width: Current number of lanes.
        pcie_width_max: Largest number of lanes that the GPU and its host allow.
        ecc_uncorrected: Uncorrected memory errors since the driver was loaded.
        is_repair_pending: Whether a memory repair is pending until the GPU is reset.
        has_repair_failed: Whether memory could not be repaired.
        recovery: Recovery action that the driver requests, for example ``Reset``; empty if none is
            requested or reported.
    """

    device: str
    name: str
    rank: int | None
    driver: str
    cuda: str
    is_in_use: bool | None
    pcie_generation: int | None
    pcie_generation_max: int | None
    pcie_width: int | None
    pcie_width_max: int | None
    ecc_uncorrected: int | None
    is_repair_pending: bool | None
    has_repair_failed: bool | None
    recovery: str


class TelemetryResult(Result, frozen=True, kw_only=True):
    """Sensors of each rank's GPU; ``unavailable`` says why there are none.

    Args:
        ranks: One row per rank with sensors.
        devices: GPUs in sensor files whose rank is unknown.
        errors: Errors in logs of kernels, drivers and switches during the recording.
        kernel_logs: Kernel logs that were read, with or without errors.
        nvlinks: NVLinks by GPU, from ``nvidia-smi nvlink --status``.
        conditions: Links to the CPU and memory by GPU, from ``nvidia-smi -q``.
        energy_per_step_j: Energy of all GPUs, mean of the analysed steps; null unless it is known
            for every rank. Ranks that were not traced count in the time of one that was.
        energy_per_token_j: Energy of a step over its tokens in the step log.
        waiting_energy_per_step_j: Energy drawn while ranks wait in collectives and for messages, at
            the mean power of each rank's steps: samples are too far apart to show the power of a
            GPU while it waits.
        waiting_energy_ratio: Share of energy drawn while ranks wait, over the traced ranks; null
            unless the energy of each of them is known.
        is_missing: Whether the job used GPUs, but no sensors of them were recorded.
    """

    ranks: tuple[RankTelemetry, ...] = ()
    devices: tuple[DeviceTelemetry, ...] = ()
    errors: tuple[DeviceError, ...] = ()
    kernel_logs: tuple[str, ...] = ()
    nvlinks: tuple[DeviceNvlink, ...] = ()
    conditions: tuple[DeviceCondition, ...] = ()
    energy_per_step_j: float | None = None
    energy_per_token_j: float | None = None
    waiting_energy_per_step_j: float | None = None
    waiting_energy_ratio: float | None = None
    is_missing: bool = False
