"""Two Dask workers on this machine compared with two local processes, and the driver's share.

Each rank is the same real trace (two A100, three steps) with its rank in the name of the file. The
relevant numbers are wall and CPU time on the cluster relative to local processes, and the share of
all CPU time that the driver takes, which is the process that the user starts. The latter grows with
the collectives of all ranks and not with their bytes, so it is smaller for longer traces.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from grow_trace import grow
from many_ranks import TRACE
from measuring import Cost, machine, measure, medians, print_table, rounds, versions

PROGRAM = """
import asyncio, sys
from distributed import Scheduler, Worker

async def main(kind, place):
    host, _, port = place.rpartition(":")
    made = (
        Scheduler(host=host, port=int(port), dashboard=False)
        if kind == "scheduler"
        else Worker(f"tcp://{place}", nthreads=1, dashboard=False)
    )
    async with made:
        print("ready", flush=True)
        await made.finished()

asyncio.run(main(*sys.argv[1:]))
"""


@dataclass(frozen=True)
class Cluster:
    """A scheduler and workers on this machine.

    Args:
        place: Host and port.
        pids: Processes, the scheduler first.
    """

    place: str
    pids: tuple[int, ...]

    def cpu_s(self) -> tuple[float, float]:
        """CPU seconds so far, of the scheduler and of all workers."""
        scheduler, *workers = map(cpu_of, self.pids)
        return scheduler, sum(workers)


def cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def running_cluster(num_workers: int) -> Iterator[Cluster]:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{held.getsockname()[1]}"
    started: list[subprocess.Popen[str]] = []
    try:
        for kind in ("scheduler", *("worker",) * num_workers):
            command = [sys.executable, "-W", "ignore", "-c", PROGRAM, kind, place]
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            started.append(process)
            assert process.stdout is not None
            assert process.stdout.readline().strip() == "ready"
        yield Cluster(place, tuple(process.pid for process in started))
    finally:
        for process in reversed(started):
            process.kill()
            process.wait()


def make_job(folder: Path, num_ranks: int, megabytes: float) -> int:
    """Write ``num_ranks`` traces into ``folder``; returns the bytes of JSON."""
    text = b"".join(grow(gzip.decompress(TRACE.read_bytes()), megabytes)).decode()
    members = ", ".join(map(str, range(num_ranks)))
    text = text.replace('"world_size": 2', f'"world_size": {num_ranks}')
    text = text.replace('"ranks": [0, 1]', f'"ranks": [{members}]')
    text = text.replace('"Process Group Ranks": "[0, 1]"', f'"Process Group Ranks": "[{members}]"')
    text = text.replace('"Group size": 2', f'"Group size": {num_ranks}')
    data = re.sub(r'"rank": 0,?\s*', "", text, count=1).encode()
    packed = gzip.compress(data, 6, mtime=0)
    for rank in range(num_ranks):
        end = gzip.compress(b" " * (rank + 1), mtime=0)  # different bytes, the same trace
        (folder / f"rank{rank}.json.gz").write_bytes(packed + end)
    return num_ranks * len(data)


def analyze(folder: Path, executor: str) -> Cost:
    with tempfile.TemporaryDirectory() as cache:
        where = ["--cache-dir", cache, "--executor", executor, "-o", f"{cache}/report.json"]
        command = [sys.executable, "-m", "distprof", "analyze", str(folder), "--format", "json"]
        return measure([*command, *where])


def import_once(cluster: Cluster, num_workers: int) -> None:
    """Import modules in the workers first: they outlive a command, so imports are not its time."""
    with tempfile.TemporaryDirectory() as name:
        make_job(Path(name), 4 * num_workers, 1)
        for executor in (f"process:{num_workers}", f"tcp://{cluster.place}"):
            analyze(Path(name), executor)


def on_cluster(folder: Path, cluster: Cluster, shares: list[tuple[float, float, float]]) -> Cost:
    before = cluster.cpu_s()
    cost = analyze(folder, f"tcp://{cluster.place}")
    scheduler, workers = (b - a for a, b in zip(before, cluster.cpu_s(), strict=True))
    shares.append((cost.cpu_s, scheduler, workers))
    return cost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[32])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--megabytes", type=float, default=10, help="JSON of each rank")
    options = parser.parse_args()
    print(machine())
    print(versions("distprof", "distributed", "numpy", "pyarrow", "msgspec"))
    rows: list[tuple[str, ...]] = []
    with running_cluster(options.workers) as cluster:
        import_once(cluster, options.workers)
        for num_ranks in options.ranks:
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                num_bytes = make_job(folder, num_ranks, options.megabytes)
                shares: list[tuple[float, float, float]] = []
                costs = rounds(
                    {
                        "processes": partial(analyze, folder, f"process:{options.workers}"),
                        "Dask": partial(on_cluster, folder, cluster, shares),
                    },
                    options.rounds,
                )
            pairs = zip(costs["Dask"], costs["processes"], strict=True)
            local, there = medians(costs["processes"]), medians(costs["Dask"])
            driver, scheduler, workers = (
                statistics.median(part) for part in zip(*shares, strict=True)
            )
            rows.append(
                (
                    str(num_ranks),
                    f"{num_bytes / 1e6:,.0f}",
                    f"{local.wall_s:.1f}",
                    f"{there.wall_s:.1f}",
                    f"{statistics.median(a.wall_s / b.wall_s for a, b in pairs):.2f}",
                    f"{local.cpu_s:.1f}",
                    f"{(driver + scheduler + workers) / local.cpu_s:.2f}",
                    f"{driver:.1f}",
                    f"{scheduler:.1f}",
                    f"{workers:.1f}",
                    f"{100 * driver / (driver + scheduler + workers):.1f}",
                    f"{there.peak_bytes / 1e6:.0f}",
                )
            )
    header = (
        *("ranks", "MB", "processes s", "Dask s", "ratio", "processes CPU s", "ratio"),
        *("driver CPU s", "scheduler CPU s", "workers CPU s", "driver %", "driver MB"),
    )
    print_table(header, rows)


if __name__ == "__main__":
    main()
