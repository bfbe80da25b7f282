"""Sensors of each rank's device: clocks, throttling, power, heat, use, links, errors."""

from __future__ import annotations

from distprof.artefacts.record import Record
from distprof.sections.base import Result

__all__ = [
    "DeviceCondition",
    "DeviceError",
    "DeviceNvlink",
    "DeviceTelemetry",
    "RankTelemetry",
    "TelemetryResult",
    "WindowSensors",
]


class WindowSensors(Record, frozen=True, kw_only=True):
    """One device between the start of the first analysed step and the end of the last.

    None: the device does not tell; it is never 0.

    Args:
        num_samples: Samples that the figures are of.
        is_bracketed: Whether no sample is inside, so that they are of the last one before and
            the first one after.
        sm_clock_mhz_median: Clock of the streaming multiprocessors.
        sm_clock_mhz_min: Lowest.
        throttled_ratio: Share of samples in which something slowed the device down.
        throttle_reasons: Reason to the share of samples that have it.
        power_w_mean: Energy over time, watts; where that is not known, the mean of the samples.
        temperature_c_max: Highest, degrees Celsius.
        gpu_utilization_ratio: Mean share of time with a kernel running.
        energy_j: Of all analysed steps together: by the device's counter, interpolated, else the
            power, interpolated and summed over time. None where samples do not reach over them.
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
    """One rank's device over the whole run. None: the device does not tell; it is never 0.

    Args:
        rank: Global rank.
        num_samples: Samples taken.
        sm_clock_mhz_median: Clock of the streaming multiprocessors.
        sm_clock_mhz_min: Lowest.
        throttled_ratio: Share of samples in which something slowed the device down.
        throttle_reasons: Reason to the share of samples that have it.
        power_w_mean: Mean power, watts.
        power_w_max: Highest.
        temperature_c_max: Highest, degrees Celsius.
        gpu_utilization_ratio: Mean share of time with a kernel running, as the driver counts it.
        memory_utilization_ratio: Mean share of time with memory busy.
        memory_used_bytes: Highest, all processes on the device.
        pcie_tx_bytes_per_s: Mean, from the device.
        pcie_rx_bytes_per_s: Mean, to the device.
        nvlink_tx_bytes_per_s: Mean over the run, all links.
        nvlink_rx_bytes_per_s: The same for receiving.
        ecc_uncorrected: New uncorrected errors during the run.
        xid: Numbers of XID errors during the run, ascending, each once.
        in_steps: The same device inside the analysed steps; None where no sample is of their time.
        origin: File and device that the samples come from; None for those of the rank's probe.
        uuid: Of the GPU, or of its MIG slice; None where the samples do not say.
        num_processes: Most processes that computed on the GPU at once, the job's own included.
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
    """A device of which no rank is known.

    Args:
        file: Where its samples come from.
        host: Empty where not told.
        index: As the driver counts, None where not told.
        uuid: Empty where not told.
        bus_id: Empty where not told.
        name: For example ``NVIDIA H200``; empty where not told.
        sensors: Its figures; ``rank`` is -1.
    """

    file: str
    host: str
    index: int | None
    uuid: str
    bus_id: str
    name: str
    sensors: RankTelemetry


class DeviceError(Record, frozen=True, kw_only=True):
    """Errors of one kind that a kernel, a device's driver or a switch's manager logged.

    Args:
        kind: ``xid`` of a GPU, ``fabric`` of an NVSwitch, ``crash`` of a process, ``oom`` for a
            process that the kernel killed to free memory.
        number: Of the error, None where not told.
        device: For people: ``GPU 3 of node-1``; of a process, its host, empty where not told.
        rank: Who ran there, None where that is not known.
        count: How many.
        text: Of the first.
        time: Of the first, as the log has it; empty where it has none.
        is_dated: Whether the log tells when, so that those of other times are left out.
        file: Where it stands.
        process: Name of the first's process, empty where not told.
        pid: Of that process; for a crash, of the thread that crashed. None where not told.
        memory_bytes: The most that such a process held when it was killed, None where not told.
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
    """NVLink of one device.

    Args:
        device: For people: ``GPU 3 of node-1``.
        name: For example ``NVIDIA A100-SXM4-80GB``.
        rank: Who ran there, None where that is not known.
        num_links: Links that it has.
        num_active: Of these, those that work.
        bytes_per_s: Of these together, per direction.
        inactive: Numbers of the links that do not work.
        expected_bytes_per_s: What its kind has by the hardware sheet, where it is sold with all of
            its links; None for others.
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
    """What ``nvidia-smi -q`` says of a device's link to the CPU and of its memory.

    None: not told; it is never 0.

    Args:
        device: For people: ``GPU 3 of node-1``.
        name: For example ``NVIDIA H200``.
        rank: Who ran there, None where that is not known.
        driver: Version of the driver; empty where not told.
        cuda: Newest version of CUDA that the driver supports; empty where not told.
        is_in_use: Whether the device was working, so that its link was not slowed down to save
            power.
        pcie_generation: Of the link at that moment.
        pcie_generation_max: Most that the GPU and its host allow.
        pcie_width: Lanes of the link at that moment.
        pcie_width_max: Most that the GPU and its host allow.
        ecc_uncorrected: Uncorrected memory errors since the driver was loaded.
        is_repair_pending: Whether memory waits for a reset to be repaired.
        has_repair_failed: Whether memory could not be repaired.
        recovery: What the driver asks for, for example ``Reset``; empty for nothing, and where not
            told.
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
    """Sensors of each rank's device; ``unavailable`` says why there are none.

    Args:
        ranks: One row per rank with sensors.
        devices: Devices in sensor files of which no rank is known.
        errors: Errors in logs of kernels, drivers and switches during the recording.
        kernel_logs: Kernel logs that were read, with errors in them or without.
        nvlinks: What ``nvidia-smi nvlink --status`` shows.
        conditions: What ``nvidia-smi -q`` shows of links to the CPU and of memory.
        energy_per_step_j: All devices together, mean of the analysed steps; None unless it is known
            of every rank's device. Ranks that were not traced count in the time of one that was.
        energy_per_token_j: Over the tokens of a step by the step log.
        waiting_energy_per_step_j: Of it what is drawn while ranks wait in collectives and for
            messages, at the mean power of each one's steps: samples are too far apart to tell what
            a device draws while it waits.
        waiting_energy_ratio: Share of that in the step's energy, by the ranks that were traced;
            None unless the energy of each of these is known.
        is_missing: Whether the job used devices, and nothing was recorded of them.
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
