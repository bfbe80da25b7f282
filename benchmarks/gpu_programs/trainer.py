"""GPT-2 from scratch under the Hugging Face Trainer.

::

    python -m benchmarks.gpu_programs.trainer trainer --settings '{"log": "item"}'
"""

from __future__ import annotations

import sys
import tempfile
import time
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from benchmarks.gpu_programs.load import Others
from benchmarks.gpu_programs.settings import Settings
from benchmarks.gpu_programs.train import MATMUL, RAMP, Training, parse, train

__all__ = ["TrainerTraining"]


class Texts(Dataset[dict[str, Tensor]]):
    """Random tokens."""

    def __init__(self, length: int, words: int, pause_s: float) -> None:
        self.length, self.pause_s = length, pause_s
        self.buffer = torch.randint(words, (100 * length,))

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        time.sleep(self.pause_s)
        start = index * 7919 % (len(self.buffer) - self.length)
        row = self.buffer[start : start + self.length]
        return {"input_ids": row, "labels": row}


class Clock(TrainerCallback):  # type: ignore[misc]
    """Time from the end of one step to that of another, both synchronised."""

    def __init__(self, training: Training, steps: int) -> None:
        self.training = training
        self.ends = {RAMP: 0.0, RAMP + steps: 0.0}

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Note the time."""
        if state.global_step in self.ends:
            self.training.wait()
            self.ends[state.global_step] = time.perf_counter()


class TrainerTraining(Training):
    """The same interface; each run is a call of train()."""

    def __init__(self, settings: Settings, device: str) -> None:
        tiny = settings.tiny
        self.settings, self.device = settings, torch.device(device)
        self.cuda, self.limit, self.done = self.device.type == "cuda", 1.0, 0
        rows, length, words = (2, 16, 256) if tiny else (8, 1024, 50304)
        layers, width, heads = (2, 16, 2) if tiny else (8, 768, 12)
        sizes = {"n_layer": layers, "n_embd": width, "n_head": heads, "n_positions": length}
        self.gpt = GPT2LMHeadModel(GPT2Config(vocab_size=words, **sizes))
        self.texts = Texts(length, words, settings.load_ms / rows / 1e3)
        self.rows = rows
        self.others = Others(settings, self.device.type)
        self.folder = tempfile.TemporaryDirectory()
        torch.set_float32_matmul_precision(MATMUL[settings.precision])

    def run(self, steps: int) -> None:
        """Train."""
        self._train(steps)

    def block_ms(self, steps: int) -> float:
        """As its parent does; the start of train() does not count."""
        clock = Clock(self, steps)
        self._train(RAMP + steps, clock)
        first, last = clock.ends.values()
        return 1e3 * (last - first) / steps

    def close(self) -> None:
        """Delete checkpoints, and free memory."""
        self.folder.cleanup()
        super().close()

    def _train(self, steps: int, *callbacks: TrainerCallback) -> None:
        settings, every = self.settings, self.settings.save_every
        arguments = TrainingArguments(
            output_dir=self.folder.name,
            max_steps=steps,
            per_device_train_batch_size=self.rows,
            dataloader_num_workers=settings.workers,
            bf16=settings.precision == "bf16",
            use_cpu=not self.cuda,
            optim="adamw_torch_fused",
            save_strategy="steps" if every else "no",
            save_steps=every or 500,
            save_only_model=True,
            save_total_limit=1,
            logging_strategy="steps" if settings.log else "no",
            logging_steps=1,
            logging_nan_inf_filter=bool(settings.log),
            report_to=[],
            disable_tqdm=True,
        )
        Trainer(self.gpt, arguments, train_dataset=self.texts, callbacks=list(callbacks)).train()


def main() -> None:
    """Train."""
    options = parse(__doc__, ("trainer",))
    if options.wait:
        sys.stdin.readline()
    train(TrainerTraining(options.settings, options.device), options.steps)


if __name__ == "__main__":
    main()
