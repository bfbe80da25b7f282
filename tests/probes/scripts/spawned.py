"""Ranks started by torch.multiprocessing, their rank an argument: torch's own DDP tutorial."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def demo(rank: int, world_size: int, fails: bool) -> None:
    torch.set_num_threads(1)
    os.environ["MASTER_ADDR"] = "localhost"
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    model = DistributedDataParallel(nn.Linear(10, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for step in range(14):
        optimizer.zero_grad()
        nn.MSELoss()(model(torch.randn(20, 10)), torch.randn(20, 5)).backward()
        optimizer.step()
        if fails and rank == 1 and step == 6:
            raise ValueError("rank 1 has had enough")
    dist.destroy_process_group()


def main() -> None:
    os.environ["MASTER_PORT"] = sys.argv[1]
    mp.spawn(demo, args=(2, sys.argv[2:] == ["fail"]), nprocs=2)


if __name__ == "__main__":
    main()
