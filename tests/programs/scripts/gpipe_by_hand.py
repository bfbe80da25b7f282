"""A pipeline by hand: all forward passes, then all backward passes, blocking sends."""

import common
import torch
import torch.distributed as dist

WIDTH, BATCH, PARTS = 384, 32, 4


def main() -> None:
    common.start()
    dist.init_process_group("gloo")
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()) for _ in range(6)]
    model = torch.nn.Sequential(*layers)
    model.register_forward_pre_hook(lambda *_: common.in_step())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(common.STEPS):
        made = torch.Generator().manual_seed(step)
        common.in_loader()
        batch = torch.randn(BATCH * PARTS, WIDTH, generator=made).chunk(PARTS)
        inputs, outputs, total = [], [], 0.0
        for part in batch:
            values = part if rank == 0 else torch.empty(BATCH, WIDTH)
            if rank > 0:
                dist.recv(values, rank - 1)
            inputs.append(values.requires_grad_())
            outputs.append(model(values))
            if rank < last:
                dist.send(outputs[-1].detach(), rank + 1)
        for part, values, result in zip(batch, inputs, outputs, strict=True):
            if rank == last:
                loss = torch.nn.functional.mse_loss(result, part)
                loss.backward()
                total += loss.item()
            else:
                gradient = torch.empty(BATCH, WIDTH)
                dist.recv(gradient, rank + 1)
                result.backward(gradient)
            if rank > 0:
                dist.send(values.grad, rank - 1)
        optimizer.step()
        optimizer.zero_grad()
        common.log(step, total)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
