"""Run a command and measure it: CPU seconds, wall seconds and peak memory, children included."""

from __future__ import annotations

import compileall
import os
import platform
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = [
    "Cost",
    "compile_as_installed",
    "machine",
    "measure",
    "medians",
    "print_table",
    "rounds",
    "versions",
]

MB = 1e6
PACKAGE = Path(__file__).resolve().parent.parent / "distprof"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of one command.

    Args:
        cpu_s: User and system time of the process and the children it waited for.
        wall_s: Time from start to end.
        peak_bytes: Largest resident set of any one process of the tree.
        tree_bytes: Largest sum of proportional set sizes over the tree, 0 when not sampled.
        output: What it printed.
    """

    cpu_s: float
    wall_s: float
    peak_bytes: int
    tree_bytes: int
    output: str


def measure(
    command: Sequence[str], *, tree: bool = False, env: dict[str, str] | None = None
) -> Cost:
    """Run ``command`` to its end.

    Args:
        command: The program and its arguments.
        tree: Whether to sample the memory of the whole process tree; the CPU cost is not counted.
        env: Variables to add to the environment.

    Raises:
        RuntimeError: If it fails; the message ends with what it printed.
    """
    compile_as_installed()
    started = time.perf_counter()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **(env or {})},
    )
    sampler = _TreeSampler(process.pid) if tree else None
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall_s = time.perf_counter() - started
    if process.returncode != 0:
        raise RuntimeError(
            f"{' '.join(command)} ended with {process.returncode}:\n{output[-2000:]}"
        )
    return Cost(
        cpu_s=usage.ru_utime + usage.ru_stime,
        wall_s=wall_s,
        peak_bytes=usage.ru_maxrss * 1024,
        tree_bytes=sampler.stop() if sampler else 0,
        output=output,
    )


@cache
def compile_as_installed() -> None:
    """Keep compiled modules next to the sources, as pip does for every package that it installs."""
    compileall.compile_dir(PACKAGE, quiet=2)


class _TreeSampler:
    """Watches the memory of a process and its descendants ten times a second."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._peak = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        self._done.set()
        self._thread.join()
        return self._peak

    def _watch(self) -> None:
        while not self._done.wait(0.1):
            self._peak = max(self._peak, sum(map(_proportional_bytes, _descendants(self._pid))))


def _descendants(pid: int) -> list[int]:
    found = [pid]
    for parent in found:
        try:
            children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        except OSError:
            continue  # it ended between two samples
        found += map(int, children)
    return found


def _proportional_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def rounds(contestants: dict[str, Callable[[], Cost]], count: int) -> dict[str, list[Cost]]:
    """Measure all contestants alternately, ``count`` times, so that noise affects them equally."""
    costs: dict[str, list[Cost]] = {name: [] for name in contestants}
    for number in range(count):
        order = list(contestants.items())
        for name, run in order if number % 2 == 0 else reversed(order):
            costs[name].append(run())
    return costs


def medians(costs: Sequence[Cost]) -> Cost:
    """The median of each quantity."""
    return Cost(
        cpu_s=statistics.median(cost.cpu_s for cost in costs),
        wall_s=statistics.median(cost.wall_s for cost in costs),
        peak_bytes=int(statistics.median(cost.peak_bytes for cost in costs)),
        tree_bytes=int(statistics.median(cost.tree_bytes for cost in costs)),
        output=costs[-1].output,
    )


def cpu_ratio(slow: Sequence[Cost], fast: Sequence[Cost]) -> float:
    """Median over the rounds of the CPU of ``slow`` over the CPU of ``fast``."""
    return statistics.median(a.cpu_s / b.cpu_s for a, b in zip(slow, fast, strict=True))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A Markdown table, columns aligned."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, ["-" * width for width in widths], *rows):
        print("| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |")


def machine() -> str:
    """Processor, cores and memory, as a line."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}"


def versions(*packages: str) -> str:
    """``name version`` of each installed package."""
    found = []
    for package in packages:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"{package} absent")
    return ", ".join(found)
