"""The Trainer of transformers, with an evaluation, and with DeepSpeed where ``--zero`` says so."""

import sys
import tempfile
from typing import Any

import common
from transformers import Trainer, TrainerCallback, TrainingArguments

ZERO = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "zero_optimization": {"stage": 2},
    "zero_allow_untested_optimizer": True,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
}


class Log(TrainerCallback):
    def on_log(self, arguments: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if "loss" in logs:
            common.log(state.global_step - 1, float(logs["loss"]))


def main() -> None:
    common.start()
    zero = "--zero" in sys.argv
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            max_steps=common.STEPS,
            logging_steps=1,
            eval_strategy="steps",
            eval_steps=max(common.STEPS // 2, 1),
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            deepspeed=ZERO if zero else None,
        )
        trainer = Trainer(
            model=common.gpt2(),
            args=arguments,
            train_dataset=common.Texts(),
            eval_dataset=common.Texts(16),
            callbacks=[Log()],
        )
        trainer.train()


if __name__ == "__main__":
    main()
