"""DeepSpeed's engine with ZeRO, two batches to an update."""

import sys

import common
import deepspeed
import torch


def main() -> None:
    common.start()
    deepspeed.init_distributed(dist_backend="gloo")
    model = common.gpt2()
    stage = int(sys.argv[1]) if sys.argv[1:] else 2
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }
    parts = [
        [p for p in model.parameters() if (p.dim() > 1) == is_matrix] for is_matrix in (True, False)
    ]
    groups = [{"params": parts[0], "weight_decay": 0.1}, {"params": parts[1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    engine, _, loader, _ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=config, training_data=common.Texts()
    )
    step = 0
    for batch in loader:
        loss = engine(**batch).loss
        engine.backward(loss)
        is_last = engine.is_gradient_accumulation_boundary()
        engine.step()
        if is_last:
            common.log(step, loss.item())
            step += 1
        if step == common.STEPS:
            break
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
