"""Two ranks, of which the last stops answering after some steps, as a lost lock would make it."""

import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


def wait_for_a_lock_that_nobody_gives_back() -> None:
    threading.Event().wait()


def main() -> None:
    hangs_at = int(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = nn.Linear(32, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = 0
    while True:
        model(torch.randn(8, 32)).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.01)
        step += 1
        if Path(sys.argv[2]).exists() and step >= hangs_at and dist.get_rank() == 1:
            wait_for_a_lock_that_nobody_gives_back()


if __name__ == "__main__":
    main()
