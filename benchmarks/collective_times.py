"""The cost of reading the Flight Recorder of a rank while it trains.

::

    python benchmarks/collective_times.py
    python benchmarks/collective_times.py --entries 2000 20000 --rounds 20

One process records operations of gloo, whose entries are as long as NCCL's, and reads them as the
probe does, through torch's worker server. A thread runs Python and collectives all the time, like a
training, alternately while the recorder is read without a pause and while it is not. Its pace in
both cases gives the cost of the probe, which pauses for 200 times as long as it reads. Limit: 0.5
%.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from measuring import machine, print_table, versions

TURN_S = 1.0


def main() -> None:
    """Run each ring in a separate process: its size is fixed when the first group is made."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--entries", type=int, nargs="+", default=[2_000, 20_000])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(msgspec.json.encode(measured(options.one, options.rounds)).decode())
        return
    print(f"{machine()}; {versions('torch')}")
    rows = []
    for entries in options.entries:
        command = [sys.executable, __file__, "--one", str(entries), "--rounds", str(options.rounds)]
        environment = {**os.environ, "TORCH_FR_BUFFER_SIZE": str(entries)}
        done = subprocess.run(command, env=environment, capture_output=True, check=True, text=True)
        rows.append(
            (f"{entries:,}", *msgspec.json.decode(done.stdout.splitlines()[-1], type=list[str]))
        )
    title = ("entries", "CPU per reading", "of it the probe's thread", "pace while read", "cost")
    print_table(title, rows)


def measured(entries: int, rounds: int) -> list[str]:
    """One row of the table."""
    import torch
    import torch.distributed as dist
    import torch.distributed.debug._handlers
    from distprof_probes.probes import collective_times
    from torch._C._distributed_c10d import HashStore, _WorkerServer

    collective_times._HANDLER = "fr_trace_json"
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    tensor = torch.ones(1_000)
    for _ in range(entries):
        dist.all_reduce(tensor)
    path = str(Path(tempfile.mkdtemp()) / "s")
    server = _WorkerServer(path)
    reader = Reader(path)
    costs = [reader.read() for _ in range(rounds)]
    pace = Pace(lambda: dist.all_reduce(tensor))
    pace.start()
    ratios = []
    for _ in range(rounds):
        alone = pace.during(lambda: time.sleep(0.05))
        ratios.append(pace.during(reader.read) / alone)
    pace.ended.set()
    pace.join()
    ratio, rest = statistics.median(ratios), collective_times.REST
    row = [
        f"{statistics.median(cpu for cpu, _ in costs) * 1e3:.1f} ms",
        f"{statistics.median(own for _, own in costs) * 1e3:.1f} ms",
        f"{ratio:.0%}",
        f"{max(1 - ratio, 0) / (1 + rest):.3%}",
    ]
    print(msgspec.json.encode(row).decode(), flush=True)
    del server
    os._exit(0)  # otherwise torch's worker server waits for its clients


class Reader:
    """Reads and sorts like the probe."""

    def __init__(self, path: str) -> None:
        from distprof_probes.probes.collective_steps import CollectiveSteps, Dump, Window

        self._path = path
        self._window, self._steps = Window, CollectiveSteps()
        self._decoder = msgspec.json.Decoder(Dump)

    def read(self) -> tuple[float, float]:
        """CPU seconds of the process, and of this thread."""
        from distprof_probes.probes.collective_times import _fetched

        process_s, thread_s = time.process_time(), time.thread_time()
        dump = self._decoder.decode(_fetched(self._path, os.getpid()))
        now_ns = time.time_ns()
        self._steps.windows.append(self._window(0, now_ns - 5 * 10**9, now_ns))
        self._steps.take(dump, asked_ns=now_ns)
        return time.process_time() - process_s, time.thread_time() - thread_s


class Pace(threading.Thread):
    """A thread that works all the time, and counts rounds."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.ended = threading.Event()
        self._work = work
        self._count = 0

    def run(self) -> None:
        """Work."""
        while not self.ended.is_set():
            self._work()
            self._count += 1

    def during(self, activity: Callable[[], object]) -> float:
        """Rounds per second while an action is repeated."""
        began, count = time.perf_counter(), self._count
        while time.perf_counter() - began < TURN_S:
            activity()
        return (self._count - count) / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
