"""Values of tensors: at once from the CPU, without waiting from an accelerator."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.probes.sessions import open_session, steps_of

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'distprof[run]'")

from distprof_probes.host_copy import _MARK, HostCopy  # noqa: E402  # after the check for torch

needs_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class Arriving(HostCopy):
    """A copy whose memory is written later, as by a device."""

    def _enqueue(self, values: object) -> None:
        raise AssertionError("the tensors of this test are on the CPU")

    def __init__(self, size: int) -> None:
        super().__init__(torch.zeros(0))
        self._values = None
        self._buffer = torch.full((size,), _MARK, dtype=torch.int64).view(torch.float64)


def test_a_tensor_on_the_cpu_is_read_at_once_to_the_last_bit() -> None:
    loss = torch.tensor(0.1, requires_grad=True)
    copy = HostCopy(loss)

    assert copy.is_ready()
    assert copy.values() == [loss.item()]
    assert HostCopy(torch.arange(4).reshape(2, 2)).values() == [0, 1, 2, 3]


def test_values_are_there_when_every_mark_has_been_overwritten() -> None:
    copy = Arriving(3)
    assert not copy.is_ready()
    copy._buffer[2] = 7.0
    copy._buffer[0] = float("nan")  # a computed NaN is a value
    assert not copy.is_ready()
    copy._buffer[1] = 5.0

    assert copy.is_ready()
    assert copy.values()[1:] == [5.0, 7.0]


def test_the_loss_may_be_a_tensor_of_any_shape_with_one_element(tmp_path: Path) -> None:
    with open_session(tmp_path) as session:
        session.step(loss=torch.tensor(2.5))
        session.step(loss=torch.tensor([[1.5]], requires_grad=True))
        session.step(loss=torch.ones(2))

    assert [step.loss for step in steps_of(tmp_path)] == [2.5, 1.5, None]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"], ids=str)
@pytest.mark.parametrize("_", [pytest.param(0, marks=needs_gpu)])
def test_nothing_waits_for_a_gpu_that_is_busy(tmp_path: Path, dtype: str, _: int) -> None:
    loss = torch.full((), 0.5, device="cuda", dtype=getattr(torch, dtype))
    HostCopy(loss * 2)  # pinned memory is made, and the kernels are loaded, once: both may wait
    torch.cuda.synchronize()
    with open_session(tmp_path) as session:
        session.step(loss=loss)
        torch.cuda._sleep(2_000_000_000)
        behind = torch.cuda.Event()
        behind.record()
        session.step(loss=loss * 2)
        assert not behind.query()

    assert [step.loss for step in steps_of(tmp_path)] == [0.5, 1.0]


@pytest.mark.parametrize("_", [pytest.param(0, marks=needs_gpu)])
def test_writing_does_not_break_a_graph_that_is_being_captured(tmp_path: Path, _: int) -> None:
    with open_session(tmp_path) as session:
        x = torch.ones(4, device="cuda")
        torch.cuda._sleep(1_000_000_000)
        session.step(loss=x.sum())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x * 2
            for _record in range(100_000):  # the writing thread looks for the loss meanwhile
                pass
        graph.replay()
        session.step(loss=y.sum())

    assert [step.loss for step in steps_of(tmp_path)] == [4.0, 8.0]
