"""A DDP training of a few epochs, set up well or badly as its options say."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Samples(Dataset):
    """Made of noise, each after a while."""

    def __init__(self, rest_s: float) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(96, 64, generator=generator)
        self.y = torch.randn(96, 8, generator=generator)
        self.rest_s = rest_s

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(self.rest_s)
        return self.x[index], self.y[index]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--rest", type=float, default=0.0, help="seconds per sample")
    parser.add_argument("--plain", action="store_true", help="no DistributedSampler")
    parser.add_argument("--no-set-epoch", action="store_true")
    parser.add_argument("--unused", action="store_true", help="search for unused parameters")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8))
    model = DistributedDataParallel(model, find_unused_parameters=args.unused)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    samples = Samples(args.rest)
    sampler = None if args.plain else DistributedSampler(samples)
    loader = DataLoader(
        samples,
        batch_size=8,
        sampler=sampler,
        shuffle=args.plain,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
    )
    for epoch in range(4):
        if sampler is not None and not args.no_set_epoch:
            sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.01)  # a model of some size
        print(f"rank {dist.get_rank()} epoch {epoch} loss {loss.item()!r}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
