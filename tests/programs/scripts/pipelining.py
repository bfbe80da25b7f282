"""PyTorch's ``torch.distributed.pipelining`` with two stages."""

import sys

import common
import torch
import torch.distributed as dist
from torch.distributed import pipelining

WIDTH, BATCH, PARTS = 384, 32, 4


def main() -> None:
    common.start()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()) for _ in range(6)]
    module = torch.nn.Sequential(*layers)
    module.register_forward_pre_hook(lambda *_: common.in_step())
    stage = pipelining.PipelineStage(module, rank, world, torch.device("cpu"))
    kind = getattr(pipelining, sys.argv[1] if sys.argv[1:] else "Schedule1F1B")
    schedule = kind(stage, PARTS, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for step in range(common.STEPS):
        made = torch.Generator().manual_seed(step)
        common.in_loader()
        batch = torch.randn(BATCH * PARTS, WIDTH, generator=made)
        losses: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(batch)
        else:
            schedule.step(target=batch, losses=losses)
        optimizer.step()
        optimizer.zero_grad()
        common.log(step, sum(float(loss) for loss in losses))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
