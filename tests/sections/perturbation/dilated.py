"""A job on one GPU, run as it is and under a profiler that makes each CPU event longer.

An event-by-event simulation of one CPU thread and one stream. Its arithmetic is its own: the CPU's
clock moves on by what each action takes, the GPU starts a kernel when it is free and launched.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.builders import RankBuilder

US, MS = 1_000, 1_000_000
LATENCY, CALL = 4 * US, 3 * US
QUEUE = 1_024
AHEAD = 50
"""Steps after which the CPU is as far ahead of the GPU as its queue allows."""

Cost = Callable[[str], int]
"""Time in ns that the profiler adds to an event (``op`` or ``launch``)."""


def constant(op_ns: int) -> Cost:
    """The same for all operators, three times as much for launches."""
    return lambda kind: op_ns if kind == "op" else 3 * op_ns


def two_valued(low_ns: int, high_ns: int, seed: int = 0) -> Cost:
    """One of two costs, drawn for each event: buffers are sometimes flushed."""
    drawn = random.Random(seed)
    return lambda kind: drawn.choice((low_ns, high_ns)) * (1 if kind == "op" else 3)


def noisy(op_ns: int, seed: int = 0) -> Cost:
    """Costs with a long tail."""
    drawn = random.Random(seed)
    return lambda kind: round(drawn.expovariate(1 / op_ns)) * (1 if kind == "op" else 3)


def nothing(kind: str) -> int:
    """No profiler."""
    return 0


@dataclass(frozen=True)
class Program:
    """What a step does.

    Args:
        kernels: Kernels per step.
        kernel_ns: Duration of each.
        op_ns: CPU time of an operator, of which each kernel has ``ops``.
        ops: Operators around each launch.
        sync_every: A call that waits for the GPU after so many kernels; 0 for none.
        load_ns: Time in which the loop loads its batch itself.
        worker_ns: Time that a loader's worker takes for a batch; 0 without one.
        pause: Name and duration of other work at the end of the step.
    """

    kernels: int = 300
    kernel_ns: int = 60 * US
    op_ns: int = 4 * US
    ops: int = 6
    sync_every: int = 0
    load_ns: int = 0
    worker_ns: int = 0
    pause: tuple[str, int] = ("", 0)


@dataclass
class Recorded:
    """A run: its trace, and when each step ended on the CPU."""

    trace: RankBuilder = field(default_factory=RankBuilder)
    ends: list[int] = field(default_factory=list)
    loads: list[int] = field(default_factory=list)

    @property
    def step_ns(self) -> float:
        """Mean step without the first ones, in which the CPU gets ahead."""
        return (self.ends[-1] - self.ends[AHEAD]) / (len(self.ends) - AHEAD - 1)


def run(program: Program, steps: int, cost: Cost = nothing) -> Recorded:
    """Run the program and record it."""
    done, cpu, gpu, ready = Recorded(), 0, 0, 0
    starts: list[int] = []
    for number in range(steps):
        begin = cpu
        if program.load_ns or program.worker_ns:
            loaded = cpu
            ready = max(ready, cpu - 2 * program.worker_ns) + program.worker_ns
            cpu = cpu + program.load_ns if program.load_ns else max(cpu + 20 * US, ready)
            done.trace.annotation("enumerate(DataLoader)#_Loader.__next__", loaded, cpu)
            done.loads.append(cpu - loaded)
        for kernel in range(program.kernels):
            for op in range(program.ops):
                opened = cpu
                cpu += program.op_ns + cost("op")
                if op == program.ops - 1:
                    cpu, gpu, starts = _launched(done.trace, program, cost, cpu, gpu, starts)
                done.trace.operator("aten::op", opened, cpu)
            if program.sync_every and kernel % program.sync_every == 0:
                called = cpu
                cpu = max(cpu, gpu) + 5 * US
                done.trace.sync("cudaStreamSynchronize", called, cpu)
        name, length = program.pause
        if length:
            if name:
                done.trace.annotation(name, cpu, cpu + length)
            cpu += length
        done.trace.annotation(f"ProfilerStep#{number}", begin, cpu)
        done.ends.append(cpu)
        cpu += 1 * US
    return done


def _launched(
    trace: RankBuilder, program: Program, cost: Cost, cpu: int, gpu: int, starts: list[int]
) -> tuple[int, int, list[int]]:
    if len(starts) >= QUEUE:
        cpu = max(cpu, starts[-QUEUE])
    called, cpu = cpu, cpu + CALL + cost("launch")
    start = max(gpu, called + LATENCY)
    trace.kernel("gemm", start, start + program.kernel_ns, launched=(called, cpu))
    return cpu, start + program.kernel_ns, [*starts[-QUEUE:], start]


def marks(recorded: Recorded) -> Sequence[tuple[int, int]]:
    """Start and end of each step's mark."""
    rows = [row for row in recorded.trace.host if row["name"].startswith("ProfilerStep#")]
    return [(row["start_ns"], row["end_ns"]) for row in rows]
