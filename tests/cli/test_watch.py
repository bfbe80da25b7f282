"""``watch``: exit codes, formats, lines without a terminal, a page on one, and Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import msgspec
import pytest

from distprof.artefacts.records import CollectivesRecord, GroupTimes, StepRecord
from distprof.artefacts.run_file import ProbeStatus
from distprof.cli.app import main
from distprof.verbs.watch.show import WATCH
from docs.schemas import schema_of
from tests.job_folders import MS, JobFolder


def job(folder: Path, *, late_ms: float = 0, outcome: str = "completed", num: int = 100) -> Path:
    """Three ranks, of which rank 1 needs more own time."""
    start = time.time_ns() - num * 100 * MS
    made = JobFolder(folder, mesh={"dp_replicate": 3}, outcome=outcome)
    for rank in range(3):
        own = 80 + (late_ms if rank == 1 else 0)
        records = [
            StepRecord(
                step=n,
                start_ns=start + n * 100 * MS,
                end_ns=start + (n + 1) * 100 * MS,
                cpu_ns=round(own * MS),
                run_queue_ns=0,
            )
            for n in range(num)
        ]
        made.lines(rank, "steps.jsonl", records).rank_file(rank, device="cpu")
    return made.write()


def test_once_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(job(tmp_path, late_ms=20)), "--once"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("The job has completed after step 99\n")
    assert "25.0 %" in out


def test_gpu_ranks_are_compared_by_their_collectives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = job(tmp_path)
    made = JobFolder(folder, mesh={"dp_replicate": 3})
    for rank in range(3):
        made.rank_file(rank, device="NVIDIA H100")
    reason = "NCCL's timing is off: set X=1"
    probe = ProbeStatus(name="collective_times", state="unavailable", reason=reason)
    made.rank_file(1, device="NVIDIA H100", probes=(probe,))
    assert main(["watch", str(folder), "--once", "--alert", "slow-rank"]) == 0
    assert f"Own time of ranks 0-2 is unknown: {reason}." in capsys.readouterr().out
    times = {"group": "0:1", "kind": "all", "num_ranks": 3, "num": 1}
    for rank in range(3):
        took_ns = ((5 if rank == 1 else 25) * MS,)
        rows = (GroupTimes(**times, first=n, total_ns=took_ns) for n in range(100))
        made.collectives(
            rank, *(CollectivesRecord(step=n, groups=(row,)) for n, row in enumerate(rows))
        )
    assert main(["watch", str(folder), "--once", "--alert", "slow-rank", "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, schema_of(WATCH))
    (late,) = found["late"]
    assert (late["rank"], late["late_ns"], late["late_most_ns"]) == (1, 20 * MS, 20 * MS)
    assert (found["own_known_from"], found["unknown"]) == ("collectives", [])


def test_once_as_json_fits_its_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(job(tmp_path)), "--once", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, schema_of(WATCH))
    assert (found["state"], found["step"], found["world_size"]) == ("completed", 99, 3)


@pytest.mark.parametrize(
    ("late_ms", "alert", "code"),
    [
        (20, "slow-rank=10%", 1), (20, "slow-rank=50%", 0), (20, "rank-lost", 0),
        (0, "slow-rank", 0), (20, None, 0),
    ],
)  # fmt: skip
def test_what_the_user_asked_to_be_told_decides_the_exit_code(
    tmp_path: Path, late_ms: float, alert: str | None, code: int
) -> None:
    options = [] if alert is None else ["--alert", alert]
    assert main(["watch", str(job(tmp_path, late_ms=late_ms)), "--once", *options]) == code


def test_without_a_terminal_each_look_is_a_line_and_the_end_of_the_job_ends_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", str(job(tmp_path, late_ms=20)), "--every", "0.1"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "completed · step 99 · 10 steps/s (100 ms) · late 1 (+25.0 %) · ALERT slow-rank"
    assert second == "raised: slow-rank: Rank 1: own time is 25.0 % above that of the peers"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "no folder with this name"),
        (["http://127.0.0.1:9/metrics"], "an address"),
        (["x\x1b[2Jy"], "x\\x1b[2Jy"),
    ],
)
def test_what_is_no_run_directory_is_said_so(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", *arguments, "--once"]) == 3
    err = capsys.readouterr().err
    assert message in err
    assert "\x1b" not in err


@pytest.mark.parametrize(
    "option", [("--alert", "slow"), ("--webhook", "file:///x"), ("--exec", "'"), ("--every", "0")]
)
def test_options_are_checked_before_anything_is_watched(
    tmp_path: Path, option: tuple[str, str]
) -> None:
    assert main(["watch", str(tmp_path), *option]) == 2


def test_an_empty_directory_is_a_job_that_has_not_begun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", str(tmp_path), "--once"]) == 0
    assert capsys.readouterr().out.startswith("No step yet\n")


def started(folder: Path, *options: str, **streams: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "distprof", "watch", str(folder), "--every", "0.1", *options]
    return subprocess.Popen(command, env={**os.environ, "TERM": "xterm"}, **streams)  # type: ignore[call-overload]


def test_ctrl_c_ends_it_cleanly_and_says_that_the_job_continues(tmp_path: Path) -> None:
    folder = job(tmp_path, outcome="running", num=20)
    with started(folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert b"step 19" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert err.decode() == "Stopped watching; the job continues.\n"


def test_on_a_terminal_a_page_is_drawn_anew(tmp_path: Path) -> None:
    folder = job(tmp_path, late_ms=20, outcome="running")
    ours, theirs = pty.openpty()
    with started(folder, "--width", "80", stdout=theirs, stderr=subprocess.PIPE) as process:
        os.close(theirs)
        seen, limit = b"", time.monotonic() + 60
        while seen.count(b"Late ranks") < 2 and time.monotonic() < limit:
            if select.select([ours], [], [], 0.5)[0]:
                seen += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        _drained(ours)
        process.communicate(timeout=60)
    os.close(ours)
    assert process.returncode == 0
    assert seen.count(b"Late ranks") >= 2
    assert b"Rank 1 is late by 20.0 ms" in seen


def _drained(terminal: int) -> None:
    """Read what is left, so that the writer does not wait."""
    try:
        while select.select([terminal], [], [], 1)[0] and os.read(terminal, 65536):
            pass
    except OSError:
        pass


def test_a_full_disk_ends_the_lines_and_not_the_watching(tmp_path: Path) -> None:
    folder = job(tmp_path, late_ms=20)
    with (
        Path("/dev/full").open("wb") as full,
        started(folder, "--alert", "slow-rank", stdout=full, stderr=subprocess.PIPE) as process,
    ):
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err.decode() == "Lines are no longer written: No space left on device.\n"


def test_steps_that_come_while_it_watches_are_seen(tmp_path: Path) -> None:
    folder = job(tmp_path, outcome="running", num=5)
    with started(folder, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for rank in range(3):
            with (folder / f"rank{rank:05d}" / "steps.jsonl").open("ab") as stream:
                at = time.time_ns()
                record = StepRecord(step=5, start_ns=at, end_ns=at + 100 * MS)
                stream.write(msgspec.json.encode(record) + b"\n")
        lines = [process.stdout.readline().decode()]
        while "step 5" not in lines[-1] and len(lines) < 50:
            lines.append(process.stdout.readline().decode())
        process.kill()
    assert "step 5" in lines[-1]
