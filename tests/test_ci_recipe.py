"""The recipe for continuous integration does what its page says."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml

import tasks
from distprof.cli.app import app, main
from distprof.verbs.gate.baseline import read_baseline

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "how-to" / "gate-scaling-in-ci.md").read_text("utf-8")

STAND_IN = """#!{python}
import pathlib, sys, time
sys.path.insert(0, {root!r})
from tests.job_folders import JobFolder

verb, flag, out, dashes, *program = sys.argv[1:]
assert (verb, flag, dashes, program) == ("capture", "-o", "--", ["python", "train.py"])
log = pathlib.Path(out).parents[1] / "calls.txt"
log.parent.mkdir(exist_ok=True)
with log.open("a") as stream:
    stream.write("/".join(pathlib.Path(out).parts[-2:]) + "\\n")
step_ms = float(pathlib.Path("step_ms").read_text())
JobFolder(pathlib.Path(out), mesh={{"dp": 1}}, ended_ns=time.time_ns()).steps(
    0, [step_ms] * 8
).write()
"""


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S)


def workflow():
    return yaml.safe_load(blocks("yaml")[0])


def gitlab_job():
    return yaml.safe_load(blocks("yaml")[1])


def workflow_commands():
    (job,) = workflow()["jobs"].values()
    return [step["run"] for step in job["steps"] if "run" in step]


def gitlab_commands():
    return gitlab_job()["speed"]["script"]


@pytest.fixture
def in_turns(tmp_path, monkeypatch):
    """Runs the page's script on two checkouts whose steps take so long."""
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "bin" / "distprof"
    program.parent.mkdir()
    program.write_text(STAND_IN.format(python=sys.executable, root=str(ROOT)))
    program.chmod(0o755)
    script = tmp_path / "in_turns.sh"
    (text,) = blocks("bash")
    script.write_text(text)

    def measure(repeats, **step_ms):
        for side, each in step_ms.items():
            Path(side).mkdir()
            Path(side, "step_ms").write_text(str(each))
        command = ["bash", str(script), "base", "new", str(repeats), "python", "train.py"]
        path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
        subprocess.run(command, check=True, env={**os.environ, "PATH": path})
        return Path("runs/calls.txt").read_text().split()

    return measure


def test_the_script_takes_turns_there_and_back(in_turns):
    made = in_turns(3, base=100, new=100)
    assert made == ["base/1", "new/1", "new/2", "base/2", "base/3", "new/3"]


@pytest.mark.parametrize(("step_ms", "code"), [(100, 0), (110, 1)])
def test_the_gate_takes_its_runs_for_pairs(in_turns, capsys, step_ms, code):
    in_turns(7, base=100, new=step_ms)
    (words,) = (shlex.split(line) for line in workflow_commands() if "distprof check" in line)
    assert main(words[1:]) == code
    assert "did not alternate" not in capsys.readouterr().out
    assert Path("gate.xml").is_file()


@pytest.mark.parametrize("commands", [workflow_commands, gitlab_commands])
def test_commands_of_the_jobs_are_shell_and_their_options_exist(commands):
    subprocess.run(["bash", "-n"], input="\n".join(commands()), text=True, check=True)
    (check,) = (shlex.split(line) for line in commands() if line.startswith("distprof check"))
    with click.Context(app) as context:
        found = app.get_command(context, "check")
    known = {name for parameter in found.params for name in parameter.opts}
    assert {word for word in check if word.startswith("-")} <= known


def test_the_jobs_keep_what_the_gate_writes():
    (job,) = workflow()["jobs"].values()
    assert all({"uses", "run"} & set(step) for step in job["steps"])
    upload = job["steps"][-1]
    assert upload["if"] == "always()"
    assert "gate.xml" in upload["with"]["path"].split()
    artifacts = gitlab_job()["speed"]["artifacts"]
    assert (artifacts["when"], artifacts["reports"]["junit"]) == ("always", "gate.xml")


def test_this_projects_own_baseline_is_read_and_is_of_its_own_runs():
    baseline = read_baseline(str(ROOT / tasks.GATE_BASELINE))
    words = shlex.split(tasks.GATE_RUN)
    config = baseline.fingerprint.config
    assert config["training.compute"] == "sleep"
    assert config["training.forward_ms"] == f"{float(words[words.index('--forward-ms') + 1])}"
    assert config["training.steps"] == words[words.index("--steps") + 1]
    assert len(baseline.sessions[0].values["step_time"]) >= 7  # with 3 repeats ranks can tell
