"""PyTorch's minGPT-ddp example: epochs over a sampler, and snapshots that rank 0 alone writes."""

import tempfile
from pathlib import Path

import common
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

BATCH, STEPS_OF_EPOCH = 4, 12


def main() -> None:
    common.start()
    dist.init_process_group("gloo")
    model = DistributedDataParallel(common.gpt2())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = common.Texts(STEPS_OF_EPOCH * BATCH * dist.get_world_size())
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    with tempfile.TemporaryDirectory() as folder:
        for step in range(common.STEPS):
            if step % STEPS_OF_EPOCH == 0:
                sampler.set_epoch(step // STEPS_OF_EPOCH)
                batches = iter(loader)
            loss = model(**next(batches)).loss
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            common.log(step, loss.item())
            if (step + 1) % STEPS_OF_EPOCH == 0 and common.RANK == 0:
                state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state, Path(folder) / "snapshot.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
