"""Megatron-core's GPT model with tensor parallelism, on CPU ranks."""

import common
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig

TENSOR, BATCH = 2, 4


def main() -> None:
    common.start()
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=TENSOR)
    config = TransformerConfig(
        num_layers=3,
        hidden_size=96,
        num_attention_heads=4,
        tensor_model_parallel_size=TENSOR,
        use_cpu_initialization=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        pipeline_dtype=torch.float32,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
    )
    model = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(),
        vocab_size=common.VOCABULARY,
        max_sequence_length=common.LENGTH,
    )
    common.watched(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = common.Texts(columns=False)
    group = parallel_state.get_data_parallel_group()
    replica, replicas = dist.get_rank(group), dist.get_world_size(group)
    places = torch.arange(common.LENGTH).expand(BATCH, -1)
    future = torch.triu(torch.ones(1, 1, common.LENGTH, common.LENGTH, dtype=torch.bool), 1)
    for step in range(common.STEPS):
        first = BATCH * (step * replicas + replica)
        ids = torch.stack([data[first + number] for number in range(BATCH)])
        loss = model(ids, places, future, labels=ids).mean()
        loss.backward()
        for weight in model.parameters():
            if weight.grad is not None:
                dist.all_reduce(weight.grad, group=group)
                weight.grad /= replicas
        optimizer.step()
        optimizer.zero_grad()
        common.log(step, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
