"""torchtitan's configurations in Python: resolved from a checkout's layout, never run."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import pytest

from distprof.cli.app import main
from distprof.errors import InputError
from distprof.verbs.plan.job_file import layout_of, num_gpus_of, read_job_file
from distprof.verbs.plan.layout import Layout

REGISTRY = """
    from pathlib import Path
    from torchtitan.config import ActivationCheckpointConfig, ParallelismConfig, TrainingConfig
    from torchtitan.trainer import Trainer
    from . import model_registry

    Path("ran").touch()

    def llama3_8b() -> Trainer.Config:
        return Trainer.Config(
            model_spec=model_registry("8B"),
            training=TrainingConfig(local_batch_size=4, seq_len=8192, steps=1000),
            activation_checkpoint=ActivationCheckpointConfig(mode="full"),
        )

    def llama3_8b_tp() -> Trainer.Config:
        '''Another one, changed.'''
        config = llama3_8b()
        config.parallelism = ParallelismConfig(tensor_parallel_degree=8)
        config.parallelism.context_parallel_degree = 2
        config.optimizer.lr = 3e-4
        return config

    def llama3_8b_of_environment() -> Trainer.Config:
        config = llama3_8b_tp()
        if len(str(Path.cwd())) > 3:
            config.parallelism.tensor_parallel_degree = 4
        config.model_spec = choose()
        return config

    def endless() -> Trainer.Config:
        return endless()
"""

RECIPES = """
    from torchtitan.models.llama3.config_registry import llama3_8b_tp

    def own():
        config = llama3_8b_tp()
        config.parallelism.pipeline_parallel_degree = 2
        return config
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    for name, text in {
        "torchtitan/models/llama3/config_registry.py": REGISTRY,
        "my_company/recipes.py": RECIPES,
    }.items():
        file = root / name
        file.parent.mkdir(parents=True)
        file.write_text(dedent(text))
    return root


def script(checkout: Path, text: str) -> Path:
    file = checkout / "launch.sh"
    file.write_text(text)
    return file


def meant(file: Path, gpus: int | None = None) -> Layout:
    read = read_job_file(file)
    num_gpus = gpus or num_gpus_of(read)
    assert num_gpus is not None
    return layout_of(read, num_gpus=num_gpus)[0]


TP = Layout(dp=2, tp=8, cp=2, sharding="fsdp", micro_batch=4, recomputation="full")


@pytest.mark.parametrize(
    "text",
    [
        "torchrun --nnodes 4 --nproc_per_node=8 -m torchtitan.train --module llama3"
        " --config llama3_8b_tp",
        "NGPU=32 MODULE=llama3 CONFIG=llama3_8b_tp ./run_train.sh",
        "torchrun --nnodes=4 --nproc-per-node 8 \\\n -m torchtitan.train \\\n"
        " --module torchtitan.models.llama3 --config llama3_8b  # tp below\\\n"
        " --parallelism.tensor_parallel_degree 8 --parallelism.context-parallel-degree=2",
    ],
)
def test_a_launch_means_its_function_with_what_is_typed(checkout, text):
    text = text.replace("  # tp below", " ")
    read = read_job_file(script(checkout, text))
    assert (read.kind, read.values["model"]) == ("torchtitan", "llama3-8b")
    assert (num_gpus_of(read), read.values["sequence"]) == (32, 8192)
    assert layout_of(read, num_gpus=32)[0] == TP


def test_a_function_is_named_with_its_file_and_nothing_runs(checkout, monkeypatch):
    monkeypatch.chdir(checkout)
    registry = checkout / "torchtitan/models/llama3/config_registry.py"
    assert meant(Path(f"{registry}:llama3_8b_tp"), 32) == TP
    assert not (checkout / "ran").exists()


def test_a_package_of_one_s_own_may_call_torchtitan_s(checkout):
    text = "CONFIG=own MODULE=my_company.recipes NGPU=32 ./run_train.sh"
    layout = meant(script(checkout, text))
    assert (layout.pp, layout.tp, layout.cp, layout.dp) == (2, 8, 2, 1)


def test_what_branches_and_unknown_calls_set_is_reported_as_not_read(checkout):
    text = "torchrun -m torchtitan.train --module llama3 --config llama3_8b_of_environment"
    read = read_job_file(script(checkout, text))
    assert "tp" not in read.values
    assert "model" not in read.values
    assert read.values["cp"] == 2
    assert "parallelism.tensor_parallel_degree (set by code that is not followed)" in read.not_read


def test_the_json_that_torchtitan_writes_is_the_resolved_configuration(tmp_path):
    modules = {"layers": [], "dim": 4096, "vocab_size": 128256}
    resolved = {
        "parallelism": {"tensor_parallel_degree": 8, "data_parallel_shard_degree": -1},
        "training": {"local_batch_size": 2, "global_batch_size": -1, "seq_len": 8192},
        "activation_checkpoint": {"mode": "selective"},
        "model_spec": {"name": "llama3", "flavor": "8B", "model": modules},
        "optimizer": {"lr": 3e-4},
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(resolved))
    read = read_job_file(file)
    assert read.not_read == ("optimizer.lr",)
    assert read.values["model"] == "llama3-8b"
    assert meant(file, 16) == Layout(dp=2, tp=8, sharding="fsdp", micro_batch=2)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "--module llama3 --config missing",
            "functions of the file: endless, llama3_8b, llama3_8b_of_env",
        ),
        ("--module qwen9 --config x", "no torchtitan/models/qwen9/config_registry.py"),
        ("--module ../../etc --config x", "--module ../../etc"),
        ("--module $MODEL --config x", "shell variables"),
        ("--config x", "does not name both --module and --config"),
        ("--module llama3 --config endless", "does not return a configuration"),
    ],
)
def test_what_cannot_be_resolved_is_said(checkout, text, found):
    with pytest.raises(InputError) as error:
        read_job_file(script(checkout, f"torchrun -m torchtitan.train {text}"))
    assert found in str(error.value)
    assert "--debug.save_config_file" in str(error.value)


def test_a_registry_that_is_no_python_is_refused(checkout, capsys):
    registry = checkout / "torchtitan/models/llama3/config_registry.py"
    for content in ("def (", "x = " + "(" * 50_000, "\0"):
        registry.write_text(content)
        assert main(["plan", "--lint", f"{registry}:llama3_8b"]) == 3
        assert "not valid Python" in capsys.readouterr().err


def test_a_launch_is_linted(checkout, capsys):
    text = "NGPU=32 MODULE=llama3 CONFIG=llama3_8b_tp ./run_train.sh"
    assert main(["plan", "--lint", str(script(checkout, text)), "--gpu", "h100"]) == 0
    shown = capsys.readouterr().out
    assert "torchtitan · dp=2, tp=8, cp=2" in shown
