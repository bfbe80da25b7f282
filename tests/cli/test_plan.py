"""``plan``: verdict, formats, exit codes, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from distprof.cli.app import main
from distprof.verbs.plan import Plan

ASK = ["plan", "--model", "llama2-7b", "--gpus", "8"]


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(
    "options",
    [["--model", "llama3-70b", "--gpus", "1024"], ["--model", "deepseek-v3", "--gpus", "512"]],
)
def test_text_fits_the_terminal(width, options, capsys):
    assert main(["plan", *options, "--width", str(width)]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= width
    for heading in ("Layouts", "Memory", "Communication", "Rejected", "Assumed"):
        assert f"\n{heading}" in text


def test_the_fastest_layout_can_be_asked_for(capsys):
    assert main([*ASK, "--width", "120"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Fastest of ")
    layout = text.partition("--layout ")[2].split()[0].removesuffix(".")
    assert main([*ASK, "--layout", layout]) == 0
    assert capsys.readouterr().out.startswith(layout)


def test_a_layout_that_cannot_run_is_exit_code_1(capsys):
    assert main([*ASK, "--layout", "dp=8"]) == 1
    assert capsys.readouterr().out.startswith("This layout cannot run: dp=8")


def test_no_layout_is_exit_code_1(capsys):
    assert main(["plan", "--model", "llama3-405b", "--gpus", "8", "--batch", "8"]) == 1
    assert capsys.readouterr().out.startswith("No layout fits. Main reason among ")


def test_json_is_the_plan(tmp_path: Path):
    file = tmp_path / "plan.json"
    assert main([*ASK, "-q", "-o", str(file)]) == 0
    plan = msgspec.json.decode(file.read_bytes(), type=Plan)
    assert plan.schema == "distprof.plan/1"
    assert plan.model.parameters == 6_738_415_616
    assert json.loads(file.read_text())["best"][0]["step_ns"] == plan.best[0].step_ns


def test_markdown_has_the_verdict_and_tables(capsys):
    assert main([*ASK, "--format", "md"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("### Fastest of ")
    assert "| axis |" in text


def test_all_shows_more_layouts(capsys):
    counts = []
    for more in ([], ["--all"]):
        assert main([*ASK, "--format", "json", *more]) == 0
        counts.append(len(json.loads(capsys.readouterr().out)["best"]))
    assert counts == [10, 100]


def test_a_shape_may_be_given_by_its_numbers(capsys):
    shape = ["--layers", "32", "--hidden", "4096", "--heads", "32", "--params", "7e9"]
    assert main(["plan", *shape, "--gpus", "64", "--inter-node", "200Gb/s"]) == 0
    assert "25.0 GB/s" in capsys.readouterr().out


def test_a_gpu_from_the_configuration(tmp_path, monkeypatch, capsys):
    (tmp_path / "distprof.toml").write_text(
        "[hardware.gpus.acme]\ntitle = 'Acme 1'\nbf16_tflops = 500\nmemory_tb_per_s = 2\n"
        "memory_gb = 200\nscale_up_gb_per_s = 100\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main([*ASK, "--gpu", "acme"]) == 0
    assert "8 Acme 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "llama9"], "no model 'llama9'"),
        (["--model", "llama2-7b", "--layers", "3"], "has a fixed shape"),
        (["--layers", "3"], "lacks hidden, heads"),
        (["--model", "llama2-7b", "--gpu", "h1000"], "no GPU 'h1000'"),
        (["--model", "llama2-7b", "--inter-node", "pigeon"], "no link 'pigeon'"),
        (["--model", "llama2-7b", "--layout", "x=1"], "unknown key 'x'"),
        (["--model", "llama2-7b", "--compute-efficiency", "0"], "efficiency of kernels"),
        (["--model", "llama2-7b", "--compute-efficiency", "5e-324"], "efficiency of kernels"),
        (["--model", "llama2-7b", "--link-efficiency", "5e-324"], "efficiency of links"),
        (["--model", "llama2-7b", "--layout", f"tp={'9' * 5_000}"], "tp must be a number"),
        (["--model", "llama2-7b", "--gpus-per-node", "3"], "do not fill nodes of 3"),
    ],
)
def test_wrong_usage_is_2_with_a_sentence(options, message, capsys):
    assert main(["plan", "--gpus", "8", *options]) == 2
    assert message in capsys.readouterr().err
