"""Two ranks of DistributedDataParallel that share one GPU; the last one may be late.

::

    python -m benchmarks.gpu_programs.ranks ranks --settings '{"late_rank": "python"}'

NCCL refuses two ranks on one GPU of a host. So each rank has a host name of its own (a UTS
namespace, which needs root) and a NCCL_HOSTID: they are two nodes that talk over sockets.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from benchmarks.gpu_programs.blocks import in_turns
from benchmarks.gpu_programs.data import loader
from benchmarks.gpu_programs.settings import Settings
from benchmarks.gpu_programs.train import Training, parse, train

__all__ = ["RankTraining", "measure"]

RANKS = 2
LATE_MS = 20
NAMED = 'hostname "$0" && exec "$@"'
LIMIT_S = 120


class RankTraining(Training):
    """The training of one rank."""

    def __init__(self, settings: Settings, device: str) -> None:
        is_late = dist.get_rank() == RANKS - 1
        if is_late and settings.late_rank == "loader":
            settings = dataclasses.replace(settings, workers=0)
        if is_late and settings.late_rank == "python":
            settings = dataclasses.replace(settings, spin_ms=2 if settings.tiny else LATE_MS)
        super().__init__("ranks", settings, device)
        self.model = DistributedDataParallel(self.stack, device_ids=[0] if self.cuda else None)

    def _loader(self) -> DataLoader[tuple[Tensor, ...]]:
        place = {"ranks": RANKS, "rank": dist.get_rank()}
        return loader(self.shape, self.settings, cuda=self.cuda, **place)

    def wait(self) -> None:
        """Wait for the GPU and for the other rank."""
        super().wait()
        dist.barrier()


def measure(
    both: Sequence[Settings], device: str, *, blocks: int, steps: int, warm_up: int
) -> dict[str, Any]:
    """As in_turns does, in two ranks."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "times.json"
        task = {
            "both": [dataclasses.asdict(settings) for settings in both],
            **{"blocks": blocks, "steps": steps, "warm_up": warm_up, "results": str(results)},
        }
        code = launch(device, {"measure": task})
        if code or not results.exists():
            raise RuntimeError(f"a rank ended with {code}")
        found: dict[str, Any] = json.loads(results.read_bytes())
        return found


def launch(device: str, task: dict[str, Any]) -> int:
    """Run all ranks; the exit code of the first that fails."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", __spec__.name, "rank", device, json.dumps(task)]
    ranks = []
    for rank in range(RANKS):
        usual: dict[str, object] = {
            "RANK": rank,
            "WORLD_SIZE": RANKS,
            "LOCAL_RANK": 0,
            "LOCAL_WORLD_SIZE": 1,
        }
        usual |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        nccl = {"NCCL_HOSTID": f"node{rank}", "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo"}
        own = [*as_host(f"node{rank}", device), *command]
        env = {name: str(value) for name, value in {**usual, **nccl}.items()}
        ranks.append(subprocess.Popen(own, env={**os.environ, **env}, stdin=subprocess.DEVNULL))
    return ended(ranks)


def as_host(name: str, device: str) -> list[str]:
    """The beginning of a command that runs under another host name, where that is possible."""
    able = device != "cpu" and os.geteuid() == 0 and shutil.which("unshare")
    return ["unshare", "--uts", "sh", "-c", NAMED, name] if able else []


def ended(ranks: Sequence[subprocess.Popen[bytes]]) -> int:
    """Wait for all; if one fails, or after too long a time, end the others."""
    until = time.monotonic() + LIMIT_S
    while any(rank.poll() is None for rank in ranks):
        if any(rank.poll() for rank in ranks) or time.monotonic() > until:
            for rank in ranks:
                rank.terminate()
            break
        time.sleep(0.05)
    return next((code for code in (rank.wait() for rank in ranks) if code), 0)


def work(device: str, task: dict[str, Any]) -> None:
    """One rank: train, or measure."""
    dist.init_process_group("gloo" if device == "cpu" else "nccl")
    if device != "cpu":
        torch.cuda.set_device(0)
    if "train" in task:
        train(RankTraining(Settings(**task["train"]), device), task["steps"])
    else:
        found = measured(device, **task["measure"])
        if dist.get_rank() == 0:
            Path(task["measure"]["results"]).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def measured(
    device: str,
    *,
    both: Sequence[dict[str, Any]],
    blocks: int,
    steps: int,
    warm_up: int,
    results: str,  # noqa: ARG001
) -> dict[str, Any]:
    """Times of this rank; its blocks begin and end together with those of the other."""
    trainings = [RankTraining(Settings(**settings), device) for settings in both]
    with contextlib.ExitStack() as stack:
        for training in trainings:
            stack.callback(training.close)
            with training.ready():
                training.run(warm_up)
                training.wait()
        return in_turns(trainings, blocks, steps)


def main() -> None:
    """Start the ranks, or be one."""
    if sys.argv[1:2] == ["rank"]:
        work(sys.argv[2], json.loads(sys.argv[3]))
        return
    options: argparse.Namespace = parse(__doc__, ("ranks",))
    if options.wait:
        sys.stdin.readline()
    task = {"train": dataclasses.asdict(options.settings), "steps": options.steps}
    sys.exit(launch(options.device, task))


if __name__ == "__main__":
    main()
