"""The NVML probe: when it samples, what it says when it cannot, and that it never disturbs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pynvml
import pytest
from distprof_probes.options import ProbeOptions
from distprof_probes.probes.nvml import NvmlProbe
from distprof_probes.probes.nvml_device import DeviceHint
from distprof_probes.session import Session

from distprof.artefacts.records import Header, NvmlRecord
from distprof.artefacts.run_file import ProbeStatus
from tests.probes.fake_nvml import FakeGpu, FakeNvml

OPTIONS = ProbeOptions(measure_overhead=False, nvml_period_s=0.002)


def _on(gpu: FakeGpu) -> DeviceHint:
    return DeviceHint(uuid=gpu.uuid)


def _until(condition: Callable[[], bool]) -> None:
    """Wait for another thread, not for time to pass."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "the sampler did not get there"
        threading.Event().wait(0.001)


def _sampled(session: Session, probe: NvmlProbe, gpu: FakeGpu, times: int = 3) -> None:
    _until(lambda: gpu.calls.get("nvmlDeviceGetTemperature", 0) >= times)
    session.close()


def _lines(folder: Path) -> tuple[Header, list[NvmlRecord]]:
    first, *rest = (folder / "rank00000" / "nvml.jsonl").read_bytes().splitlines()
    header = msgspec.json.decode(first, type=Header)
    return header, [msgspec.json.decode(line, type=NvmlRecord) for line in rest]


def _status(session: Session) -> ProbeStatus:
    (status,) = [status for status in session.status() if status.name == "nvml"]
    return status


def test_samples_of_the_training_threads_own_gpu(tmp_path: Path) -> None:
    other, gpu = FakeGpu(uuid="GPU-aaaa"), FakeGpu(uuid="GPU-bbbb")
    nvml = FakeNvml(other, gpu)
    probe = NvmlProbe(nvml, lambda: _on(gpu))
    session = Session(tmp_path, options=OPTIONS, probes=[probe])
    _sampled(session, probe, gpu)
    header, records = _lines(tmp_path)
    assert header.schema == "distprof.nvml/1"
    assert header.about["uuid"] == "GPU-bbbb"
    assert header.about["found_by"] == "uuid"
    assert header.about["device"] == "NVIDIA H200"
    assert set(header.about["not_supported"]) == {"nvlink_tx_bytes", "nvlink_rx_bytes"}
    assert len(records) >= 3
    assert {record.temperature_c for record in records} == {61}
    times = [record.t_ns for record in records]
    assert times == sorted(times)
    assert other.calls == {}
    status = _status(session)
    assert (status.state, status.num_records) == ("on", len(records))
    assert "nvlink_rx_bytes" in status.reason
    assert nvml.num_open == 0
    assert nvml.num_event_sets == 0


def test_sampling_begins_when_cuda_comes_into_use(tmp_path: Path) -> None:
    gpu = FakeGpu(uuid="GPU-aaaa")
    in_use: list[DeviceHint] = []
    probe = NvmlProbe(FakeNvml(gpu), lambda: in_use[0] if in_use else None)
    session = Session(tmp_path, options=OPTIONS, probes=[probe])
    session.step()
    assert gpu.calls == {}
    in_use.append(_on(gpu))
    session.step()
    _sampled(session, probe, gpu)
    assert _status(session).state == "on"


def test_a_process_that_uses_no_gpu_records_none(tmp_path: Path) -> None:
    gpu = FakeGpu()
    nvml = FakeNvml(gpu)
    session = Session(tmp_path, options=OPTIONS, probes=[NvmlProbe(nvml, lambda: None)])
    session.step()
    session.close()
    status = _status(session)
    assert status.state == "unavailable"
    assert status.reason == "this process used no GPU"
    assert not (tmp_path / "rank00000" / "nvml.jsonl").exists()
    assert nvml.num_open == 0


def test_a_device_that_nvml_does_not_have_is_said(tmp_path: Path) -> None:
    probe = NvmlProbe(FakeNvml(FakeGpu()), lambda: DeviceHint(uuid="elsewhere", index=3))
    session = Session(tmp_path, options=OPTIONS, probes=[probe])
    session.close()
    assert _status(session).state == "unavailable"
    assert _status(session).reason == "NVML does not know CUDA device 3"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no NVML library"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "not loaded"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "no permission"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "versions differ"),
        (pynvml.NVML_ERROR_UNKNOWN, "Unknown Error"),
    ],
)
def test_what_hinders_nvml_is_said(tmp_path: Path, code: int, reason: str) -> None:
    session = Session(tmp_path, options=OPTIONS, probes=[NvmlProbe(FakeNvml(init_error=code))])
    session.step()
    session.close()
    status = _status(session)
    assert status.state == "unavailable"
    assert reason in status.reason
    assert not (tmp_path / "rank00000" / "nvml.jsonl").exists()


def test_a_driver_without_gpus_is_absence(tmp_path: Path) -> None:
    nvml = FakeNvml()
    session = Session(tmp_path, options=OPTIONS, probes=[NvmlProbe(nvml)])
    session.close()
    assert _status(session).reason == "NVML found no GPU"
    assert nvml.num_open == 0


def test_the_real_library_on_a_machine_without_driver_is_absence(tmp_path: Path) -> None:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        pass
    else:
        pynvml.nvmlShutdown()
        pytest.skip("there is an NVIDIA driver here")
    session = Session(tmp_path, options=OPTIONS, probes=[NvmlProbe()])
    session.close()
    assert _status(session).state == "unavailable"
    assert "the NVIDIA driver is not installed" in _status(session).reason


def test_a_gpu_that_is_lost_on_the_way_keeps_its_samples(tmp_path: Path) -> None:
    def lost_after_five(number: int) -> int | None:
        return pynvml.NVML_ERROR_GPU_IS_LOST if number >= 5 else None

    gpu = FakeGpu(uuid="GPU-aaaa", broken={"nvmlDeviceGetTemperature": lost_after_five})
    probe = NvmlProbe(FakeNvml(gpu), lambda: _on(gpu))
    session = Session(tmp_path, options=OPTIONS, probes=[probe])
    _until(lambda: _status(session).state == "failed")
    session.step()
    session.close()
    status = _status(session)
    assert status.state == "failed"
    assert "after 5 samples" in status.reason
    assert status.num_records == len(_lines(tmp_path)[1]) == 5


def test_a_paused_sampler_leaves_the_driver_alone(tmp_path: Path) -> None:
    gpu = FakeGpu(uuid="GPU-aaaa")
    probe = NvmlProbe(FakeNvml(gpu), lambda: _on(gpu))
    session = Session(tmp_path, options=OPTIONS, probes=[probe])
    _until(lambda: gpu.calls.get("nvmlDeviceGetTemperature", 0) >= 2)
    probe.pause()
    before = _settled(gpu)
    threading.Event().wait(0.03)  # fifteen periods, in which nothing may happen
    assert gpu.calls["nvmlDeviceGetTemperature"] == before
    probe.resume()
    _until(lambda: gpu.calls["nvmlDeviceGetTemperature"] > before)
    session.close()


def test_a_driver_that_hangs_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distprof_probes.probes.nvml.STOP_WITHIN_S", 0.05)
    release = threading.Event()

    def hang(number: int) -> int | None:
        if number >= 1:
            release.wait(20)
        return None

    gpu = FakeGpu(uuid="GPU-aaaa", broken={"nvmlDeviceGetTemperature": hang})
    nvml = FakeNvml(gpu)
    session = Session(tmp_path, options=OPTIONS, probes=[NvmlProbe(nvml, lambda: _on(gpu))])
    _until(lambda: gpu.calls.get("nvmlDeviceGetTemperature", 0) >= 2)
    session.close()
    status = _status(session)
    assert status.state == "failed"
    assert "did not answer" in status.reason
    assert nvml.num_open == 1  # shutting NVML down under a running call would crash
    release.set()


def _settled(gpu: FakeGpu) -> int:
    """Number of readings once the one under way is through."""
    while True:
        before = gpu.calls["nvmlDeviceGetTemperature"]
        threading.Event().wait(0.02)
        if gpu.calls["nvmlDeviceGetTemperature"] == before:
            return before
