"""``distprof capture`` on programs that know nothing of it.

How it reaches a program that Python starts anew is tested on one process, with each of its ends;
torchrun's ranks, and what else the program does, start warm.
"""

from __future__ import annotations

import gzip
import json
import signal
import statistics
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.probes.cli.runs import (
    SCRIPTS,
    TORCHRUN,
    Captured,
    capture_command,
    captured,
    environment,
)
from tests.processes import ended
from tests.warm import LIMIT_S, Starter

pytestmark = pytest.mark.distributed

STEPS = 36


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory, started_warm: Starter) -> tuple[Captured, Path]:
    """Two DDP ranks: gradient accumulation, two optimizers, a data loader with a worker."""
    folder = tmp_path_factory.mktemp("group")
    script = [str(SCRIPTS / "plain_loop.py"), "--steps", str(STEPS), "--accumulate", "2"]
    script += ["--two-optimizers", "--workers", "1", "--rest", "0.02"]
    script += ["--times", str(folder / "times")]
    program = [*TORCHRUN, *script]
    return captured(folder / "run", program=program, start=started_warm), folder / "times"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Captured:
    """One process that ends by itself."""
    program = [sys.executable, str(SCRIPTS / "endings.py")]
    return captured(tmp_path_factory.mktemp("alone") / "run", program=program)


def test_a_page_is_written_into_the_run_directory_and_named_last(
    tmp_path: Path, started_warm: Starter
) -> None:
    program = [sys.executable, str(SCRIPTS / "endings.py")]
    run = captured(tmp_path / "run", "--format", "html", program=program, start=started_warm)
    assert run.code == 0, run.err
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert f"the report in {run.folder}/report.html" in run.err.splitlines()[-1]
    assert run.report["run"]["world_size"] == 1


def test_a_format_that_is_none_is_refused_before_the_program(
    tmp_path: Path, started_warm: Starter
) -> None:
    program = [sys.executable, str(SCRIPTS / "endings.py")]
    run = captured(tmp_path / "run", "--format", "pdf", program=program, start=started_warm)
    assert run.code == 2
    assert "no format 'pdf': choose from text, brief, json, md, html" in run.err
    assert not run.folder.exists()


def test_each_update_is_one_step_whatever_is_accumulated(group: tuple[Captured, Path]) -> None:
    run, _ = group
    assert run.code == 0, run.err
    for rank in (0, 1):
        assert [line["step"] for line in run.lines(rank)] == list(range(STEPS))


def test_steps_last_as_long_as_in_the_scripts_own_log(group: tuple[Captured, Path]) -> None:
    run, times = group
    for rank in (0, 1):
        own = json.loads((times / f"{rank}.json").read_text())
        ours = [line["end_ns"] for line in run.lines(rank)]
        late = [theirs - end for theirs, end in zip(own, ours, strict=True)]
        assert min(late) >= 0  # the script looks at its clock after the optimizer
        assert all(end >= before for before, end in zip(own, ours[1:], strict=False))
        steps = statistics.median(b - a for a, b in pairwise(own))
        found = statistics.median(b - a for a, b in pairwise(ours))
        assert found == pytest.approx(steps, rel=0.2)


def test_backward_passes_and_the_optimizer_are_phases(group: tuple[Captured, Path]) -> None:
    """A step ends with the first optimizer, so the second one's time is the next step's."""
    run, _ = group
    probed = [line for line in run.lines(0)[1:] if line.get("is_probed", True)]
    assert probed
    for line in probed:
        names = [name for name, _, _ in line["phases"]]
        assert names == ["optimizer", "backward", "backward", "optimizer"]


def test_torchs_mark_of_the_last_traced_step_is_whole(group: tuple[Captured, Path]) -> None:
    """The profiler stops after the optimizer's step, not in the middle of it."""
    run, _ = group
    with gzip.open(run.folder / "rank00000" / "trace.json.gz") as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    steps = [e for e in events if e["name"].startswith("ProfilerStep#")]
    updates = [e for e in events if e["name"].startswith("Optimizer.step#AdamW")]
    assert len(steps) == len(updates) == 13  # on 2 ranks
    for step, update in zip(steps, updates, strict=True):
        assert step["ts"] <= update["ts"]
        assert update["ts"] + update["dur"] <= step["ts"] + step["dur"]


def test_the_other_optimizer_is_counted(group: tuple[Captured, Path]) -> None:
    run, _ = group
    assert f"Rank 0: Also seen: {STEPS} steps of SGD." in run.run.notes


def test_neither_the_agent_nor_the_loaders_workers_are_ranks(group: tuple[Captured, Path]) -> None:
    run, _ = group
    assert [entry.rank for entry in run.run.ranks] == [0, 1]
    assert sorted(folder.name for folder in run.folder.glob("rank*")) == ["rank00000", "rank00001"]


def test_the_report_is_made_and_shown_after_the_programs_output(
    group: tuple[Captured, Path],
) -> None:
    run, _ = group
    last = max(run.out.rfind(f"rank {rank} step {STEPS - 1} ") for rank in (0, 1))
    assert "Findings" in run.out[last:]
    assert run.report["run"]["world_size"] == 2
    kinds = {entry["kind"] for entry in run.report["collectives"]["classes"]}
    assert "all_reduce" in kinds


def test_run_json_says_how_it_was_captured(group: tuple[Captured, Path]) -> None:
    run, _ = group
    assert (run.run.kind, run.run.outcome, run.run.world_size) == ("capture", "completed", 2)
    assert run.run.command[: len(TORCHRUN)] == TORCHRUN
    assert run.run.config["probes"]["mode"] == "window"


def test_waits_for_the_loader_are_recorded(group: tuple[Captured, Path]) -> None:
    run, _ = group
    assert any(line["kind"] == "input" for line in run.lines(0, "pauses.jsonl"))


def test_zero_and_compiled_models_and_chosen_ranks(tmp_path: Path, started_warm: Starter) -> None:
    """ZeRO-1 wraps its optimizer in another; both step, and each update is one step."""
    script = [str(SCRIPTS / "plain_loop.py"), "--steps", "12", "--zero", "--compile"]
    options = ["--no-report", "--profile-ranks", "1", "--start-step", "6", "--steps", "3"]
    run = captured(
        tmp_path / "run",
        *options,
        "--no-measure-overhead",
        program=[*TORCHRUN, *script, "--times", str(tmp_path / "times")],
        start=started_warm,
    )
    assert run.code == 0, run.err
    for rank in (0, 1):
        assert len(run.lines(rank)) == 12
    assert [line["step"] for line in run.lines(1) if line.get("is_traced")] == [6, 7, 8]
    assert (run.folder / "rank00001" / "trace.json.gz").is_file()
    assert not (run.folder / "rank00000" / "trace.json.gz").exists()
    assert run.run.coverage.profiled_ranks == (1,)


def test_what_the_program_prints_is_bit_identical(alone: Captured, started_warm: Starter) -> None:
    """The losses too: they are printed to the last bit."""
    plain = started_warm([sys.executable, str(SCRIPTS / "endings.py")], environment())
    assert plain.returncode == 0, plain.stderr
    assert alone.out.startswith(plain.stdout)
    assert "step 19 loss" in plain.stdout
    assert all(line.startswith("distprof: ") for line in alone.err.splitlines())


def test_a_single_process_is_rank_0_and_leaves_no_socket(alone: Captured) -> None:
    assert alone.code == 0
    assert len(alone.lines(0)) == 20
    assert alone.states(0)["attach"] == "on"
    assert not Path(alone.read(0, "attach.json")["socket"]).exists()


def test_an_exception_is_passed_on_and_kept(tmp_path: Path) -> None:
    program = [sys.executable, str(SCRIPTS / "endings.py"), "--steps", "9", "--end", "raise"]
    run = captured(tmp_path / "run", program=program)
    assert run.code == 1
    assert run.err.count("ValueError: the data ran out") == 1
    error = run.read(0, "error.json")
    assert (error["kind"], error["message"], error["step"]) == ("ValueError", "the data ran out", 8)
    assert run.run.outcome == "failed"
    assert run.run.failure is not None
    assert run.run.failure.kind == "exception"
    assert len(run.lines(0)) == 9
    assert (run.folder / "report.json").is_file()


@pytest.mark.parametrize(("end", "code"), [("exit", 5), ("os-exit", 6), ("kill", 137)])
def test_exit_codes_come_back_and_steps_are_kept(
    tmp_path: Path, end: str, code: int, started_warm: Starter
) -> None:
    program = [sys.executable, str(SCRIPTS / "endings.py"), "--end", end]
    run = captured(tmp_path / "run", "--no-report", program=program, start=started_warm)
    assert run.code == code
    assert len(run.lines(0)) == 20
    assert run.run.outcome == "failed"


def test_sigterm_keeps_the_evidence_and_still_ends_the_program(tmp_path: Path) -> None:
    program = [sys.executable, str(SCRIPTS / "endings.py"), "--end", "wait"]
    command = capture_command(tmp_path / "run", "--no-report", program=program)
    started = subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with ended(started) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line == "waiting\n":
                break
        process.terminate()
        process.communicate(timeout=LIMIT_S)
    assert process.returncode == 128 + signal.SIGTERM
    run = Captured(folder=tmp_path / "run", code=process.returncode, out="", err="")
    assert run.run.outcome == "interrupted"
    assert run.read(0, "rank.json")["ended_ns"] is not None
    assert len(run.lines(0)) == 20


def test_ctrl_c_before_the_first_step_prints_three_lines(tmp_path: Path) -> None:
    """A report on nothing pushed the program's own words off the screen."""
    program = [sys.executable, "-c", _WAITS_BEFORE_ITS_FIRST_STEP]
    started = subprocess.Popen(
        capture_command(tmp_path / "run", program=program),
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with ended(started) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert out == ""
    told = [line for line in err.splitlines() if line.startswith("distprof: ")]
    assert len(told) == 3
    assert "SIGINT, and no step was recorded" in told[1]


_WAITS_BEFORE_ITS_FIRST_STEP = """
import signal, time, torch
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
torch.optim.SGD(torch.nn.Linear(4, 4).parameters(), lr=0.1)
print("ready", flush=True)
time.sleep(600)
"""


def test_the_users_own_profiler_has_priority(tmp_path: Path, started_warm: Starter) -> None:
    program = [sys.executable, str(SCRIPTS / "endings.py"), "--own-profiler"]
    run = captured(tmp_path / "run", "--no-report", program=program, start=started_warm)
    assert run.code == 0, run.err
    assert "own events True" in run.out
    assert run.states(0)["profiler"] == "yielded"
    assert len(run.lines(0)) == 20


@pytest.mark.parametrize("name", ["own.json", "own.json.gz"])
def test_what_the_users_own_profiler_exports_is_in_the_report(
    tmp_path: Path, started_warm: Starter, name: str
) -> None:
    exported = str(tmp_path / name)
    program = [sys.executable, str(SCRIPTS / "endings.py"), "--own-profiler", "--export", exported]
    run = captured(tmp_path / "run", program=program, start=started_warm)
    assert run.code == 0, run.err
    assert run.report["run"]["ranks"] == [0]
    assert run.report["breakdown"]["ranks"]
    assert run.states(0)["profiler"] == "yielded"
    assert (tmp_path / name).is_file()


def test_a_run_shorter_than_the_plan_is_recorded(tmp_path: Path, started_warm: Starter) -> None:
    program = [sys.executable, str(SCRIPTS / "endings.py"), "--steps", "5"]
    run = captured(tmp_path / "run", program=program, start=started_warm)
    assert run.code == 0
    assert len(run.lines(0)) == 5
    assert (run.folder / "report.json").is_file()


@pytest.mark.parametrize(("options", "code"), [((), 0), (("--fail-on", "error"), 3)])
def test_a_program_that_trains_nothing_is_told_so(
    tmp_path: Path, options: tuple[str, ...], code: int
) -> None:
    """Its exit code stays its own, unless a verdict was asked for that cannot be given."""
    program = [sys.executable, "-c", "print('hello')"]
    run = captured(tmp_path / "run", *options, program=program)
    assert run.out == "hello\n"
    assert run.code == code
    assert "No step was recorded: no Python process of the program imported torch" in run.err


def test_a_wrong_command_is_told_before_anything_is_made(tmp_path: Path) -> None:
    for program in (["no-such-program"], [sys.executable, "-I", "train.py"]):
        run = captured(tmp_path / "run", program=program)
        assert run.code == 2
        assert run.err.startswith("Error: ")
        assert not run.folder.exists()


RECORDS = """
import os, sys
folder = os.path.join(os.environ["DISTPROF_RUN_DIR"], "rank00000")
os.mkdir(folder)
with open(os.path.join(folder, "steps.jsonl"), "w") as file:
    file.write('{"schema":"distprof.steps/1","rank":0}\\n{"step":0,"start_ns":1,"end_ns":2}\\n')
sys.exit(int(sys.argv[1]))
"""
"""A program that is recorded without torch."""


WITH_REPORT = """
import sys
from distprof_probes.job import finish
from distprof.cli import main

def report(*_, **__):
    if sys.argv[1].isdigit():
        return int(sys.argv[1])
    raise getattr(__builtins__, sys.argv[1])("broken")

finish.report = report
sys.exit(main(sys.argv[2:]))
"""
"""``distprof`` whose report ends in some way."""

FAIL_ON = ("--fail-on", "error")


@pytest.mark.parametrize(
    ("program", "report", "options", "code"),
    [
        (0, "0", (), 0),
        (0, "3", (), 0),
        (0, "OSError", (), 0),
        (0, "KeyboardInterrupt", (), 0),
        (0, "1", FAIL_ON, 1),
        (0, "3", FAIL_ON, 3),
        (0, "OSError", FAIL_ON, 3),
        (0, "KeyboardInterrupt", FAIL_ON, 130),
        (7, "3", (), 7),
        (7, "1", FAIL_ON, 7),
        (7, "OSError", FAIL_ON, 7),
        (7, "KeyboardInterrupt", FAIL_ON, 7),
    ],
)
def test_the_exit_code_is_the_programs_own_whatever_the_report_does(
    program: int, report: str, options: tuple[str, ...], code: int, tmp_path: Path
) -> None:
    """Only who asks for a verdict gets one, of a program that ended with 0."""
    recorded = [sys.executable, "-c", RECORDS, str(program)]
    words = capture_command(tmp_path / "run", *options, program=recorded)[3:]
    done = subprocess.run(
        [sys.executable, "-c", WITH_REPORT, report, *words],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == code, done.stderr
    if report in ("3", "OSError"):
        assert "There is no report" in done.stderr
    if report == "KeyboardInterrupt":
        assert "The report was interrupted. It can be made with: distprof analyze " in done.stderr


def test_the_report_of_a_failed_job_says_what_it_printed(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys, torch\n"
        "model = torch.nn.Linear(4, 4)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(20):\n"
        "    model(torch.ones(2, 4)).sum().backward()\n"
        "    optimizer.step()\n"
        "print('[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation '\n"
        "      'timeout: WorkNCCL(SeqNum=6, OpType=ALLREDUCE, NumelIn=64, Timeout(ms)=600000) '\n"
        "      'ran for 600029 milliseconds before timing out.', file=sys.stderr, flush=True)\n"
        "os.abort()\n"
    )
    command = [sys.executable, "-m", "distprof", "capture", "-o", str(tmp_path / "run")]
    done = subprocess.run(
        [*command, "--", sys.executable, str(script)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 134
    assert "Watchdog caught" in done.stderr
    assert "all-reduce 6" in done.stdout.replace("\n", " ")
