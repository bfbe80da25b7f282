"""Reads the values of tensors without waiting for the GPU."""

from __future__ import annotations

import sys
from typing import Any

_FREE: dict[tuple[int, str], list[Any]] = {}  # pinned buffers to reuse, by size and type
_MAX_FREE = 64
_MARK = 0x7FF8_DEAD_BEEF_0001  # as float64: a NaN that no computation produces


class HostCopy:
    """A tensor's values on their way to the CPU, as a flat list of numbers.

    A CPU tensor is read at once. For a GPU tensor, a copy into pinned memory is enqueued on the
    current stream, behind the work that computes the values. The buffer holds a mark until the copy
    overwrites it, so any thread can detect arrival without calling CUDA. A CUDA call from another
    thread would break a graph that the training thread is capturing.

    Args:
        tensor: Any tensor; it is detached and only read.
    """

    def __init__(self, tensor: Any) -> None:
        self._values: list[float] | None = None
        self._buffer: Any = None
        values = tensor.detach()
        if values.device.type == "cuda":
            self._enqueue(values)
        else:
            self._values = values.flatten().tolist()

    def _enqueue(self, values: Any) -> None:
        torch = sys.modules["torch"]
        dtype = torch.float64 if values.is_floating_point() else torch.int64
        free = _FREE.get((values.numel(), str(dtype)))
        self._buffer = (
            free.pop() if free else torch.empty(values.numel(), dtype=dtype, pin_memory=True)
        )
        self._buffer.view(torch.int64).fill_(_MARK)
        self._buffer.copy_(values.flatten(), non_blocking=True)

    def is_ready(self) -> bool:
        """Whether the values have arrived. Any thread may call this; it does not call CUDA."""
        if self._values is not None:
            return True
        torch = sys.modules["torch"]
        return _MARK not in self._buffer.view(torch.int64).tolist()

    def values(self) -> list[float]:
        """The numbers, flat, in the tensor's order. Call it only after :meth:`is_ready`."""
        if self._values is None:
            self._values = self._buffer.tolist()
            kept = _FREE.setdefault((self._buffer.numel(), str(self._buffer.dtype)), [])
            if len(kept) < _MAX_FREE:
                kept.append(self._buffer)
            self._buffer = None
        return self._values
