"""accelerate, two batches to an update."""

import common
import torch
from accelerate import Accelerator


def main() -> None:
    common.start()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = common.gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(common.Texts(), batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = 0
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            common.log(step, loss.item())
            step += 1
        if step == common.STEPS:
            break
    accelerator.end_training()


if __name__ == "__main__":
    main()
