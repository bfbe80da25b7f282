"""One GPU through NVML: which one it is, and what it says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from distprof_probes.probes.nvml_device import (
    SLOW_FIELDS,
    DeviceHint,
    DeviceLostError,
    NoDeviceError,
    NvmlDevice,
    device_hint,
    find_device,
)

from distprof.artefacts.records import NvmlRecord
from tests.probes.fake_nvml import FakeGpu, FakeNvml

A = FakeGpu(uuid="GPU-aaaa", bus_id="00000000:1B:00.0")
B = FakeGpu(uuid="GPU-bbbb", bus_id="00000000:C3:00.0")


def _torch(initialised: bool, **properties: Any) -> Any:
    cuda = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: initialised,
        current_device=lambda: 0,
        get_device_properties=lambda index: SimpleNamespace(**properties),
    )
    return SimpleNamespace(cuda=cuda)


@pytest.mark.parametrize(
    ("hint", "expected", "found_by"),
    [
        (DeviceHint(uuid="bbbb"), B, "uuid"),
        (DeviceHint(uuid="GPU-bbbb"), B, "uuid"),
        (DeviceHint(pci_bus_id="00000000:C3:00.0"), B, "pci_bus_id"),
        (DeviceHint(uuid="unknown", pci_bus_id="00000000:C3:00.0"), B, "pci_bus_id"),
        (DeviceHint(visible="1,0", index=0), B, "CUDA_VISIBLE_DEVICES"),
        (DeviceHint(visible="1, 0", index=1), A, "CUDA_VISIBLE_DEVICES"),
        (DeviceHint(visible="GPU-bbbb", index=0), B, "CUDA_VISIBLE_DEVICES"),
        (DeviceHint(index=1), B, "index"),
    ],
)
def test_the_device_is_the_one_that_the_best_evidence_names(
    hint: DeviceHint, expected: FakeGpu, found_by: str
) -> None:
    assert find_device(FakeNvml(A, B), hint) == (expected, found_by)


@pytest.mark.parametrize(
    "hint",
    [
        DeviceHint(index=2),
        DeviceHint(visible="0", index=1),
        DeviceHint(visible=""),
        DeviceHint(uuid="elsewhere", index=0),  # CUDA named its device: index 0 would be a guess
    ],
)
def test_no_device_is_guessed(hint: DeviceHint) -> None:
    with pytest.raises(NoDeviceError):
        find_device(FakeNvml(A, B), hint)


def test_cuda_is_not_initialised_by_asking() -> None:
    assert device_hint(_torch(initialised=False), {}) is None


def test_cudas_own_properties_name_the_device() -> None:
    torch = _torch(True, uuid="bbbb", pci_domain_id=0, pci_bus_id=0xC3, pci_device_id=0)
    hint = device_hint(torch, {"CUDA_VISIBLE_DEVICES": "1"})
    assert hint == DeviceHint(uuid="bbbb", pci_bus_id="00000000:C3:00.0", visible="1", index=0)


def test_properties_that_an_older_torch_lacks_are_empty() -> None:
    assert device_hint(_torch(True), {}) == DeviceHint()


@pytest.mark.parametrize(("local_rank", "index"), [("3", 3), ("", 0), ("x", 0)])
def test_without_torch_the_local_rank_points_to_the_device(local_rank: str, index: int) -> None:
    hint = device_hint(None, {"LOCAL_RANK": local_rank, "CUDA_VISIBLE_DEVICES": "4,5,6,7"})
    assert hint == DeviceHint(visible="4,5,6,7", index=index)


def test_every_field_has_the_unit_that_its_name_says() -> None:
    gpu = FakeGpu(throttle=0x4 | 0x40, nvlink_kib=1000, xids=[79, 48])
    record = NvmlDevice(FakeNvml(gpu), gpu).read(slow=True)
    assert record == NvmlRecord(
        t_ns=record.t_ns,
        sm_clock_mhz=1980,
        memory_clock_mhz=3201,
        throttle_reasons=("sw_power_cap", "hw_thermal_slowdown"),
        power_w=451.25,
        energy_j=1234.5,
        temperature_c=61,
        gpu_utilization_ratio=0.93,
        memory_utilization_ratio=0.4,
        memory_used_bytes=10_000_000,
        pcie_tx_bytes_per_s=500_000,
        pcie_rx_bytes_per_s=700_000,
        nvlink_tx_bytes=1_024_000,
        nvlink_rx_bytes=1_025_024,
        ecc_uncorrected=0,
        num_processes=1,
        xid=(79, 48),
    )


@pytest.mark.parametrize(
    ("bits", "expected"),
    [(0, ()), (0x1, ()), (0x3, ("applications_clocks_setting",)), (0x800, ("0x800",))],
)
def test_idle_is_no_throttling_and_unknown_reasons_are_kept(
    bits: int, expected: tuple[str, ...]
) -> None:
    gpu = FakeGpu(throttle=bits)
    assert NvmlDevice(FakeNvml(gpu), gpu).read(slow=False).throttle_reasons == expected


def test_what_the_device_does_not_support_is_absent_and_not_asked_again() -> None:
    gpu = FakeGpu(broken={"nvmlDeviceGetTotalEccErrors": pynvml.NVML_ERROR_NOT_SUPPORTED})
    device = NvmlDevice(FakeNvml(gpu), gpu)
    records = [device.read(slow=True) for _ in range(3)]
    assert [record.ecc_uncorrected for record in records] == [None, None, None]
    assert [record.nvlink_tx_bytes for record in records] == [None, None, None]
    assert gpu.calls["nvmlDeviceGetTotalEccErrors"] == 1
    assert set(device.unreadable) == {"ecc_uncorrected", "nvlink_tx_bytes", "nvlink_rx_bytes"}


def test_a_reading_that_failed_once_is_asked_for_again() -> None:
    def second_call_fails(number: int) -> int | None:
        return pynvml.NVML_ERROR_UNKNOWN if number == 1 else None

    gpu = FakeGpu(broken={"nvmlDeviceGetPowerUsage": second_call_fails})
    device = NvmlDevice(FakeNvml(gpu), gpu)
    assert [device.read(slow=False).power_w for _ in range(3)] == [451.25, None, 451.25]
    assert device.num_errors == 1
    assert device.unreadable == {}


def test_fields_that_take_long_are_read_only_when_asked_for() -> None:
    gpu = FakeGpu(nvlink_kib=5)
    record = NvmlDevice(FakeNvml(gpu), gpu).read(slow=False)
    assert all(getattr(record, name) is None for name in SLOW_FIELDS)
    assert "nvmlDeviceGetPcieThroughput" not in gpu.calls


def test_memory_of_a_driver_without_the_second_version_is_read_the_old_way() -> None:
    gpu = FakeGpu(broken={"nvmlDeviceGetMemoryInfo_v2": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND})
    assert NvmlDevice(FakeNvml(gpu), gpu).read(slow=False).memory_used_bytes == 10_600_000


def test_xid_errors_are_not_watched_without_permission() -> None:
    gpu = FakeGpu(broken={"nvmlDeviceRegisterEvents": pynvml.NVML_ERROR_NO_PERMISSION}, xids=[79])
    nvml = FakeNvml(gpu)
    device = NvmlDevice(nvml, gpu)
    assert not device.watches_xid
    assert device.read(slow=True).xid == ()
    assert nvml.num_event_sets == 0


def test_a_gpu_that_fell_off_the_bus_is_not_a_missing_field() -> None:
    gpu = FakeGpu(broken={"nvmlDeviceGetPowerUsage": pynvml.NVML_ERROR_GPU_IS_LOST})
    with pytest.raises(DeviceLostError):
        NvmlDevice(FakeNvml(gpu), gpu).read(slow=False)
