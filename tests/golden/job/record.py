"""Record short jobs of four CPU ranks over gloo, with the Flight Recorder's dump of each rank.

``torchrun --nproc-per-node 4 record.py hsdp gloo-hsdp-4ranks``
"""

import gzip
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import _dump_fr_trace_json
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.profiler import ProfilerActivity, profile, schedule

HIDDEN = 16


class Block(nn.Module):
    """272 + 272 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(HIDDEN, HIDDEN)
        self.second = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(torch.relu(self.first(x)))


def hsdp(blocks: nn.Sequential):
    """Two replicas of two shards: one unit per block."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    for block in blocks:
        fully_shard(block, mesh=mesh)
    model = fully_shard(blocks, mesh=mesh)

    def step() -> None:
        model(torch.randn(4, 8, HIDDEN)).sum().backward()

    return step


def pp(blocks: nn.Sequential):
    """Two stages that exchange one activation and its gradient, two replicas of each."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp_replicate"))
    group, replicas = mesh["pp"].get_group(), mesh["dp_replicate"].get_group()

    def exchange(operation, tensor: torch.Tensor) -> None:
        peer = 1 - dist.get_rank(group)
        ask = dist.P2POp(operation, tensor, group=group, group_peer=peer)
        dist.batch_isend_irecv([ask])[0].wait()

    def step() -> None:
        received = torch.empty(4, 8, HIDDEN)
        if dist.get_rank(group) == 0:
            output = blocks(torch.randn(4, 8, HIDDEN))
            exchange(dist.isend, output.detach())
            exchange(dist.irecv, received)
            output.backward(received)
        else:
            exchange(dist.irecv, received)
            received.requires_grad_()
            blocks(received).sum().backward()
            exchange(dist.isend, received.grad)
        for parameter in blocks.parameters():
            dist.all_reduce(parameter.grad, group=replicas)

    return step


def main(kind: str, folder: Path) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    folder.mkdir(exist_ok=True)
    blocks = nn.Sequential(*[Block() for _ in range(2)])
    step = {"hsdp": hsdp, "pp": pp}[kind](blocks)
    optimizer = torch.optim.SGD(blocks.parameters(), lr=0.01)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=2, warmup=2, active=2),
        record_shapes=True,
        on_trace_ready=lambda p: p.export_chrome_trace(f"{folder}/rank-{rank}.trace.json.gz"),
    ) as profiler:
        for _ in range(6):
            step()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    dump = _dump_fr_trace_json()
    data = dump.encode() if isinstance(dump, str) else dump
    (folder / f"rank-{rank}.flight.json.gz").write_bytes(gzip.compress(data, mtime=0))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # threads of gloo may abort an ordinary exit


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
