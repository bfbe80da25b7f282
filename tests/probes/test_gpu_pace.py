"""The probe that asks whether the GPU is behind, on a GPU that is imitated."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from distprof_probes.gpu_pace import GpuPace


class FakeGpu:
    """CUDA's events: ``done`` work of all that was recorded has passed."""

    def __init__(self) -> None:
        self.recorded = self.done = self.num_events = 0
        self.is_initialized = lambda: True
        self.is_capturing = False
        self.fails = False

    def is_current_stream_capturing(self) -> bool:
        return self.is_capturing

    def current_stream(self) -> str:
        return "stream 7"

    def Event(self) -> FakeEvent:  # noqa: N802  # as torch calls it
        self.num_events += 1
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu

    def record(self, stream: str) -> None:
        assert stream == "stream 7"
        self.gpu.recorded += 1
        self.place = self.gpu.recorded

    def query(self) -> bool:
        if self.gpu.fails:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return self.gpu.done >= self.place

    def synchronize(self) -> None:
        raise AssertionError("a probe never waits for the GPU")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    fake = FakeGpu()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=fake))
    return fake


def test_a_gpu_that_is_more_than_a_step_behind_is_noticed(gpu: FakeGpu) -> None:
    pace = GpuPace()
    found = []
    for done in (0, 0, 1, 2, 3):  # steps whose work has passed when the CPU ends the next one
        gpu.done = done
        found.append(pace.step_ended())
    assert found == [None, True, True, True, True]


def test_a_gpu_that_keeps_up_is_not_behind(gpu: FakeGpu) -> None:
    pace = GpuPace()
    found = []
    for done in (0, 1, 2, 3):
        gpu.done = done
        found.append(pace.step_ended())
    assert found == [None, False, False, False]
    assert gpu.num_events == 2


def test_a_step_that_was_not_observed_is_no_step_before(gpu: FakeGpu) -> None:
    pace = GpuPace()
    pace.step_ended()
    pace.forget()
    assert pace.step_ended() is None
    assert pace.step_ended() is True


def test_a_stream_that_is_captured_is_left_alone(gpu: FakeGpu) -> None:
    pace = GpuPace()
    pace.step_ended()
    gpu.is_capturing = True
    assert pace.step_ended() is None
    assert gpu.recorded == 1
    gpu.is_capturing = False
    assert pace.step_ended() is None


def test_an_error_ends_the_questions_and_reaches_nobody(gpu: FakeGpu) -> None:
    pace = GpuPace()
    pace.step_ended()
    gpu.fails = True
    assert pace.step_ended() is None
    gpu.fails = False
    assert pace.step_ended() is None
    assert gpu.recorded == 1


def test_without_a_gpu_nothing_is_asked(monkeypatch: pytest.MonkeyPatch, gpu: FakeGpu) -> None:
    gpu.is_initialized = lambda: False
    assert GpuPace().step_ended() is None
    monkeypatch.delitem(sys.modules, "torch")
    assert GpuPace().step_ended() is None
