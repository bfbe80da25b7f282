"""PyTorch's ``fully_shard`` on a transformer, with its own data loader."""

import common
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard


def main() -> None:
    common.start()
    dist.init_process_group("gloo")
    model = common.gpt2()
    for block in model.transformer.h:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = common.Texts()
    sampler = torch.utils.data.DistributedSampler(data)
    loader = torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler)
    for step, batch in zip(range(common.STEPS), loader, strict=False):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        common.log(step, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
