"""Operators that take longer, by CPU time: other programs on this machine do not matter."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median

import pytest
import torch
from distprof_runs.faults import slowdown as slow
from distprof_runs.faults.slowdown import Slowdown
from distprof_runs.options import ModelOptions
from distprof_runs.workloads.model import Transformer, initialise

from tests.drawn import some

MODEL = ModelOptions(
    layers=1, hidden=256, heads=4, kv_heads=4, ffn=512, sequence=128, vocabulary=256
).resolved()
WIDTH = 768  # products long enough that what other programs evict from the caches matters little


def thread_time(work: Callable[[], object]) -> int:
    start = time.thread_time_ns()
    work()
    return time.thread_time_ns() - start


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def work() -> Callable[[], None]:
    """Forward and backward of four layers: 12 products of about 10 ms."""
    weights = [torch.zeros(WIDTH, WIDTH, requires_grad=True) for _ in range(4)]
    x = torch.zeros(WIDTH, WIDTH)

    def train() -> None:
        hidden = x
        for weight in weights:
            weight.grad = None  # under a dispatch mode, gradients are not accumulated in place
            hidden = torch.nn.functional.linear(hidden, weight)
        hidden.sum().backward()

    train()
    return train


def inside(slowdown: Slowdown, work: Callable[[], None]) -> Callable[[], None]:
    def slowed() -> None:
        with slowdown:
            work()

    return slowed


def stretch(new: Callable[[], Slowdown], work: Callable[[], None], factor: float) -> float:
    """How many times as long ``work`` takes: the first of five rounds near ``factor``, or the last.

    What interception costs is measured when a slowdown is made: load that begins after it spoils
    a whole round.
    """
    for _ in range(5):
        slowed = inside(new(), work)
        ratio = median(thread_time(slowed) / thread_time(work) for _ in range(9))
        if 0.93 * factor < ratio < 1.2 * factor:
            break
    return ratio


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("factor", some([1.5, 2.0], always=lambda factor: factor == 2.0))
def test_training_takes_so_many_times_as_long(factor: float, work: Callable[[], None]) -> None:
    """A little more than asked, where operators are short; never much less."""
    assert 0.93 * factor < stretch(lambda: Slowdown(factor), work, factor) < 1.2 * factor


@pytest.mark.usefixtures("one_thread")
def test_more_work_takes_its_time_in_more_matrix_products(work: Callable[[], None]) -> None:
    assert 0.93 * 1.5 < stretch(lambda: Slowdown(work=1.5), work, 1.5) < 1.2 * 1.5
    with torch.profiler.profile() as plain:
        work()
    with torch.profiler.profile() as longer:
        inside(Slowdown(work=1.5), work)()
    assert products(longer) > products(plain)


def products(profile: torch.profiler.profile) -> int:
    return sum(event.name in ("aten::mm", "aten::addmm", "aten::bmm") for event in profile.events())


def test_results_are_the_same_to_the_bit() -> None:
    model = Transformer(MODEL)
    initialise(model, 0)
    tokens = torch.arange(128)[None]
    plain = model(tokens)
    with Slowdown(1.5, work=1.5):
        slowed = model(tokens)
    assert torch.equal(plain, slowed)


def test_collectives_are_not_stretched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow device does not make a slow link, nor does it copy for one."""
    slowdown = Slowdown(50.0)
    spun: list[float] = []
    monkeypatch.setattr(slow, "_spin", lambda start, ns: spun.append(ns) or int(ns))
    x = torch.zeros(1000, 1000)
    slowdown.__torch_dispatch__(FakeCollective(), [], (x,))
    assert spun == []
    with slowdown:
        torch.mm(x, x)
    assert len(spun) == 1


class FakeCollective:
    namespace = "c10d"

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x @ x
