"""The callback in real Lightning trainers: steps, phases and losses equal Lightning's own."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
from distprof_probes.options import ProbeOptions

from tests.optional import optional
from tests.probes.integrations.written import content, names, steps

torch = pytest.importorskip("torch")
optional("lightning", reason="extra lightning is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks' own

OPTIONS = ProbeOptions(mode="always-on", measure_overhead=False)


def _module(package: str, *, manual: bool = False, fail_at: int | None = None) -> Any:
    """A linear model that keeps what it logs."""
    pl = importlib.import_module(package)

    class Model(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
            self.automatic_optimization = not manual
            self.losses: list[float] = []

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == fail_at:
                raise RuntimeError("the data is broken")
            loss = (self.layer(batch[0]) ** 2).mean()
            self.losses.append(loss.item())
            if manual:
                for optimizer in self.optimizers():
                    optimizer.zero_grad()
                    self.manual_backward(loss, retain_graph=True)
                    optimizer.step()
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.layer(batch[0])

        def configure_optimizers(self) -> Any:
            if manual:
                parameters = list(self.layer.parameters())
                return [torch.optim.SGD([parameter], lr=0.01) for parameter in parameters]
            return torch.optim.SGD(self.layer.parameters(), lr=0.01)

    return Model()


def _loader(batches: int = 6) -> Any:
    data = torch.utils.data.TensorDataset(torch.randn(batches * 2, 4))
    return torch.utils.data.DataLoader(data, batch_size=2)


def _trainer(package: str, run: Path, **options: Any) -> Any:
    pl = importlib.import_module(package)
    callback = importlib.import_module("distprof_probes.integrations.lightning").DistprofCallback
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return pl.Trainer(
        accelerator="cpu",
        default_root_dir=run.parent,
        devices=1,
        callbacks=[callback(run, options=OPTIONS)],
        **{**quiet, **options},
    )


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_each_update_is_a_step_with_its_phases_and_loss(tmp_path: Path, package: str) -> None:
    module = _module(package)
    trainer = _trainer(package, tmp_path, max_epochs=2)
    trainer.fit(module, _loader())
    written = steps(tmp_path)
    assert len(written) == trainer.global_step == 12
    assert [step.loss for step in written] == pytest.approx(module.losses)
    for step in written:
        assert names(step) == ["input", "forward", "backward", "optimizer"]
    assert content(tmp_path / "run.json")["outcome"] == "completed"


def test_accumulated_batches_are_one_step_with_the_mean_loss(tmp_path: Path) -> None:
    module = _module("lightning.pytorch")
    trainer = _trainer("lightning.pytorch", tmp_path, max_epochs=1, accumulate_grad_batches=3)
    trainer.fit(module, _loader())
    written = steps(tmp_path)
    assert len(written) == trainer.global_step == 2
    assert written[0].loss == pytest.approx(sum(module.losses[:3]) / 3)
    assert written[1].loss == pytest.approx(sum(module.losses[3:]) / 3)
    assert names(written[0]) == ["input", "forward", "backward"] * 3 + ["optimizer"]


def test_two_optimizers_by_hand_make_one_step_per_batch(tmp_path: Path) -> None:
    module = _module("lightning.pytorch", manual=True)
    trainer = _trainer("lightning.pytorch", tmp_path, max_epochs=1)
    trainer.fit(module, _loader())
    written = steps(tmp_path)
    assert trainer.global_step == 12  # Lightning counts both
    assert len(written) == 6
    assert [step.loss for step in written] == pytest.approx(module.losses)
    assert {name for step in written for name in names(step)} == {"input"}


def test_validation_is_no_wait_for_input(tmp_path: Path) -> None:
    trainer = _trainer("lightning.pytorch", tmp_path, max_epochs=1, val_check_interval=3)
    trainer.fit(_module("lightning.pytorch"), _loader(), _loader())
    written = steps(tmp_path)
    assert len(written) == 6  # the sanity check before training is none
    assert [index for index, step in enumerate(written) if "validation" in names(step)] == [3]
    assert names(written[3])[:3] == ["input", "validation", "input"]


def test_a_checkpoint_is_told_from_input(tmp_path: Path) -> None:
    checkpoints = importlib.import_module("lightning.pytorch.callbacks").ModelCheckpoint
    trainer = _trainer(
        "lightning.pytorch", tmp_path / "run", max_epochs=1, enable_checkpointing=True
    )
    trainer.callbacks.append(checkpoints(tmp_path / "saved", every_n_train_steps=4))
    trainer.fit(_module("lightning.pytorch"), _loader())
    written = steps(tmp_path / "run")
    assert len(written) == 6
    assert "checkpoint" in names(written[4])
    assert all("checkpoint" not in names(written[index]) for index in (0, 1, 2, 3, 5))


def test_a_second_fit_is_a_session_of_its_own(tmp_path: Path) -> None:
    trainer = _trainer("lightning.pytorch", tmp_path, max_epochs=1)
    trainer.fit(_module("lightning.pytorch"), _loader())
    trainer.fit_loop.max_epochs = 3
    trainer.fit(_module("lightning.pytorch"), _loader())
    assert [step.step for step in steps(tmp_path)] == list(range(12))


def test_an_exception_reaches_the_user_and_the_run(tmp_path: Path) -> None:
    trainer = _trainer("lightning.pytorch", tmp_path, max_epochs=1)
    with pytest.raises(RuntimeError, match="the data is broken"):
        trainer.fit(_module("lightning.pytorch", fail_at=4), _loader())
    assert len(steps(tmp_path)) == 4
    error = content(tmp_path / "rank00000" / "error.json")
    assert (error["kind"], error["message"]) == ("RuntimeError", "the data is broken")
    assert error["step"] == 3


def test_the_losses_are_the_same_without_the_callback(tmp_path: Path) -> None:
    losses = []
    for with_callback in (True, False):
        torch.manual_seed(0)
        module = _module("lightning.pytorch")
        trainer = _trainer("lightning.pytorch", tmp_path, max_epochs=1)
        if not with_callback:
            trainer.callbacks.clear()
        trainer.fit(module, _loader())
        losses.append(module.losses)
    assert losses[0] == losses[1]
