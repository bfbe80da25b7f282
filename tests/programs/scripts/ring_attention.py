"""Context parallelism by hand: keys and values go round a ring of ranks, as in picotron."""

import common
import torch
import torch.distributed as dist

WIDTH, HEADS, LENGTH, BATCH = 128, 4, 128, 4


def passed_on(values, forwards):
    """What the neighbour holds, by a send and a receive that are launched at once."""
    rank, world = dist.get_rank(), dist.get_world_size()
    step = 1 if forwards else -1
    received = torch.empty_like(values)
    operations = [
        dist.P2POp(dist.isend, values.contiguous(), (rank + step) % world),
        dist.P2POp(dist.irecv, received, (rank - step) % world),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return received


class Ring(torch.autograd.Function):
    """The block of the rank before forward, its gradient back to that rank backward."""

    @staticmethod
    def forward(context, values):
        return passed_on(values, forwards=True)

    @staticmethod
    def backward(context, gradient):
        return passed_on(gradient, forwards=False)


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = torch.nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, values):
        batch, length, _ = values.shape
        parts = self.qkv(values).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        query, blocks = parts[0], [parts[1:].contiguous()]
        for _ in range(dist.get_world_size() - 1):
            blocks.append(Ring.apply(blocks[-1]))
        key, value = torch.cat(blocks, dim=3)
        found = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        return values + self.out(found.transpose(1, 2).reshape(batch, length, WIDTH))


def main() -> None:
    common.start()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = torch.nn.Sequential(*(Attention() for _ in range(3)))
    common.watched(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(common.STEPS):
        made = torch.Generator().manual_seed(step)
        whole = torch.randn(BATCH, LENGTH * world, WIDTH, generator=made)
        common.in_loader()
        batch = whole[:, rank * LENGTH : (rank + 1) * LENGTH]
        loss = torch.nn.functional.mse_loss(model(batch), batch.roll(1, 0))
        loss.backward()
        for weight in model.parameters():
            dist.all_reduce(weight.grad)
            weight.grad /= world
        optimizer.step()
        optimizer.zero_grad()
        common.log(step, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
