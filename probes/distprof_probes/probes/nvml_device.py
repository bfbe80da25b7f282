"""Finds the GPU on which this process trains and reads its sensors through NVML.

NVML is NVIDIA's management library (``pynvml``, from the package nvidia-ml-py). A sensor that the
GPU does not support, or that this user may not read, is None, never zero, and is not read again.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from distprof.artefacts.records import NvmlRecord, throttle_reasons

_ALL_LINKS = (
    0xFFFFFFFF  # nvml.h: "A scopeId of UINT_MAX returns aggregate value ... across all links"
)
_KIB = 1024
_KB = 1000  # NVML: "throughput in KB/s"; where it means 1024, it writes KiB


class DeviceLostError(Exception):
    """The GPU no longer answers (fell off the bus, was reset or unplugged)."""


class NoDeviceError(Exception):
    """NVML does not know the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHint:
    """What is known about this process's GPU, best evidence first."""

    # UUID of the CUDA device in use, without the prefix ``GPU-``; empty when unknown.
    uuid: str = ""
    pci_bus_id: str = ""  # For example ``00000000:1B:00.0``; empty when unknown.
    visible: str | None = None  # Value of CUDA_VISIBLE_DEVICES; None when unset.
    index: int = 0  # CUDA's index of the device (usually the local rank).


def device_hint(torch: Any, environment: Mapping[str, str]) -> DeviceHint | None:
    """The GPU on which the calling thread uses CUDA; None before it does.

    This never initialises CUDA. The current device belongs to the thread, so the training thread
    must call this. Without torch, the local rank is the evidence.
    """
    if torch is None:
        local_rank = environment.get("LOCAL_RANK", "")
        return DeviceHint(
            visible=environment.get("CUDA_VISIBLE_DEVICES"),
            index=int(local_rank) if local_rank.isdecimal() else 0,
        )
    cuda = torch.cuda
    if not cuda.is_available() or not cuda.is_initialized():
        return None
    index = cuda.current_device()
    properties = cuda.get_device_properties(index)
    return DeviceHint(
        uuid=str(getattr(properties, "uuid", "")),
        pci_bus_id=_pci_bus_id(properties),
        visible=environment.get("CUDA_VISIBLE_DEVICES"),
        index=index,
    )


def _pci_bus_id(properties: Any) -> str:
    parts = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if any(part is None for part in parts):
        return ""
    domain, bus, device = parts
    return f"{domain:08X}:{bus:02X}:{device:02X}.0"


def find_device(nvml: Any, hint: DeviceHint) -> tuple[Any, str]:
    """NVML's handle of a GPU, and what identified it; NoDeviceError if NVML does not know it."""
    for found_by, name, lookup in _lookups(nvml, hint):
        try:
            return lookup(name), found_by
        except nvml.NVMLError:  # not known by this name: try the next
            continue
    raise NoDeviceError(f"NVML does not know CUDA device {hint.index}")


def _lookups(nvml: Any, hint: DeviceHint) -> list[tuple[str, Any, Callable[[Any], Any]]]:
    by_uuid, by_index = nvml.nvmlDeviceGetHandleByUUID, nvml.nvmlDeviceGetHandleByIndex
    lookups: list[tuple[str, Any, Callable[[Any], Any]]] = []
    if hint.uuid:
        bare = hint.uuid.removeprefix("GPU-")
        lookups += [("uuid", f"GPU-{bare}", by_uuid), ("uuid", f"MIG-{bare}", by_uuid)]
    if hint.pci_bus_id:
        lookups.append(("pci_bus_id", hint.pci_bus_id, nvml.nvmlDeviceGetHandleByPciBusId))
    if hint.uuid or hint.pci_bus_id:
        return lookups  # CUDA named its device: do not guess
    if hint.visible is None:
        return [("index", hint.index, by_index)]
    entries = [entry.strip() for entry in hint.visible.split(",")]
    if hint.index >= len(entries):
        return []
    entry = entries[hint.index]
    if entry.isdigit():
        return [("CUDA_VISIBLE_DEVICES", int(entry), by_index)]
    return [("CUDA_VISIBLE_DEVICES", entry, by_uuid)]


class NvmlDevice:
    """Sensors of one GPU."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._events = self._watch_xid()
        self.unreadable: dict[str, str] = {}
        self.num_errors = 0  # readings that failed once
        missing = {
            error
            for error in (
                getattr(nvml, "NVMLError_NotSupported", None),
                getattr(nvml, "NVMLError_NoPermission", None),
                getattr(nvml, "NVMLError_FunctionNotFound", None),
                getattr(nvml, "NVMLError_ArgumentVersionMismatch", None),
                getattr(nvml, "NVMLError_Deprecated", None),
            )
            if error is not None
        }
        self._missing = tuple(missing)
        self._lost = (nvml.NVMLError_GpuIsLost, nvml.NVMLError_Uninitialized)

    @property
    def watches_xid(self) -> bool:
        """Whether XID errors would be seen."""
        return self._events is not None

    def describe(self) -> dict[str, str]:
        """Name, UUID, PCI bus id and driver, as far as the GPU reports them."""
        nvml, handle = self._nvml, self._handle
        readings: dict[str, Callable[[], Any]] = {
            "device": lambda: nvml.nvmlDeviceGetName(handle),
            "uuid": lambda: nvml.nvmlDeviceGetUUID(handle),
            "pci_bus_id": lambda: nvml.nvmlDeviceGetPciInfo(handle).busId,
            "driver": nvml.nvmlSystemGetDriverVersion,
        }
        found = {name: self._ask(name, reading) for name, reading in readings.items()}
        return {name: _text(value) for name, value in found.items() if value is not None}

    def read(self, *, slow: bool) -> NvmlRecord:
        """One sample, with :data:`SLOW_FIELDS` None unless ``slow``.

        DeviceLostError if the GPU no longer answers.
        """
        before = time.time_ns()
        values = {
            name: self._ask(name, functools.partial(read, self._nvml, self._handle))
            for name, read in READINGS.items()
            if slow or name not in SLOW_FIELDS
        }
        xid = self._seen_xid()
        return NvmlRecord(t_ns=(before + time.time_ns()) // 2, xid=xid, **values)

    def close(self) -> None:
        """Free the event set."""
        if self._events is not None:
            self._ask("xid", lambda: self._nvml.nvmlEventSetFree(self._events))
            self._events = None

    def _ask(self, name: str, reading: Callable[[], Any]) -> Any:
        """The reading, or None; sensors that never work are remembered with the reason."""
        if name in self.unreadable:
            return None
        try:
            return reading()
        except self._missing as error:
            self.unreadable[name] = str(error)
        except self._lost as error:
            raise DeviceLostError(str(error)) from error
        except self._nvml.NVMLError:  # busy, timed out, unknown: may work next time
            self.num_errors += 1
        except (AttributeError, TypeError, ValueError) as error:  # an older or unusual pynvml
            self.unreadable[name] = f"{type(error).__name__}: {error}"
        return None

    def _watch_xid(self) -> Any:
        """An event set for XID errors, None if the driver or the permissions forbid it."""
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError:
            return None
        try:
            nvml.nvmlDeviceRegisterEvents(self._handle, nvml.nvmlEventTypeXidCriticalError, events)
        except nvml.NVMLError:
            nvml.nvmlEventSetFree(events)
            return None
        return events

    def _seen_xid(self) -> tuple[int, ...]:
        seen: list[int] = []
        while self._events is not None and len(seen) < 100:
            try:
                seen.append(int(self._nvml.nvmlEventSetWait_v2(self._events, 0).eventData))
            except self._nvml.NVMLError_Timeout:  # none is pending
                break
            except self._nvml.NVMLError_GpuIsLost as error:
                raise DeviceLostError(str(error)) from error
            except self._nvml.NVMLError:
                self.num_errors += 1
                break
        return tuple(seen)


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _throttle_reasons(nvml: Any, handle: Any) -> tuple[str, ...]:
    current = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    return throttle_reasons((current or nvml.nvmlDeviceGetCurrentClocksThrottleReasons)(handle))


def _memory_used(nvml: Any, handle: Any) -> int:
    try:  # like nvidia-smi, version 2 excludes the driver's own memory
        return int(nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2).used)
    except (nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NotSupported, AttributeError):
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).used)


def _nvlink(field: str) -> Callable[[Any, Any], int]:
    def read(nvml: Any, handle: Any) -> int:
        (value,) = nvml.nvmlDeviceGetFieldValues(handle, [(getattr(nvml, field), _ALL_LINKS)])
        if value.nvmlReturn != nvml.NVML_SUCCESS:
            raise nvml.NVMLError(value.nvmlReturn)
        return int(value.value.ullVal) * _KIB

    return read


READINGS: dict[str, Callable[[Any, Any], Any]] = {
    "sm_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
    "memory_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
    "throttle_reasons": _throttle_reasons,
    "power_w": lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
    "energy_j": lambda nvml, gpu: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3,
    "temperature_c": lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(
        gpu, nvml.NVML_TEMPERATURE_GPU
    ),
    "gpu_utilization_ratio": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
    "memory_utilization_ratio": lambda nvml, gpu: (
        nvml.nvmlDeviceGetUtilizationRates(gpu).memory / 100
    ),
    "memory_used_bytes": _memory_used,
    "pcie_tx_bytes_per_s": lambda nvml, gpu: (
        nvml.nvmlDeviceGetPcieThroughput(gpu, nvml.NVML_PCIE_UTIL_TX_BYTES) * _KB
    ),
    "pcie_rx_bytes_per_s": lambda nvml, gpu: (
        nvml.nvmlDeviceGetPcieThroughput(gpu, nvml.NVML_PCIE_UTIL_RX_BYTES) * _KB
    ),
    "nvlink_tx_bytes": _nvlink("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX"),
    "nvlink_rx_bytes": _nvlink("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX"),
    "ecc_uncorrected": lambda nvml, gpu: nvml.nvmlDeviceGetTotalEccErrors(
        gpu, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    ),
    "num_processes": lambda nvml, gpu: len(nvml.nvmlDeviceGetComputeRunningProcesses(gpu)),
}

SLOW_FIELDS = frozenset(
    # NVML measures PCIe traffic over 20 ms while the caller waits; the others change rarely.
    {
        "pcie_tx_bytes_per_s",
        "pcie_rx_bytes_per_s",
        "nvlink_tx_bytes",
        "nvlink_rx_bytes",
        "ecc_uncorrected",
        "num_processes",
    }
)
