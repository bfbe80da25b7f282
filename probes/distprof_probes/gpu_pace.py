"""Whether the GPU is behind its CPU at the end of a step, without a profiler and without waiting.

An event is recorded at the end of each step, and asked for at the end of the next one. If it has
not passed by then, the GPU is more than a step behind: the GPU sets the pace. A CPU that is slower
than its GPU, or that waits for input, never gets that far ahead.
"""

from __future__ import annotations

import sys
from typing import Any


class GpuPace:
    """Asks, at the end of each step, for the event of the step before."""

    def __init__(self) -> None:
        self._events: tuple[Any, Any] | None = None
        self._stream: Any = None
        self._is_waiting = False
        self._has_failed = False

    def step_ended(self) -> bool | None:
        """Whether the GPU has not finished the step before; None if that is unknown."""
        torch = sys.modules.get("torch")
        if self._has_failed or torch is None or not torch.cuda.is_initialized():
            return None
        try:
            return self._asked(torch.cuda)
        except Exception:  # torch may raise anything; training must continue
            self._has_failed = True
            return None

    def forget(self) -> None:
        """The next step's end has no step before: this one was not observed."""
        self._is_waiting = False

    def _asked(self, cuda: Any) -> bool | None:
        if cuda.is_current_stream_capturing():  # an event would become part of the graph
            self._is_waiting = False
            return None
        if self._events is None:
            self._events = cuda.Event(), cuda.Event()
            self._stream = cuda.current_stream()
        before, event = self._events
        is_behind = not before.query() if self._is_waiting else None
        event.record(self._stream)
        self._events, self._is_waiting = (event, before), True
        return is_behind
