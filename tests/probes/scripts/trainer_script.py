"""A Hugging Face Trainer, with accumulation; prints how many updates it made."""

import tempfile
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Texts(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids = torch.arange(index, index + 8) % 32
        return {"input_ids": ids, "labels": ids}


def main() -> None:
    torch.set_num_threads(1)
    config = GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=32, n_positions=8)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            num_train_epochs=2,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=Texts())
        trainer.train()
        print("updates", trainer.state.global_step)


if __name__ == "__main__":
    main()
