"""Series of runs: planned, made, interrupted, taken up again."""

import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.artefacts.sweep_file import SWEEP_FILE
from distprof.errors import InputError, UsageError
from distprof.sweep import running
from distprof.sweep.plan import parse_sizes, plan_program, plan_workload
from distprof.sweep.running import finished_runs, load_sweep, make_runs

STAND_IN = """
import json, pathlib, sys
words = sys.argv[1:]
out = pathlib.Path(words[words.index("-o") + 1])
log = pathlib.Path(__file__).with_name("calls.txt")
with log.open("a") as stream:
    stream.write(" ".join(words) + "\\n")
if "--fail" in words and not pathlib.Path(__file__).with_name("mended").exists():
    print("the disk is full", file=sys.stderr)
    sys.exit(4)
out.mkdir()
job = {"schema": "distprof.run/1", "distprof_version": "0", "kind": "run", "command": [],
       "started_ns": 1, "outcome": "completed"}
(out / "run.json").write_text(json.dumps(job))
"""


def batch_of_8(arguments):
    return {"training": {"batch": 8}}


def sweep_of(workload="ddp", sizes=(1, 2, 4), arguments=(), **fields):
    values = {"repeats": 2, "scaling": "weak", "device": "ranks", "configuration": batch_of_8}
    return plan_workload(workload, sizes, arguments, **values | fields)


def batch_by_size(sweep):
    found = {}
    for run in sweep.runs:
        words = list(run.arguments)
        found[run.ranks] = int(words[words.index("--batch") + 1]) if "--batch" in words else None
    return found


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """Stands in for the program; returns the arguments of each call so far."""
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN)
    monkeypatch.setattr(running, "_DISTPROF", (sys.executable, str(script)))

    def read():
        log = tmp_path / "calls.txt"
        return log.read_text().splitlines() if log.exists() else []

    return read


def test_sizes_take_turns_there_and_back():
    order = [(run.repeat, run.ranks) for run in sweep_of().runs]
    assert order == [(0, 4), (0, 2), (0, 1), (1, 1), (1, 2), (1, 4)]


def test_a_linear_drift_weighs_on_all_sizes_alike():
    runs = sweep_of(repeats=4).runs
    weight = {size: sum(i for i, r in enumerate(runs) if r.ranks == size) for size in (1, 2, 4)}
    assert len(set(weight.values())) == 1


@pytest.mark.parametrize(
    ("workload", "scaling", "batches"),
    [
        ("ddp", "weak", {1: None, 2: None, 4: None}),
        ("ddp", "strong", {1: 8, 2: 4, 4: 2}),
        ("tp", "strong", {1: None, 2: None, 4: None}),
        ("tp", "weak", {1: 8, 2: 16, 4: 32}),
    ],
)
def test_work_is_shared_as_asked(workload, scaling, batches):
    assert batch_by_size(sweep_of(workload, scaling=scaling)) == batches


def test_a_batch_that_cannot_be_shared_is_refused_with_one_that_can():
    with pytest.raises(UsageError, match="--batch 24"):
        sweep_of(sizes=(1, 2, 3, 8), scaling="strong", arguments=["--batch", "8"])


def test_what_the_user_sets_about_probes_stands():
    run = sweep_of(arguments=["--profile-steps=7", "--measure-overhead"]).runs[-1]
    assert "--no-measure-overhead" not in run.arguments
    assert "--profile-steps" not in run.arguments


def test_a_program_must_say_where_the_number_of_ranks_belongs():
    command = ["torchrun", "--nproc-per-node", "{ranks}", "train.py"]
    sweep = plan_program(command, (1, 2), repeats=1, device="gpus")
    assert {run.ranks: run.arguments[4] for run in sweep.runs} == {1: "1", 2: "2"}
    with pytest.raises(UsageError, match=r"\{ranks\}"):
        plan_program(["python", "train.py"], (1, 2), repeats=1, device="gpus")


@given(st.sets(st.integers(1, 500), min_size=1))
def test_sizes_are_read_as_they_are_written(sizes):
    assert parse_sizes(", ".join(map(str, sizes))) == tuple(sorted(sizes))


@pytest.mark.parametrize("text", ["", "0", "1,,2", "1-4", "-2", "a", "99999999"])
def test_what_is_no_list_of_sizes_is_refused(text):
    with pytest.raises(UsageError):
        parse_sizes(text)


def test_a_thousand_runs_are_enough():
    with pytest.raises(UsageError, match="runs"):
        sweep_of(repeats=400)


def test_every_run_is_made_in_its_own_folder(tmp_path, calls):
    folder = tmp_path / "sweep"
    folder.mkdir()
    said = []
    said = []
    outcome = make_runs(folder, sweep_of(), say=said.append)
    assert (outcome.exit_code, outcome.num_done) == (0, 6)
    assert len(calls()) == 6
    assert (said[0].number, said[0].total, said[0].run) == (1, 6, "4 ranks, repeat 1")
    assert said[0].left_s is None
    assert said[-1].left_s > 0
    assert all((path / "run.json").is_file() for path in finished_runs(folder, outcome.sweep))
    assert load_sweep(folder) == outcome.sweep


def test_what_is_done_is_not_made_again(tmp_path, calls):
    folder = tmp_path / "sweep"
    folder.mkdir()
    first = make_runs(folder, sweep_of(), say=lambda _: None).sweep
    lost = folder / first.runs[2].folder
    (lost / "run.json").unlink()  # as if it had been cut off
    again = make_runs(folder, load_sweep(folder), say=lambda _: None)
    assert again.num_done == 6
    assert len(calls()) == 7


def test_a_run_that_fails_ends_the_sweep_and_is_tried_again(tmp_path, calls):
    folder = tmp_path / "sweep"
    folder.mkdir()
    outcome = make_runs(folder, sweep_of(arguments=["--fail"]), say=lambda _: None)
    assert (outcome.exit_code, outcome.num_done) == (4, 0)
    assert "the disk is full" in outcome.why
    (tmp_path / "mended").touch()
    again = make_runs(folder, load_sweep(folder), say=lambda _: None)
    assert (again.exit_code, again.num_done) == (0, 6)


def test_a_damaged_sweep_file_is_named_and_a_missing_one_is_none(tmp_path):
    assert load_sweep(tmp_path) is None
    file = tmp_path / SWEEP_FILE
    file.write_text('{"schema": "distprof.sweep/1", ')
    with pytest.raises(InputError, match=r"sweep\.json"):
        load_sweep(tmp_path)
    file.write_bytes(msgspec.json.encode(sweep_of()).replace(b"sweep/1", b"sweep/9"))
    with pytest.raises(InputError, match="sweep/9"):
        load_sweep(tmp_path)


def test_wrong_options_of_the_workload_are_refused_before_any_run():
    with pytest.raises(UsageError, match="--bach"):
        running.configuration_of(["run", "ddp", "--ranks", "2", "--bach", "8"])


def test_the_workload_says_what_its_options_mean():
    told = running.configuration_of(["run", "ddp", "--ranks", "2", "--batch", "6"])
    assert told["training"]["batch"] == 6


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(InputError, match="can be written"):
        running.save_sweep(Path(tmp_path, "missing"), sweep_of())
