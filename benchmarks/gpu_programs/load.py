"""Other processes on the same GPU or on the same CPUs, running only when they are wanted."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.gpu_programs.settings import Settings

__all__ = ["Others", "restrict"]

ENDS = "import os, sys\nparent = os.getppid()\n"
COMPUTE = (
    ENDS
    + """
print("ready", flush=True)
while os.getppid() == parent:
    sum(range(100_000))
"""
)
NEIGHBOUR = (
    ENDS
    + """
import torch
device = sys.argv[1]
size = 6144 if device == "cuda" else 64
matrix = torch.randn(size, size, device=device, dtype=torch.bfloat16)
matrix @ matrix
print("ready", flush=True)
while os.getppid() == parent:
    for _ in range(5):
        matrix @ matrix
    if device == "cuda":
        torch.cuda.synchronize()
"""
)
"""Both end with the process that started them."""


def restrict(settings: Settings) -> None:
    """Use only so many CPUs, from now on and in all threads and processes to come."""
    if settings.cpus:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: settings.cpus])


class Others:
    """The processes that the settings ask for, stopped at first."""

    def __init__(self, settings: Settings, device: str) -> None:
        codes = [(COMPUTE, "")] * settings.competitors
        codes += [(NEIGHBOUR, device)] if settings.neighbour else []
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-c", code, argument], stdout=subprocess.PIPE, text=True
            )
            for code, argument in codes
        ]
        for process in self._processes:
            assert process.stdout is not None
            process.stdout.readline()
        self._signal(signal.SIGSTOP)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Let them run."""
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def close(self) -> None:
        """End them."""
        for process in self._processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            process.send_signal(number)
