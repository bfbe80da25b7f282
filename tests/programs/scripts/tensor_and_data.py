"""Tensor and data parallelism by hand, over groups without a description, as picotron does."""

import common
import torch
import torch.distributed as dist

WIDTH, BATCH, TENSOR = 256, 64, 2


class Whole(torch.autograd.Function):
    """Identity forward, the sum over the group backward."""

    @staticmethod
    def forward(context, values, group):
        context.group = group
        return values.view_as(values)

    @staticmethod
    def backward(context, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=context.group)
        return gradient, None


class Sum(torch.autograd.Function):
    """The sum over the group forward, identity backward."""

    @staticmethod
    def forward(context, values, group):
        values = values.clone()
        dist.all_reduce(values, group=group)
        return values

    @staticmethod
    def backward(context, gradient):
        return gradient, None


class Block(torch.nn.Module):
    def __init__(self, group):
        super().__init__()
        self.group = group
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH // TENSOR, bias=False)
        self.down = torch.nn.Linear(4 * WIDTH // TENSOR, WIDTH, bias=False)

    def forward(self, values):
        inner = torch.nn.functional.gelu(self.up(Whole.apply(values, self.group)))
        return values + Sum.apply(self.down(inner), self.group)


def main() -> None:
    common.start()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    rows = [list(range(first, first + TENSOR)) for first in range(0, world, TENSOR)]
    columns = [list(range(first, world, TENSOR)) for first in range(TENSOR)]
    of_rows = [dist.new_group(row) for row in rows]
    of_columns = [dist.new_group(column) for column in columns]
    tensor, data = of_rows[rank // TENSOR], of_columns[rank % TENSOR]
    model = torch.nn.Sequential(*(Block(tensor) for _ in range(3)))
    model.register_forward_pre_hook(lambda *_: common.in_step())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(common.STEPS):
        made = torch.Generator().manual_seed(step * world + rank // TENSOR)
        common.in_loader()
        batch = torch.randn(BATCH, WIDTH, generator=made)
        loss = torch.nn.functional.mse_loss(model(batch), batch.roll(1, 1))
        loss.backward()
        for weight in model.parameters():
            dist.all_reduce(weight.grad, op=dist.ReduceOp.SUM, group=data)
            weight.grad /= dist.get_world_size(data)
        optimizer.step()
        optimizer.zero_grad()
        common.log(step, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
