# ruff: noqa: N802  # named as NVML names them
"""NVML without a GPU: the real module's error classes and constants, made-up devices."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml


@dataclass
class FakeGpu:
    """One device.

    ``broken`` maps a function of NVML to the error that it returns, or to a function that is given
    the number of the call (from 0) and returns an error or None.
    """

    uuid: str = "GPU-11111111-2222-3333-4444-555555555555"
    bus_id: str = "00000000:1B:00.0"
    throttle: int = 0
    processes: int = 1
    nvlink_kib: int | None = None  # None: no NVLink
    xids: list[int] = field(default_factory=list)
    broken: dict[str, int | Callable[[int], int | None]] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)


class FakeNvml(types.ModuleType):
    """In place of the module ``pynvml``."""

    def __init__(self, *gpus: FakeGpu, init_error: int | None = None) -> None:
        super().__init__("pynvml")
        for name in dir(pynvml):
            if name.startswith("NVML") or (name.startswith("nvml") and name[4:5].islower()):
                setattr(self, name, getattr(pynvml, name))
        self.nvmlMemory_v2 = pynvml.nvmlMemory_v2
        self.nvmlEventTypeXidCriticalError = pynvml.nvmlEventTypeXidCriticalError
        self.gpus = list(gpus)
        self.init_error = init_error
        self.num_open = 0
        self.num_event_sets = 0

    def nvmlInit(self) -> None:
        if self.init_error is not None:
            raise pynvml.NVMLError(self.init_error)
        self.num_open += 1

    def nvmlShutdown(self) -> None:
        self.num_open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: FakeGpu) -> list[int]:
        processes = list(range(gpu.processes))
        return self._answer(gpu, "nvmlDeviceGetComputeRunningProcesses", processes)

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.86.15"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:
        return self._find("uuid", uuid)

    def nvmlDeviceGetHandleByPciBusId(self, bus_id: str) -> FakeGpu:
        return self._find("bus_id", bus_id)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        if index >= len(self.gpus):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return self.gpus[index]

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str:
        return self._answer(gpu, "nvmlDeviceGetName", "NVIDIA H200")

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:
        return self._answer(gpu, "nvmlDeviceGetUUID", gpu.uuid)

    def nvmlDeviceGetPciInfo(self, gpu: FakeGpu) -> Any:
        return SimpleNamespace(busId=gpu.bus_id.encode())

    def nvmlDeviceGetClockInfo(self, gpu: FakeGpu, kind: int) -> int:
        clocks = {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 3201}
        return self._answer(gpu, "nvmlDeviceGetClockInfo", clocks[kind])

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: FakeGpu) -> int:
        return self._answer(gpu, "nvmlDeviceGetCurrentClocksEventReasons", gpu.throttle)

    def nvmlDeviceGetPowerUsage(self, gpu: FakeGpu) -> int:
        return self._answer(gpu, "nvmlDeviceGetPowerUsage", 451_250)  # milliwatts

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: FakeGpu) -> int:
        return self._answer(gpu, "nvmlDeviceGetTotalEnergyConsumption", 1_234_500)  # millijoules

    def nvmlDeviceGetTemperature(self, gpu: FakeGpu, sensor: int) -> int:
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        return self._answer(gpu, "nvmlDeviceGetTemperature", 61)

    def nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu) -> Any:
        rates = SimpleNamespace(gpu=93, memory=40)
        return self._answer(gpu, "nvmlDeviceGetUtilizationRates", rates)

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu, version: int | None = None) -> Any:
        name = "nvmlDeviceGetMemoryInfo_v2" if version else "nvmlDeviceGetMemoryInfo"
        used = 10_000_000 if version else 10_600_000  # the first version counts the driver's own
        return self._answer(gpu, name, SimpleNamespace(used=used))

    def nvmlDeviceGetPcieThroughput(self, gpu: FakeGpu, counter: int) -> int:
        answers = {pynvml.NVML_PCIE_UTIL_TX_BYTES: 500, pynvml.NVML_PCIE_UTIL_RX_BYTES: 700}  # KB/s
        return self._answer(gpu, "nvmlDeviceGetPcieThroughput", answers[counter])

    def nvmlDeviceGetFieldValues(self, gpu: FakeGpu, fields: list[tuple[int, int]]) -> list[Any]:
        values = []
        for field_id, scope in fields:
            assert scope == 0xFFFFFFFF, "all links together"
            code = pynvml.NVML_SUCCESS if gpu.nvlink_kib else pynvml.NVML_ERROR_NOT_SUPPORTED
            kib = (gpu.nvlink_kib or 0) + (field_id == pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX)
            values.append(SimpleNamespace(nvmlReturn=code, value=SimpleNamespace(ullVal=kib)))
        return self._answer(gpu, "nvmlDeviceGetFieldValues", values)

    def nvmlDeviceGetTotalEccErrors(self, gpu: FakeGpu, kind: int, counter: int) -> int:
        assert kind == pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        assert counter == pynvml.NVML_VOLATILE_ECC
        return self._answer(gpu, "nvmlDeviceGetTotalEccErrors", 0)

    def nvmlEventSetCreate(self) -> object:
        self.num_event_sets += 1
        return object()

    def nvmlEventSetFree(self, events: object) -> None:
        self.num_event_sets -= 1

    def nvmlDeviceRegisterEvents(self, gpu: FakeGpu, kinds: int, events: object) -> None:
        self._answer(gpu, "nvmlDeviceRegisterEvents", None)

    def nvmlEventSetWait_v2(self, events: object, timeout_ms: int) -> Any:
        assert timeout_ms == 0, "the sampler must not wait for events"
        for gpu in self.gpus:
            if gpu.xids:
                return SimpleNamespace(eventData=gpu.xids.pop(0))
        raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)

    def _find(self, attribute: str, value: str) -> FakeGpu:
        for gpu in self.gpus:
            if getattr(gpu, attribute) == value:
                return gpu
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    @staticmethod
    def _answer(gpu: FakeGpu, function: str, value: Any) -> Any:
        number = gpu.calls.get(function, 0)
        gpu.calls[function] = number + 1
        error = gpu.broken.get(function)
        code = error(number) if callable(error) else error
        if code is not None:
            raise pynvml.NVMLError(code)
        return value
