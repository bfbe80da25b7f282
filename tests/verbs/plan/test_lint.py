"""Configurations of four programs: what is read of them, what is said against them."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from distprof.cli.app import main
from distprof.errors import InputError
from distprof.verbs.plan import Lint
from distprof.verbs.plan.layout import Layout, parse_layout
from distprof.verbs.plan.lint import JobFile, check_layout, layout_of, num_gpus_of, read_job_file
from tests.verbs.plan.jobs import question

FILES = Path(__file__).parent / "jobs_of_others"


def codes(text: str, model: str = "llama2-7b", **where) -> list[str]:
    asked = question(model, **where)
    gpus = asked.cluster.num_gpus
    layout = parse_layout(text, num_gpus=gpus, batch=asked.batch)
    lint = check_layout(asked, layout, JobFile(source="x", kind="distprof"))
    return [finding.code for finding in lint.findings]


def means(name: str, gpus: int | None = None) -> Layout:
    file = read_job_file(FILES / name)
    num_gpus = gpus or num_gpus_of(file)
    assert num_gpus is not None
    return layout_of(file, num_gpus=num_gpus)[0]


def test_each_program_s_file_means_its_layout():
    assert means("own.toml") == Layout(dp=32, tp=2, sharding="fsdp", micro_batches=8)
    assert means("torchtitan.toml", 64) == Layout(
        dp=4, tp=16, sharding="fsdp", micro_batch=8, recomputation="full"
    )
    assert means("megatron.sh") == Layout(
        dp=1, tp=8, pp=8, sharding="zero-1", micro_batches=16, virtual_stages=3
    )
    assert means("deepspeed.json") == Layout(dp=8, micro_batches=8)


def test_a_script_that_is_all_remarks_says_nothing(tmp_path):
    file = tmp_path / "run.sh"
    file.write_text("# --num-layers 3")
    assert read_job_file(file).values == {"gated": False, "sharding": "ddp"}


def test_a_shape_in_arguments_is_the_model_s():
    values = read_job_file(FILES / "megatron.sh").values
    assert (values["shape.layers"], values["shape.hidden"], values["gated"]) == (96, 12288, False)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("torchtitan.toml", "optimizer.name"), ("megatron.sh", "lr"),
        ("deepspeed.json", "optimizer.params.lr"),
    ],
)  # fmt: skip
def test_what_is_not_read_is_named(name, key):
    assert key in read_job_file(FILES / name).not_read


def test_values_that_are_no_numbers_are_named_and_not_guessed(tmp_path):
    file = tmp_path / "ds.json"
    file.write_text('{"train_batch_size": "auto", "zero_optimization": {"stage": 3}}')
    read = read_job_file(file)
    assert read.not_read == ("train_batch_size (auto)",)
    assert read.values == {"sharding": "fsdp"}


@pytest.mark.parametrize(
    ("replicate", "shard", "sharding"), [(1, -1, "fsdp"), (8, 1, "ddp"), (2, -1, "hsdp")]
)
def test_meshes_of_torchtitan(tmp_path, replicate, shard, sharding):
    file = tmp_path / "t.toml"
    file.write_text(
        f"[parallelism]\ndata_parallel_replicate_degree = {replicate}\n"
        f"data_parallel_shard_degree = {shard}\n"
    )
    layout, batch = layout_of(read_job_file(file), num_gpus=8)
    assert (layout.dp, layout.sharding, batch) == (8, sharding, 8)
    assert layout.num_shards == {"fsdp": 8, "ddp": 1, "hsdp": 4}[sharding]


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
    layout, _ = layout_of(read, num_gpus=16)
    assert layout == Layout(dp=2, tp=8, sharding="fsdp", micro_batch=2)


@pytest.mark.parametrize(
    "text",
    [
        *("", "hello", "{", '{"a": ' * 100_000, "[other]\nx = 1", "--num-layers '", "[]"),
        "--num-layers 4 --name " + "a" * 3_000_000,
        "--module a --config " + "a" * 3_000_000,
        "torchrun -m torchtitan.train --module llama3 --config llama3_8b",
    ],
)
def test_other_files_are_refused_with_a_sentence(tmp_path, text):
    file = tmp_path / "f"
    file.write_text(text)
    with pytest.raises(InputError, match="expected: a layout"):
        read_job_file(file)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("dp=3", "CFG101"), ("dp=1,tp=64", "CFG102"), ("dp=4,tp=16,sharding=zero-1", "CFG103"),
        ("pp=64", "CFG104"), ("cp=4,sharding=fsdp", "CFG105"), ("ep=2", "CFG106"),
        ("sharding=hsdp,shards=7", "CFG107"), ("micro-batch=3", "CFG108"),
        ("pp=16,micro-batch=2,sharding=zero-1", "CFG112"),
        ("pp=16,micro-batch=4,sharding=zero-1", "CFG109"), ("stages=2", "CFG110"),
        ("dp=64", "CFG111"), ("tp=8,sharding=fsdp", "CFG114"),
        ("tp=8,pp=2,sharding=fsdp", "CFG115"),
    ],
)  # fmt: skip
def test_each_rule_has_an_input_that_fires_it(text, code):
    assert code in codes(text)


def test_a_small_batch_on_a_slow_network_is_said():
    assert "CFG113" in codes("sharding=zero-1", batch=64, sequence=512, link="ethernet-100")


def test_nothing_is_said_against_a_sound_layout():
    assert codes("tp=2,sharding=fsdp", "llama2-70b", batch=32) == []
    assert codes("tp=8,pp=8,stages=2,sharding=zero-1", "gpt3-175b", batch=64) == []


def test_more_sequences_per_rank_than_the_batch_has_is_an_error():
    """64 sequences on 128 ranks: half a sequence a rank."""
    assert "CFG108" in codes("sharding=zero-1", batch=64, gpus=128)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([str(FILES / "own.toml")], 0),
        ([str(FILES / "megatron.sh")], 0),
        ([str(FILES / "deepspeed.json"), "--model", "llama2-7b"], 1),
        ([str(FILES / "torchtitan.toml")], 2),
        ([str(FILES / "deepspeed.json")], 2),
        ([str(FILES / "own.toml"), "--layout", "tp=2"], 2),
        ([str(FILES / "missing.toml")], 3),
    ],
)
def test_exit_codes(arguments, code):
    assert main(["plan", "--lint", *arguments]) == code


def test_what_is_typed_wins_over_the_file(capsys):
    file = str(FILES / "own.toml")
    assert main(["plan", "--lint", file, "--gpus", "128", "--format", "json"]) == 0
    lint = msgspec.json.decode(capsys.readouterr().out, type=Lint)
    assert lint.layout.dp == 64


@pytest.mark.parametrize("width", [80, 120])
def test_text_fits_and_names_code_and_fix(width, capsys):
    file = str(FILES / "deepspeed.json")
    assert main(["plan", "--lint", file, "--model", "llama2-7b", "--width", str(width)]) == 1
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= width
    assert text.startswith("This configuration cannot run as it is: 1 error.")
    said = " ".join(text.split())
    assert "error CFG111: The job does not fit: it needs 126 GB per GPU. 108 GB of that" in said
    assert "Shard the state: use zero-1 or fsdp." in said


def test_names_of_a_file_reach_no_terminal_raw(tmp_path, capsys):
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"\x1b[31mred": 1, "train_micro_batch_size_per_gpu": 1}))
    assert main(["plan", "--lint", str(file), "--model", "llama3-8b", "--gpus", "8"]) == 1
    for style in ([], ["--format", "md"]):
        main(["plan", "--lint", str(file), "--model", "llama3-8b", "--gpus", "8", *style])
        assert "\x1b" not in capsys.readouterr().out


def test_limits_of_a_rule_are_changed_as_for_any_other(tmp_path, monkeypatch, capsys):
    (tmp_path / "distprof.toml").write_text("[limits.CFG111]\nx = 1\n")
    lint = ["plan", "--lint", str(FILES / "own.toml"), "--format", "json"]
    monkeypatch.chdir(tmp_path)
    assert main(lint) == 2
    assert "rule CFG111 has no limit 'x'; its limits: none" in capsys.readouterr().err
    (tmp_path / "distprof.toml").write_text(
        "[limits.planned-sharding-without-need]\nroom_ratio = 9\n"
    )
    assert main(lint) == 0
    lint_of = msgspec.json.decode(capsys.readouterr().out, type=Lint)
    assert "CFG115" in [finding.code for finding in lint_of.findings]


def test_a_check_of_a_configuration_is_a_rule_with_a_page(capsys):
    assert main(["rule", "CFG101"]) == 0
    assert "ranks-not-all-used" in capsys.readouterr().out
