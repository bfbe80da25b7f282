"""Record a short data-parallel training run on two CPU ranks (gloo)."""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule


def main(folder: str) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    layers = [torch.nn.Linear(256, 256) for _ in range(4)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=3),
        record_shapes=True,
        on_trace_ready=lambda p: p.export_chrome_trace(f"{folder}/rank-{rank}.pt.trace.json.gz"),
    ) as profiler:
        for _ in range(5):
            loss = model(torch.randn(512, 256)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            dist.barrier()
            profiler.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
