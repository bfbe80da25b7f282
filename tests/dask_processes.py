"""A scheduler and workers of Dask, each a process of its own, which a test may kill."""

import os
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

__all__ = ["Processes", "free_port", "processes"]

SCHEDULER = """
import asyncio, sys
from distributed import Scheduler

async def main(port):
    async with Scheduler(host="127.0.0.1", port=port, dashboard=False) as scheduler:
        print("ready", flush=True)
        await scheduler.finished()

asyncio.run(main(int(sys.argv[1])))
"""

WORKER = """
import asyncio, sys
from distributed import Worker

async def main(address):
    async with Worker(address, nthreads=1, dashboard=False) as worker:
        print("ready", flush=True)
        await worker.finished()

asyncio.run(main(sys.argv[1]))
"""


def free_port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


class Processes:
    """A scheduler and its workers.

    Args:
        num_workers: Workers, of one thread each.
        environment: More variables for them.
    """

    def __init__(self, num_workers, environment):
        self.port = free_port()
        self.place = f"127.0.0.1:{self.port}"
        self.environment = {**os.environ, **environment}
        self.started = []
        self.scheduler = self.start(SCHEDULER, str(self.port))
        self.workers = []
        for _ in range(num_workers):
            self.add_worker()

    def add_worker(self, **environment):
        """Another worker, with more variables."""
        self.workers.append(self.start(WORKER, f"tcp://{self.place}", **environment))

    def start(self, code, argument, **environment):
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", code, argument],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**self.environment, **environment},
        )
        self.started.append(process)
        assert process.stdout.readline().strip() == "ready"
        return process


@contextmanager
def processes(num_workers=2, **environment):
    pytest.importorskip("distributed", reason="needs the extra dask")
    made = Processes(num_workers, environment)
    try:
        yield made
    finally:
        for process in reversed(made.started):
            process.kill()
            process.wait()
            process.stdout.close()
