"""``distprof scale``, as its user calls it; a stand-in makes the runs."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from distprof.artefacts.summary_file import SWEEP_FILE
from distprof.cli.app import main
from distprof.verbs.sweep import running
from distprof.verbs.sweep.running import locked
from distprof.verbs.sweep.show import SCALING
from docs.schemas import schema_of
from tests.processes import ended

ROOT = Path(__file__).parents[2]

STAND_IN = """
import pathlib, signal, sys, time
words = sys.argv[1:]
here = pathlib.Path(__file__).parent
if "--dry-run" in words:
    if "--bach" in words:
        sys.exit("Error: No such option '--bach'.")
    print("[training]\\nbatch = 8")
    sys.exit()
with (here / "calls.txt").open("a") as stream:
    stream.write(" ".join(words) + "\\n")
if (here / "fail").exists():
    sys.exit("rank 0 was killed")
if (here / "wait").exists():
    signal.signal(signal.SIGINT, lambda *_: ((here / "told").touch(), sys.exit(130)))
    (here / "ready").touch()
    while True: time.sleep(0.01)  # pause() misses a signal that came just before it
from tests.job_folders import JobFolder
flag = next(flag for flag in ("--ranks", "--nproc-per-node") if flag in words)
ranks = int(words[words.index(flag) + 1])
out = pathlib.Path(words[words.index("-o") + 1])
job = JobFolder(out, mesh={"dp_replicate": ranks}, command=words)
efficiency = {1: 1.0, 2: 0.95, 4: 0.7}[ranks]
repeat = int(out.name[-2:])
for rank in range(ranks):
    job.steps(rank, [(100 + repeat) / efficiency] * 9, tokens=None if "train.py" in words else 50)
job.write()
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A folder whose files order how runs end; ``calls.txt`` there has a line for each."""
    folder = tmp_path / "stand_in"
    folder.mkdir()
    (folder / "stand_in.py").write_text(STAND_IN)
    monkeypatch.setattr(running, "_DISTPROF", (sys.executable, str(folder / "stand_in.py")))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    return folder


def calls(folder):
    log = folder / "calls.txt"
    return log.read_text().splitlines() if log.exists() else []


def scaled(capsys, *arguments):
    """The sweep as JSON."""
    assert main(["scale", *arguments, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def efficiencies(report):
    return {size["num_ranks"]: size["efficiency"] for size in report["scaling"]["sizes"]}


def test_a_sweep_from_its_command_to_its_efficiency(stand_in, capsys):
    report = scaled(capsys, "ddp", "--ranks", "1,2,4", "--repeats", "3", "--sweep", "s")
    assert efficiencies(report) == pytest.approx({1: 1, 2: 0.95, 4: 0.7}, rel=1e-6)
    assert report["scaling"]["mode"] == "weak"
    assert report["scaling"]["sizes"][2]["num_repeats"] == 3
    assert [finding["code"] for finding in report["findings"]] == ["SCA102"]
    assert len(calls(stand_in)) == 9
    assert calls(stand_in)[0].startswith("run ddp --ranks 4")  # what cannot run fails at once
    schema = schema_of(SCALING)
    jsonschema.validate(report, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**report, "schema": "distprof.scaling/2"}, schema)
    file = json.loads(Path("s", SWEEP_FILE).read_text())
    shipped = ROOT / "distprof" / "artefacts" / "schema" / "sweep.schema.json"
    jsonschema.validate(file, json.loads(shipped.read_text()))


def test_efficiency_below_target_can_fail_a_job(stand_in, capsys):
    arguments = ["scale", "ddp", "--ranks", "1,4", "--sweep", "s", "--repeats", "2"]
    assert main([*arguments, "--fail-on", "warning"]) == 1
    assert main(["scale", "--sweep", "s"]) == 0
    assert len(calls(stand_in)) == 4
    assert "SCA102" in capsys.readouterr().out


def test_one_repeat_is_shown_and_its_interval_is_called_that_of_steps(stand_in, capsys):
    report = scaled(capsys, "ddp", "--ranks", "1,2", "--repeats", "1", "--sweep", "s")
    assert any("only one run on 1 and 2 ranks" in why for why in report["scaling"]["unavailable"])


def test_a_run_that_fails_ends_it_with_4_and_nothing_is_lost(stand_in, capsys):
    arguments = ["scale", "ddp", "--ranks", "1,2", "--repeats", "1", "--sweep", "s"]
    (stand_in / "fail").touch()
    assert main(arguments) == 4
    said = capsys.readouterr().err
    assert "rank 0 was killed" in said
    assert "0 of 2 runs are done" in said
    assert "distprof scale --sweep s" in said
    assert main(["scale", "--from", "s"]) == 3
    assert "2 runs are still missing" in capsys.readouterr().err
    (stand_in / "fail").unlink()
    assert main(["scale", "--sweep", "s"]) == 0
    assert len(calls(stand_in)) == 3


def test_ctrl_c_is_told_to_the_run_and_the_sweep_goes_on_later(stand_in, capsys):
    (stand_in / "wait").touch()
    driver = (
        "import sys; from distprof.verbs.sweep import running; from distprof.cli.app import main;"
        f"running._DISTPROF = (sys.executable, {str(stand_in / 'stand_in.py')!r});"
        "sys.exit(main(['scale', 'ddp', '--ranks', '1,2', '--repeats', '1', '--sweep', 's']))"
    )
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with ended(subprocess.Popen([sys.executable, "-c", driver], text=True, **pipes)) as process:
        while not (stand_in / "ready").exists():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert (stand_in / "told").exists()
    assert "Interrupted: 0 of 2 runs are done; resume with: distprof scale --sweep s" in said
    (stand_in / "wait").unlink()
    assert main(["scale", "--sweep", "s"]) == 0
    assert "2 ranks reach 95.0 %" in capsys.readouterr().out


def test_a_sweep_that_another_program_is_making_is_left_alone(stand_in, capsys):
    assert main(["scale", "ddp", "--ranks", "1,2", "--repeats", "1", "--sweep", "s"]) == 0
    with locked(Path("s")):
        assert main(["scale", "--sweep", "s"]) == 3
        assert main(["scale", "--from", "s"]) == 0  # to look is free
    assert "still in progress" in capsys.readouterr().err
    assert len(calls(stand_in)) == 2


def test_a_program_of_the_users_own_and_what_it_is_told_to_do(stand_in, capsys):
    command = ["--", "torchrun", "--nproc-per-node", "{ranks}", "train.py"]
    arguments = ["scale", "--ranks", "1,2", "--repeats", "1", "--weak", "--sweep", "s", *command]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "95.0 %" in out
    assert "Not like for like" not in out
    again = scaled(capsys, "--sweep", "s")  # it is remembered
    assert again["scaling"]["mode"] == "weak"


def test_without_work_per_step_the_mode_must_be_told(stand_in, capsys):
    command = ["--", "torchrun", "--nproc-per-node", "{ranks}", "train.py"]
    assert main(["scale", "--ranks", "1,2", "--repeats", "1", "--sweep", "s", *command]) == 3
    assert "weak" in capsys.readouterr().out
    assert efficiencies(scaled(capsys, "--from", "s", "--strong"))[2] == pytest.approx(0.475)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "nothing to scale"),
        (["ddp"], "name the sizes"),
        (["ddp", "--ranks", "2"], "--ranks 2,4"),
        (["ddp", "--ranks", "1,x"], "is not a list"),
        (["ddp", "--ranks", "1,2", "--gpus", "1,2"], "name the sizes"),
        (["ddp", "--ranks", "1,2", "--baseline-ranks", "3"], "not one of the sizes 1, 2"),
        (["ddp", "--ranks", "1,2", "--bach", "3"], "--bach"),
        (["ddp", "--ranks", "1,2,3", "--strong"], "--batch 12"),
        (["ddp", "--ranks", "1,2", "--save-summaries", "missing/x.json"], "missing"),
        (["ddp", "--ranks", "1,2", "--format", "junit"], "--format"),
        (["ddp", "--ranks", "1,2", "--from", "s"], "--from starts nothing"),
        (["--from", "s", "--sweep", "s"], "--from starts nothing"),
        (["ddp", "--ranks", "1,2", "--sweep", "full"], "exists and is not a sweep"),
        (["ddp", "--ranks", "1,2", "--sweep", "full/file"], "cannot be created"),
    ],
)
def test_what_cannot_work_is_said_before_anything_runs(stand_in, capsys, arguments, why):
    Path("full").mkdir()
    Path("full", "file").touch()
    assert main(["scale", *arguments]) == 2
    assert why in capsys.readouterr().err
    assert calls(stand_in) == []


def test_another_sweep_does_not_go_on_in_the_same_folder(stand_in, capsys):
    assert main(["scale", "ddp", "--ranks", "1,2", "--repeats", "1", "--sweep", "s"]) == 0
    assert main(["scale", "ddp", "--ranks", "1,4", "--repeats", "1", "--sweep", "s"]) == 2
    assert "other sizes" in capsys.readouterr().err


def test_summaries_are_kept_and_never_replaced(stand_in, capsys):
    files = ["--save-summaries", "all.json"]
    arguments = ["scale", "ddp", "--ranks", "1,2", "--repeats", "1", "--sweep", "s", *files]
    assert main(arguments) == 0
    capsys.readouterr()
    assert efficiencies(scaled(capsys, "--from", "all.json"))[2] == pytest.approx(0.95)
    assert main(["scale", "--from", "s", *files]) == 2


def table(name, text):
    Path(name).write_text(text)
    return name


def test_strong_scaling_of_the_formula_sheet_from_a_table(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file = table("times.csv", "ranks,step_s\n1,100\n4,28\n")
    four = scaled(capsys, "--from", file, "--strong")["scaling"]["sizes"][1]
    assert four["speedup"] == pytest.approx(3.57, abs=0.005)
    assert four["efficiency"] == pytest.approx(0.893, abs=0.0005)
    assert main(["scale", "--from", file, "--strong"]) == 0
    assert "4 ranks reach 89.3 % of the efficiency of 1" in capsys.readouterr().out


def test_weak_scaling_of_the_formula_sheet_from_a_table(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = "1,100,512\n2,190,1024\n4,370,2048\n8,720,4096\n"
    file = table("rates.csv", f"ranks,samples_per_s,samples_per_step\n{rows}")
    report = scaled(capsys, "--from", file)
    assert report["scaling"]["mode"] == "weak"
    assert efficiencies(report) == pytest.approx({1: 1, 2: 0.95, 4: 0.925, 8: 0.9}, rel=1e-6)
    assert report["findings"] == []


@pytest.mark.parametrize(
    "text", ["ranks,step_s\n1,0\n2,5\n", "ranks,step_s\n1,-3\n2,5\n", "ranks,step_s\n1,5\n"]
)
def test_tables_that_are_no_sweep_end_with_3_and_a_sentence(tmp_path, monkeypatch, capsys, text):
    monkeypatch.chdir(tmp_path)
    assert main(["scale", "--from", table("t.csv", text), "--strong"]) == 3
    captured = capsys.readouterr()
    assert "distprof met something" not in captured.err
    assert captured.out or captured.err


def test_logs_of_training_programs_are_runs_too(capsys):
    logs = ROOT / "tests" / "golden" / "training-logs"
    names = [logs / f"megatron-tp4-pp{stages}-mb4-v100.out.gz" for stages in (4, 16)]
    sources = [word for name in names for word in ("--from", str(name))]
    scaling = scaled(capsys, *sources)["scaling"]
    assert (scaling["mode"], scaling["unit"]) == ("strong", "tokens")
    small, large = scaling["sizes"]
    assert (small["step_ns"], large["num_ranks"]) == (1_380_600_000, 64)
    assert large["efficiency"] == pytest.approx(1.3806 * 16 / (2.74 * 64), rel=0.005)


RUN = {"ranks": 1, "repeat": 0, "folder": "a", "arguments": ["run", "ddp"], "state": "done"}
WHOLE = {"schema": "distprof.sweep/1", "distprof_version": "1", "started_ns": 1, "runs": [RUN]}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 100_000,
        "\x00",
        json.dumps(WHOLE)[:-9],
        json.dumps({**WHOLE, "schema": "distprof.sweep/2"}),
        json.dumps({**WHOLE, "runs": [{**RUN, "folder": "../victim"}]}),
        json.dumps({**WHOLE, "runs": [{**RUN, "folder": "/tmp"}]}),
        json.dumps({**WHOLE, "runs": [{**RUN, "folder": ".."}]}),
        json.dumps({**WHOLE, "runs": [{**RUN, "folder": "\x1b[31m"}]}),
        json.dumps({**WHOLE, "runs": [{**RUN, "arguments": ["cache", "--clear"]}]}),
        json.dumps({**WHOLE, "runs": [{**RUN, "arguments": []}]}),
        json.dumps({**WHOLE, "runs": [{**RUN, "ranks": -1}]}),
        json.dumps({**WHOLE, "runs": [{**RUN, "ranks": 10**30}]}),
        json.dumps({**WHOLE, "started_ns": "now"}),
    ],
)
@pytest.mark.parametrize("option", ["--from", "--sweep"])
def test_a_damaged_sweep_file_is_named_and_nothing_is_run_or_removed(
    stand_in, capsys, option, text
):
    Path("victim").mkdir()
    Path("s").mkdir()
    Path("s", SWEEP_FILE).write_text(text)
    assert main(["scale", option, "s"]) == 3
    said = capsys.readouterr().err
    assert "found: " in said
    assert "unexpected error in distprof" not in said
    assert "\x1b" not in said
    assert Path("victim").is_dir()
    assert calls(stand_in) == []
