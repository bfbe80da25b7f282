"""Megatron-core's tensor-parallel layers and groups, TP 2 x DP 2, on CPU ranks."""

import common
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.transformer_config import TransformerConfig

TENSOR, BATCH, WIDTH = 2, 128, 256


class Block(torch.nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        usual = {"config": config, "init_method": torch.nn.init.xavier_normal_, "bias": False}
        self.up = ColumnParallelLinear(WIDTH, 4 * WIDTH, gather_output=False, **usual)
        self.down = RowParallelLinear(
            4 * WIDTH, WIDTH, input_is_parallel=True, skip_bias_add=False, **usual
        )

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        inner, _ = self.up(values)
        return values + self.down(torch.nn.functional.gelu(inner))[0]


def main() -> None:
    common.start()
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=TENSOR)
    config = TransformerConfig(
        num_layers=3,
        hidden_size=WIDTH,
        num_attention_heads=4,
        tensor_model_parallel_size=TENSOR,
        use_cpu_initialization=True,
    )
    model = torch.nn.Sequential(*(Block(config) for _ in range(3)))
    model.register_forward_pre_hook(lambda *_: common.in_step())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    group = parallel_state.get_data_parallel_group()
    replica, replicas = dist.get_rank(group), dist.get_world_size(group)
    for step in range(common.STEPS):
        made = torch.Generator().manual_seed(step * replicas + replica)
        batch = torch.randn(BATCH, WIDTH, generator=made)
        loss = torch.nn.functional.mse_loss(model(batch), batch.roll(1, 1))
        loss.backward()
        for weight in model.parameters():
            dist.all_reduce(weight.grad, group=group)
            weight.grad /= replicas
        optimizer.step()
        optimizer.zero_grad()
        common.log(step, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
