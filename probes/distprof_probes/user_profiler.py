"""The user's own profiler has priority: seeing it before it meets ours.

torch allows one profiler per thread. The second to start fails in the middle of the training code
("Profiler is already enabled on this thread"), so ours must be gone before the user's begins. Every
profiler of torch passes through two functions of ``torch.autograd.profiler``; while we wait for our
window or record, these tell us first, then do what they always do.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

__all__ = ["UserProfilerWatch", "is_profiler_running", "tool_that_holds_cupti"]

_ENTRANCES = ("_prepare_profiler", "_enable_profiler")

# Set by tools that attach to CUDA through CUPTI, of which the driver allows one at a time.
_CUPTI_TOOLS = {
    "NSYS_PROFILING_SESSION_ID": "Nsight Systems",
    "NV_COMPUTE_PROFILER_PERFWORKS_DIR": "Nsight Compute",
    "CUDA_INJECTION64_PATH": "a tool injected with CUDA_INJECTION64_PATH",
}


def is_profiler_running() -> bool:
    """Whether some torch profiler records in this thread, or in any if torch knows."""
    torch = sys.modules["torch"]
    enabled = getattr(torch._C._autograd, "_profiler_enabled", None)
    if enabled is not None and enabled():
        return True
    return bool(getattr(torch.autograd.profiler, "_is_profiler_enabled", False))


def tool_that_holds_cupti() -> str:
    """Name of the tool that holds CUPTI in this process; empty if none is known."""
    return next((tool for name, tool in _CUPTI_TOOLS.items() if os.environ.get(name)), "")


class UserProfilerWatch:
    """Calls back before a profiler that is not ours is prepared or started.

    Args:
        give_way: Must end our profiler; it must not raise.
    """

    def __init__(self, give_way: Callable[[], None]) -> None:
        self._give_way = give_way
        self._ours = threading.local()
        self._replaced: dict[str, tuple[Any, Any]] = {}

    def install(self) -> None:
        """Begin to watch; with a torch that lacks these functions nothing is watched."""
        module = sys.modules["torch"].autograd.profiler
        for name in _ENTRANCES:
            original = getattr(module, name, None)
            if original is not None and name not in self._replaced:
                watched = self._watched(original)
                self._replaced[name] = (original, watched)
                setattr(module, name, watched)

    def remove(self) -> None:
        """Put everything back, unless somebody else has wrapped it since."""
        if not self._replaced:
            return
        module = sys.modules["torch"].autograd.profiler
        for name, (original, watched) in self._replaced.items():
            if getattr(module, name) is watched:
                setattr(module, name, original)
        self._replaced.clear()

    @contextmanager
    def ours(self) -> Iterator[None]:
        """What is started inside is our own profiler."""
        self._ours.is_inside = True
        try:
            yield
        finally:
            self._ours.is_inside = False

    def _watched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def watched(*args: Any, **keywords: Any) -> Any:
            if self._replaced and not getattr(self._ours, "is_inside", False):
                self._give_way()
            return original(*args, **keywords)

        return watched
