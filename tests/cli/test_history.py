"""``distprof history``, as its user calls it."""

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import msgspec
import pytest

from distprof.cli.app import main
from distprof.verbs.history.dataset import append, read
from distprof.verbs.history.show import HISTORY
from docs.schemas import schema_of
from tests.verbs.history.samples import commits, summary

GOLDEN = Path(__file__).parents[1] / "golden"
RUN = str(GOLDEN / "job" / "gloo-hsdp-4ranks")
CALM = (100_000_000, 100_300_000, 99_800_000)
LEVELS = [1.0] * 6 + [1.08] * 4


@pytest.fixture
def history(tmp_path):
    """Ten commits of three repeats; the seventh made it 8 % slower."""
    folder = str(tmp_path / "history")
    append(folder, commits([[level * value for value in CALM] for level in LEVELS]))
    return folder


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Away from this project's own configuration."""
    monkeypatch.chdir(tmp_path)


def test_a_run_is_added_once(capsys):
    for added in ("Added 1 of 1 runs", "Added 0 of 1 runs"):
        (Path() / "one.json").write_bytes(msgspec.json.encode(summary(5)))
        assert main(["history", "add", "one.json"]) == 0
        assert added in capsys.readouterr().err
    assert Path(".distprof/history").is_dir()


def test_traces_get_the_commit_and_the_label_that_are_given(tmp_path):
    place = str(tmp_path / "h")
    assert main(["history", "add", RUN, "--history", place, "--commit", "abc", "--label", "x"]) == 0
    (added,) = read(place)[0]
    assert (added.git_commit, added.label, added.fingerprint.world_size) == ("abc", "x", 4)


def test_a_runs_own_commit_is_kept(tmp_path):
    (tmp_path / "one.json").write_bytes(msgspec.json.encode(summary(5, commit="own")))
    assert main(["history", "add", "one.json", "--commit", "given", "-q"]) == 0
    assert read(".distprof/history")[0][0].git_commit == "own"


def test_the_projects_configuration_says_where_and_how(capsys, history):
    Path("distprof.toml").write_text(
        f'[check]\nhistory = "{history}"\ntolerance = {{ step_time = 0.2 }}\nwindow = 3\n'
    )
    assert main(["history", "show", "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["source"], shown["tolerance"], shown["window"]) == (history, 0.2, 3)
    assert "regressed" not in [point["state"] for point in shown["series"][0]["points"]]


def test_the_first_line_says_what_changed_and_the_sentences_where(capsys, history):
    assert main(["history", "show", "--history", history]) == 0
    out = capsys.readouterr().out
    assert out.startswith("step time: 1 regression in 10 points. The newest, c9, has 108 ms")
    assert "Regressed at c6 (2025-10-15): +7.9" in out
    assert "DDP on 8 ranks of NVIDIA H100" in out


@pytest.mark.parametrize("width", [60, 80, 120])
def test_each_point_is_drawn_and_no_line_is_wider_than_asked(capsys, history, width):
    assert main(["history", "show", "--history", history, "--width", str(width)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if line.strip().startswith("c")][1:]
    places = [max(line.find("▒"), line.find("█")) for line in rows]
    assert len(places) == 10
    assert max(places[:6]) < min(places[6:])


def test_the_newest_points_are_shown_unless_all_are_asked_for(capsys, history):
    for arguments, count in (["--last", "3"], 3), (["--last", "99"], 10), (["--all"], 10):
        assert main(["history", "show", "--history", history, "--format", "json", *arguments]) == 0
        series = json.loads(capsys.readouterr().out)["series"][0]
        assert len(series["points"]) == count
        assert series["num_earlier"] == 10 - count


def test_series_are_told_apart_and_chosen(capsys, history):
    other = msgspec.structs.replace(summary().fingerprint, workload="moe", strategy="experts")
    append(history, [summary(7, day=20, fingerprint=other)])
    ask = ["history", "show", "--history", history, "--format", "json"]
    assert main(ask) == 0
    both = json.loads(capsys.readouterr().out)["series"]
    assert [one["fingerprint"]["workload"] for one in both] == ["moe", "ddp"]
    for chosen in (["--workload", "DDP"], ["--series", both[1]["key"][:6]]):
        assert main([*ask, *chosen]) == 0
        assert json.loads(capsys.readouterr().out)["series"] == both[1:]


def test_many_series_are_folded(capsys, tmp_path):
    place = str(tmp_path / "h")
    prints = [msgspec.structs.replace(summary().fingerprint, device=f"D{i}") for i in range(7)]
    append(place, [summary(5, day=i, fingerprint=one) for i, one in enumerate(prints)])
    assert main(["history", "show", "--history", place]) == 0
    out = capsys.readouterr().out
    assert "3 older series are not shown" in out
    assert "D6" in out
    assert "D2" not in out
    assert main(["history", "show", "--history", place, "--all"]) == 0
    assert "D2" in capsys.readouterr().out


def test_a_metric_that_no_run_has_is_said(capsys, history):
    assert main(["history", "show", "--history", history, "--metric", "energy"]) == 0
    assert capsys.readouterr().out.startswith(
        "No run in this history has the metric energy per step."
    )


@pytest.mark.parametrize("arguments", [[], ["--metric", "mfu"]])
def test_json_is_what_its_schema_says(capsys, history, arguments):
    assert main(["history", "show", *arguments, "--history", history, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    validator = jsonschema.Draft202012Validator(schema_of(HISTORY))
    assert list(validator.iter_errors(document)) == []
    assert list(validator.iter_errors({**document, "schema": "other"}))


def test_names_that_a_terminal_would_obey_are_harmless(capsys, tmp_path):
    place = str(tmp_path / "h")
    bad = "\x1b[31m<b>|\n"
    odd = msgspec.structs.replace(summary().fingerprint, strategy=bad, device=bad)
    append(place, [summary(5, commit=bad, label=bad, fingerprint=odd)])
    for name in ("text", "md", "json"):
        assert main(["history", "show", "--history", place, "--format", name]) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert name != "md" or "<b>" not in out


def test_a_run_of_no_commit_goes_by_its_label_or_its_time(capsys, tmp_path):
    place = str(tmp_path / "h")
    append(place, [summary(5, commit="", label="mine"), summary(6, commit="", day=1)])
    assert main(["history", "show", "--history", place]) == 0
    out = capsys.readouterr().out
    assert "mine " in out
    assert "run of 08:53" in out


def test_times_that_no_calendar_has_are_shown_as_unknown(capsys, tmp_path):
    place = str(tmp_path / "h")
    append(place, [msgspec.structs.replace(summary(5), created_ns=2**62)])
    append(place, [msgspec.structs.replace(summary(6), created_ns=-(2**62))])
    assert main(["history", "show", "--history", place]) == 0


def test_files_are_put_together(capsys, history):
    assert main(["history", "compact", "--history", history]) == 0
    assert "Merged 30 files with 30 runs" in capsys.readouterr().err
    assert len(list(Path(history).iterdir())) == 1
    assert main(["history", "show", "--history", history]) == 0
    assert "1 regression in 10 points" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["add"], 2, "RUN"),
        (["add", "nowhere"], 3, "no file or folder with that name"),
        (["add", RUN, "--history", RUN], 3, "other files"),
        (["show", "--history", "nowhere"], 3, "distprof history add"),
        (["show", "--history", ""], 2, "empty"),
        (["show", "--metric", "speed"], 2, "step_time"),
        (["show", "--last", "0"], 2, "--last"),
        (["show", "--format", "csv"], 2, "csv"),
        (["query", "SELECT 1"], 2, "query"),
        (["compact", "--history", "s4://nowhere"], 3, "s4"),
        (["forget"], 2, "forget"),
    ],
)
def test_what_is_wrong_is_said(capsys, arguments, code, says):
    assert main(["history", *arguments]) == code
    assert says in capsys.readouterr().err


def test_a_series_that_is_not_there_is_said(capsys, history):
    assert main(["history", "show", "--history", history, "--series", "zz"]) == 2
    assert "DDP on 8 ranks" in capsys.readouterr().err


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from distprof.cli.app import main; main(['history', 'show', '--help']); "
        "print(sorted({'pyarrow', 'numpy', 'rich', 'fsspec'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
