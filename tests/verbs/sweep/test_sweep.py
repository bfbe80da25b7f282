"""Series of runs: planned, made, interrupted, taken up again."""

import os
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.artefacts.summary_file import SWEEP_FILE
from distprof.errors import InputError, UsageError
from distprof.verbs.sweep import running
from distprof.verbs.sweep import running as child
from distprof.verbs.sweep.running import finished_runs, load_sweep, locked, make_runs
from distprof.verbs.sweep.runs import parse_sizes, plan_program, plan_workload

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
    """Replaces the program; returns the arguments of each call so far."""
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


@pytest.mark.parametrize("text", ["", "0", "1,,2", "1-4", "-2", "a", "99999999", "9" * 5_000, "²"])
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
    outcome = make_runs(folder, sweep_of(), say=said.append)
    assert (outcome.exit_code, outcome.num_done) == (0, 6)
    assert len(calls()) == 6
    assert (said[0].number, said[0].total, said[0].run) == (1, 6, "4 ranks, repeat 1")
    assert said[0].left_s is None
    (last,) = [one for one in said if (one.number, one.elapsed_s) == (6, 0)]
    assert last.left_s > 0
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


def test_what_was_done_before_a_kill_is_not_made_again(tmp_path, calls):
    """The sweep's own program may be killed after a run ended, before it wrote that down."""
    plan = sweep_of()
    make_runs(tmp_path, plan, say=lambda _: None)
    running.save_sweep(tmp_path, plan)  # no file says that a run is done
    again = make_runs(tmp_path, load_sweep(tmp_path), say=lambda _: None)
    assert again.num_done == 6
    assert len(calls()) == 6


def test_runs_of_another_command_are_not_taken_for_done(tmp_path, calls):
    make_runs(tmp_path, sweep_of(), say=lambda _: None)
    make_runs(tmp_path, sweep_of(arguments=["--layers", "9"]), say=lambda _: None)
    assert len(calls()) == 12


def test_time_left_is_that_of_runs_of_the_same_size():
    took = {1: 10.0, 2: 20.0, 4: 40.0}
    runs = [
        msgspec.structs.replace(run, state="done", took_s=took[run.ranks])
        if run.repeat == 0
        else run
        for run in sweep_of(sizes=(1, 2, 4), repeats=2).runs
    ]
    sweep = msgspec.structs.replace(sweep_of(), runs=tuple(runs))
    told = []
    running._reporter(sweep, 3, told.append)(4.0)  # of the 10 s that the fourth run will take
    assert told[0].left_s == pytest.approx(6 + 20 + 40)
    running._reporter(sweep, 3, told.append)(400.0)
    assert told[1].left_s == pytest.approx(20 + 40)


LASTING = """
import pathlib, signal, sys, time
signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
pathlib.Path(sys.argv[1]).touch()
while True: time.sleep(0.01)  # pause() misses a signal that came just before it
"""


def test_whatever_comes_up_the_run_ends_in_order_first(tmp_path, monkeypatch):
    monkeypatch.setattr(child, "_BEAT_S", 0.02)
    ready = tmp_path / "ready"

    def beat(_):
        if ready.exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        child.run_child([sys.executable, "-c", LASTING, str(ready)], beat=beat)


STUBBORN = LASTING.replace("lambda *_: sys.exit(130)", "signal.SIG_IGN")


def test_a_run_that_does_not_end_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(child, "_BEAT_S", 0.02)
    monkeypatch.setattr(child, "_PATIENCE_S", 0.1)
    ready = tmp_path / "ready"

    def beat(_):
        if ready.exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        child.run_child([sys.executable, "-c", STUBBORN, str(ready)], beat=beat)


def test_a_process_that_a_signal_ended_has_the_code_that_shells_give():
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    ended = child.run_child([sys.executable, "-c", code], beat=lambda _: None)
    assert ended.exit_code == 137


def test_a_run_keeps_the_lock_when_the_sweep_is_gone(tmp_path):
    """The descriptor that a run holds is enough, whoever closed the sweep's own."""
    with locked(tmp_path) as held:
        assert held
        kept = os.dup(held[0])
    with pytest.raises(InputError, match="still in progress"), locked(tmp_path):
        pass
    os.close(kept)
    with locked(tmp_path):
        pass
