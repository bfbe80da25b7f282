"""Makes the operators of a thread take longer, as on a slower GPU or CPU, or adds more of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_CALIBRATION_ROUNDS = 9
_LEAST_SPIN_NS = 5_000  # shorter spins would mostly read the clock
_COMPUTES = frozenset(("aten", "fsdp"))  # not c10d: a slow GPU does not make a slow link
_REPEATABLE = frozenset(("mm", "addmm", "bmm", "baddbmm"))  # without side effects


class Slowdown(TorchDispatchMode):
    """While active, each operator takes ``factor`` times as long. Results are bit-identical.

    On a CPU, the thread spins after an operator for a share of the CPU time that the operator took;
    in traces the spin is part of the operator. Waiting for other ranks is not stretched. The cost
    of the interception is measured once and counts as part of the delay, so operators of a few
    microseconds may take longer than requested. On a GPU, the requested share of the matrix
    products is repeated: more kernels, with the same effect on the GPU's time line.

    Args:
        factor: 1 or more.
        work: Factor of the amount of work, 1 or more: matrix products are repeated, as more layers
            would do; on a CPU until they have taken the requested time.
    """

    def __init__(self, factor: float = 1.0, *, work: float = 1.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._extra = factor - 1
        self._more = work - 1
        self._owed_ns = 0.0  # negative: this much was spun ahead
        self._owed_work_ns = 0.0
        self._owed_repeats = 0.0
        self._num_operators = 0
        self._interception_ns = 0.0
        self._interception_ns = self._calibrated_ns()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run one operator, and delay."""
        start = time.thread_time_ns()
        result = func(*args, **(kwargs or {}))
        if func.namespace not in _COMPUTES:
            return result
        if isinstance(result, torch.Tensor) and result.device.type == "cuda":
            self._repeat(func, args, kwargs or {})
            return result
        self._num_operators += 1
        end = time.thread_time_ns()
        if self._more:
            self._owed_work_ns += self._more * (end - start) - self._interception_ns
            self._add_work(end - start, func, args, kwargs or {})
        self._owed_ns += self._extra * (end - start) - self._interception_ns
        if self._owed_ns > _LEAST_SPIN_NS:
            self._owed_ns -= _spin(end, self._owed_ns)
        return result

    def _add_work(
        self, took_ns: int, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Repeat a matrix product as often as it fits into the outstanding time."""
        if func.overloadpacket.__name__ not in _REPEATABLE:
            return
        while self._owed_work_ns >= max(took_ns, 1):
            self._owed_work_ns -= _thread_time_of(lambda: func(*args, **kwargs))

    def _repeat(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if func.overloadpacket.__name__ not in _REPEATABLE:
            return
        self._owed_repeats += (1 + self._extra) * (1 + self._more) - 1
        while self._owed_repeats >= 1:
            self._owed_repeats -= 1
            func(*args, **kwargs)

    def _calibrated_ns(self) -> float:
        """Cost of intercepting one operator, without any delay, in ns."""
        work, extra, more = _small_training(), self._extra, self._more
        self._extra = self._more = 0.0
        found = []
        for _ in range(_CALIBRATION_ROUNDS):
            plain = _thread_time_of(work)
            self._num_operators = 0
            with self:
                intercepted = _thread_time_of(work)
            found.append((intercepted - plain) / self._num_operators)
        self._extra, self._more = extra, more
        return max(0.0, median(found))


def _spin(start: int, ns: float) -> int:
    """Use up CPU time since ``start``; return the amount used."""
    now = start
    while now - start < ns:
        now = time.thread_time_ns()
    return now - start


def _small_training() -> Callable[[], None]:
    """A few milliseconds of forward and backward.

    The matrices are large enough to evict Python from the CPU caches between operators, as a
    model's matrices do, which doubles the cost of interception.
    """
    weights = [torch.zeros(256, 256, requires_grad=True) for _ in range(8)]
    x = torch.zeros(128, 256)

    def work() -> None:
        hidden = x
        for weight in weights:
            hidden = hidden + torch.nn.functional.linear(hidden, weight).view(128, 256)
        hidden.sum().backward()  # type: ignore[no-untyped-call]

    return work


def _thread_time_of(work: Callable[[], None]) -> int:
    start = time.thread_time_ns()
    work()
    return time.thread_time_ns() - start
