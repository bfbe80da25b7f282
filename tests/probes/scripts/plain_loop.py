"""A training loop as people write it: DDP where there is a group, its own log of steps."""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--times", type=Path, required=True)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--two-optimizers", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--zero", action="store_true")
    parser.add_argument("--rest", type=float, default=0.0, help="seconds per step")
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank = int(os.environ.get("RANK", "0"))
    model: nn.Module = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8))
    head = nn.Linear(8, 8)
    whole = nn.Sequential(model, head)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        whole = DistributedDataParallel(whole)
    if args.compile:
        whole = torch.compile(whole, backend="eager")
    optimizers: list[torch.optim.Optimizer]
    if args.zero:
        optimizers = [ZeroRedundancyOptimizer(whole.parameters(), torch.optim.AdamW, lr=1e-3)]
    else:
        optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-3)]
    if args.two_optimizers:
        optimizers.append(torch.optim.SGD(head.parameters(), lr=1e-2))
    data = TensorDataset(torch.randn(4096, 64), torch.randint(8, (4096,)))
    loader = DataLoader(data, batch_size=32, num_workers=args.workers)
    batches = iter(loader)

    ends = []
    for step in range(args.steps):
        time.sleep(args.rest)
        for _ in range(args.accumulate):
            x, y = next(batches)
            loss = nn.functional.cross_entropy(whole(x), y)
            (loss / args.accumulate).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        ends.append(time.time_ns())
        print(f"rank {rank} step {step} loss {loss.item()!r}", flush=True)
    args.times.mkdir(parents=True, exist_ok=True)
    (args.times / f"{rank}.json").write_text(json.dumps(ends))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
