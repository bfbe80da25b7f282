"""Ray Train's TorchTrainer, whose workers are actors."""

import sys

import ray
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model


def train() -> None:
    import common
    import torch

    common.start()
    model = prepare_model(common.gpt2())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = common.Texts()
    rank = torch.distributed.get_rank()
    for step in range(common.STEPS):
        rows = [data[8 * step + 4 * rank + number] for number in range(4)]
        batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        common.log(step, loss.item())


def main() -> None:
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=True)
    workers = int(sys.argv[1]) if sys.argv[1:] else 2
    TorchTrainer(train, scaling_config=ScalingConfig(num_workers=workers)).fit()
    ray.shutdown()


if __name__ == "__main__":
    main()
