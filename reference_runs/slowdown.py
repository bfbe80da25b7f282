"""Makes every operator of a thread take longer, as a slower device would."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Slowdown"]

_CALIBRATION_CALLS = 2000
_COMPUTES = frozenset(("aten", "fsdp"))  # not c10d: a slow device does not make a slow link
_REPEATABLE = frozenset(("mm", "addmm", "bmm", "baddbmm"))  # without side effects


class Slowdown(TorchDispatchMode):
    """While active, each operator takes ``factor`` times as long. Results are the same to the bit.

    On a CPU the thread spins after an operator for a share of the processor time that the operator
    took, within it as traces see it; waiting for others is not computation, and is not stretched.
    What the interception itself costs is measured once and counts as a part of the delay, so
    operators of a few microseconds may take longer than asked. On a GPU matrix products are done
    again, in the share asked for: more kernels, the same on the device's time line.

    Args:
        factor: 1 or more.
    """

    def __init__(self, factor: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._extra = factor - 1
        self._owed_ns = 0.0  # negative: so much was spun ahead
        self._owed_repeats = 0.0
        self._interception_ns = 0.0
        self._interception_ns = _interception_ns(self)

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
        took = time.thread_time_ns() - start
        self._owed_ns += self._extra * took - self._interception_ns
        if self._owed_ns > 0:
            _spin(self._owed_ns)
            self._owed_ns = 0.0
        return result

    def _repeat(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if func.overloadpacket.__name__ not in _REPEATABLE:
            return
        self._owed_repeats += self._extra
        while self._owed_repeats >= 1:
            self._owed_repeats -= 1
            func(*args, **kwargs)


def _spin(ns: float) -> None:
    end = time.thread_time_ns() + ns
    while time.thread_time_ns() < end:
        pass


def _interception_ns(mode: Slowdown) -> float:
    """What one operator costs more inside of ``mode`` than outside, without any delay, ns."""
    x = torch.zeros(1)

    def work() -> None:
        for _ in range(_CALIBRATION_CALLS):
            x.add(1.0)

    extra, mode._extra = mode._extra, 0.0
    try:
        plain = _thread_time_of(work)
        with mode:
            intercepted = _thread_time_of(work)
    finally:
        mode._extra = extra
        mode._owed_ns = 0.0
    return max(0.0, (intercepted - plain) / _CALIBRATION_CALLS)


def _thread_time_of(work: Callable[[], None]) -> int:
    start = time.thread_time_ns()
    work()
    return time.thread_time_ns() - start
