"""PyTorch's sequence-parallel example: ``parallelize_module`` on a feed-forward block."""

import os

import common
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

WIDTH, INNER, LENGTH = 192, 512, 128


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, INNER)
        self.down = torch.nn.Linear(INNER, WIDTH)

    def forward(self, values):
        return self.down(torch.nn.functional.relu(self.up(values)))


def main() -> None:
    common.start()
    mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
    rank, world = dist.get_rank(), dist.get_world_size()
    plan = {
        "up": ColwiseParallel(input_layouts=Shard(0)),
        "down": RowwiseParallel(output_layouts=Shard(0)),
    }
    blocks = [parallelize_module(Block(), mesh, plan) for _ in range(3)]
    model = common.watched(torch.nn.Sequential(*blocks))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    for step in range(common.STEPS):
        made = torch.Generator().manual_seed(step)
        whole = torch.randn(LENGTH * world, WIDTH, generator=made)
        common.in_loader()
        output = model(whole[rank * LENGTH : (rank + 1) * LENGTH])
        loss = output.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        common.log(step, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
