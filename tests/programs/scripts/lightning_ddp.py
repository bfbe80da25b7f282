"""Lightning with its DDP strategy, its own loader and a validation pass."""

from typing import Any

import common
import lightning
import torch


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = common.gpt2()

    def training_step(self, batch: Any, index: int) -> Any:
        loss = self.model(**batch).loss
        common.log(index, loss.item())
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.model(**batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    common.start()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(common.os.environ.get("WORLD_SIZE", "1")),
        strategy="ddp",
        max_steps=common.STEPS,
        limit_val_batches=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    train = torch.utils.data.DataLoader(common.Texts(), batch_size=4)
    valid = torch.utils.data.DataLoader(common.Texts(16), batch_size=4)
    trainer.fit(Module(), train, valid)


if __name__ == "__main__":
    main()
