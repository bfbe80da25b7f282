"""The callback in a real Hugging Face Trainer: steps and losses equal the Trainer's own log."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from distprof_probes.options import ProbeOptions

from tests.optional import optional
from tests.probes.integrations.written import content, names, steps
from tests.warm import Starter

torch = pytest.importorskip("torch")
transformers = optional("transformers", reason="extra transformers is not installed")
optional("accelerate", reason="extra transformers is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")  # the framework's own

OPTIONS = ProbeOptions(mode="always-on", measure_overhead=False)
ROOT = Path(__file__).resolve().parents[3]


class Texts(torch.utils.data.Dataset[Any]):
    """Twelve texts of eight tokens."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids = torch.arange(index, index + 8) % 32
        return {"input_ids": ids, "labels": ids}


def _trainer(folder: Path, **options: Any) -> Any:
    callback = importlib.import_module("distprof_probes.integrations.transformers").DistprofCallback
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=32, n_positions=8)
    torch.manual_seed(0)
    chosen = {
        "per_device_train_batch_size": 2,
        "num_train_epochs": 1,
        "logging_steps": 1,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
        **options,
    }
    return transformers.Trainer(
        model=transformers.GPT2LMHeadModel(config),
        args=transformers.TrainingArguments(output_dir=str(folder / "out"), **chosen),
        train_dataset=Texts(),
        eval_dataset=Texts(),
        callbacks=[callback(folder / "run", options=OPTIONS)],
    )


def _logged(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_each_update_is_a_step_with_its_phases_loss_and_tokens(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path)
    trainer.train()
    written = steps(tmp_path / "run")
    assert len(written) == trainer.state.global_step == 6
    assert [step.loss for step in written] == _logged(trainer)
    assert all(loss is not None and loss > 0 for loss in _logged(trainer))
    for step in written:
        assert names(step) == ["input", "forward", "backward", "optimizer"]
        assert (step.tokens, step.samples) == (16, 2)
    assert content(tmp_path / "run" / "run.json")["outcome"] == "completed"


def test_accumulated_micro_batches_are_one_step(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path, gradient_accumulation_steps=3)
    trainer.train()
    written = steps(tmp_path / "run")
    assert len(written) == trainer.state.global_step == 2
    assert [step.loss for step in written] == _logged(trainer)
    for step in written:
        assert names(step) == ["input", *["forward", "backward"] * 3, "optimizer"]
        assert (step.tokens, step.samples) == (48, 6)


def test_steps_without_a_log_have_no_loss(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path, logging_steps=3)
    trainer.train()
    losses = [step.loss for step in steps(tmp_path / "run")]
    logged = _logged(trainer)
    assert losses == [None, None, logged[0], None, None, logged[1]]


def test_evaluation_and_checkpoints_are_told_from_input(tmp_path: Path) -> None:
    trainer = _trainer(
        tmp_path, eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=4
    )
    trainer.train()
    written = [names(step) for step in steps(tmp_path / "run")]
    work = ["input", "forward", "backward", "optimizer"]
    assert written == [
        work,
        work,
        ["evaluation", *work],  # after two updates, within the third step
        work,
        ["evaluation", "checkpoint", *work],
        work,
    ]


def test_the_model_is_left_without_hooks(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path, max_steps=1)
    trainer.train()
    assert not trainer.model._forward_hooks
    assert not trainer.model._forward_pre_hooks


def test_a_second_train_is_a_session_of_its_own(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path, max_steps=2)
    trainer.train()
    trainer.args.max_steps = 3
    trainer.train()
    assert [step.step for step in steps(tmp_path / "run")] == [0, 1, 2]


def test_the_losses_are_the_same_without_the_callback(tmp_path: Path) -> None:
    losses = []
    for number, with_callback in enumerate((True, False)):
        trainer = _trainer(tmp_path / str(number))
        if not with_callback:
            module = importlib.import_module("distprof_probes.integrations.transformers")
            trainer.remove_callback(module.DistprofCallback)
        trainer.train()
        losses.append(_logged(trainer))
    assert losses[0] == losses[1]


FAILING = """
import sys
from pathlib import Path
from tests.probes.integrations import test_transformers as test

class Broken(test.Texts):
    def __getitem__(self, index):
        if index == 7:
            raise ValueError("text 7 is broken")
        return super().__getitem__(index)

trainer = test._trainer(Path(sys.argv[1]), dataloader_drop_last=True)
trainer.train_dataset = Broken()
trainer.train()
"""


def test_an_exception_that_ends_the_program_is_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started_warm: Starter
) -> None:
    """The Trainer calls no callback when it raises."""
    monkeypatch.chdir(ROOT)
    done = started_warm([sys.executable, "-c", FAILING, str(tmp_path)], os.environ)
    assert done.returncode == 1, done.stderr
    assert "ValueError: text 7 is broken" in done.stderr
    error = content(tmp_path / "run" / "rank00000" / "error.json")
    assert (error["kind"], error["message"]) == ("ValueError", "text 7 is broken")
