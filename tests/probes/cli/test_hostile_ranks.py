"""Ranks that do what programs do and profilers forget: nothing of it reaches the training.

Each is run alone and under ``distprof capture``. Losses, weights, files, output and exit code must
be the same to the bit, while the profiler traces.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.drawn import some
from tests.probes.cli.runs import SCRIPTS, TORCHRUN, Captured, capture_command, environment
from tests.probes.scripts.hostile import AT, BLOCK, DEEDS, STEPS
from tests.processes import ended
from tests.small_disk import needs_mounts, small_disk
from tests.warm import LIMIT_S, Starter, WarmPython

pytestmark = pytest.mark.distributed

TRACED = ("--start-step", str(AT - 2), "--steps", "4", "--no-measure-overhead")
MEGABYTES = 512
MAX_LAUNCHER_KIB = 200 << 10

ALONE = sorted(set(DEEDS) - {"nothing", "flood", "fill-disk", "delete-here"})
LEAVES = ("leave-0", "leave-7", "daemonise")
"""The process that was started ends in the middle."""

UNDER_TORCHRUN = ("no-newline", "close-streams", "move", "own-handlers", "fork-child", "leave-7")
"""Those that end, or whose processes and streams torchrun has a part in."""


def script(result: Path, deed: str, *options: str) -> list[str]:
    """The arguments of a Python that does the deed."""
    return [str(SCRIPTS / "hostile.py"), "--do", deed, "--result", str(result), *options]


def files(folder: Path) -> dict[str, bytes]:
    """What the program wrote, by name."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def compared(
    folder: Path, start: Starter, deed: str, launcher: tuple[str, ...] = (sys.executable,)
) -> Captured:
    """Run it alone and captured; what must be equal is."""
    for name in ("plain", "own", "disk"):
        (folder / name).mkdir(exist_ok=True)
    plain = start([*launcher, *script(folder / "plain/r", deed)], environment())
    run, program = folder / "disk/run", [*launcher, *script(folder / "own/r", deed)]
    done = start(capture_command(run, *TRACED, program=program), environment())
    assert done.returncode == plain.returncode, done.stderr
    if launcher == (sys.executable,):
        assert done.stdout.startswith(plain.stdout)
    else:  # two ranks write in no certain order, and in pieces
        assert Counter(plain.stdout) <= Counter(done.stdout)
    assert files(folder / "own") == files(folder / "plain")
    assert "Traceback" not in done.stderr or "Traceback" in plain.stderr
    return Captured(folder=run, code=done.returncode, out=done.stdout, err=done.stderr)


@pytest.mark.parametrize("deed", ALONE)
def test_a_hostile_process_trains_as_if_alone(
    deed: str, tmp_path: Path, started_warm: Starter
) -> None:
    run = compared(tmp_path, started_warm, deed)
    if deed == "delete-run":
        assert f"There is no report: {run.folder} was deleted while the program ran" in run.err
        return
    assert run.report["job"]["outcome"] == ("failed" if deed == "leave-7" else "completed")
    steps, leaves = [line["step"] for line in run.lines(0)], deed in LEAVES
    assert steps == list(range(len(steps) if leaves else STEPS))
    assert leaves == any("did not close" in note for note in run.report["job"]["notes"])
    has_trace = (run.folder / "rank00000/trace.json.gz").is_file()
    assert has_trace or leaves or run.states(0)["profiler"] == "failed"


@pytest.mark.parametrize("deed", UNDER_TORCHRUN)
def test_hostile_ranks_train_as_if_alone(deed: str, tmp_path: Path, started_warm: Starter) -> None:
    run = compared(tmp_path, started_warm, deed, TORCHRUN)
    assert run.report["run"]["world_size"] == 2
    assert run.report["job"]["outcome"] == ("failed" if deed == "leave-7" else "completed")
    for rank in (0, 1):
        assert len(run.lines(rank)) == STEPS or deed == "leave-7"


def test_how_a_program_without_a_launcher_ended_is_known(
    tmp_path: Path, started_warm: Starter
) -> None:
    """Its only process is the rank."""
    run = compared(tmp_path, started_warm, "leave-7")
    (rank,) = run.run.ranks
    assert rank.exit is not None
    assert rank.exit.code == 7
    assert run.run.failure is not None
    assert run.run.failure.rank == 0


@needs_mounts
def test_a_program_that_fills_the_disk_trains_as_if_alone(
    tmp_path: Path, started_warm: Starter
) -> None:
    """The run directory is on that disk, its own files are not."""
    with small_disk(tmp_path / "disk", "1m"):
        run = compared(tmp_path, started_warm, "fill-disk")
        steps = [line["step"] for line in run.lines(0)]
    assert steps == list(range(STEPS))  # a page of its file was free
    assert "No space left on device" in run.err
    assert "No trace was written" in run.out


def test_a_program_that_deletes_its_working_directory_gets_its_report(
    tmp_path: Path, warm_python: WarmPython
) -> None:
    here, own = tmp_path / "here", tmp_path / "own"
    here.mkdir()
    own.mkdir()
    program = [sys.executable, *script(own / "r", "delete-here")]
    command = capture_command(tmp_path / "run", program=program)
    pipe = subprocess.PIPE
    with ended(
        warm_python.popen(command, env=environment(), cwd=here, stdout=pipe, stderr=pipe)
    ) as process:
        out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    assert not here.exists()
    assert f"{STEPS} steps logged" in out
    assert (own / "r.0").is_file()


# Both streams take one way through the launcher; nightly, the error stream is read too.
@pytest.mark.parametrize("name", some(["stdout", "stderr"], always=lambda name: name == "stdout"))
def test_a_gigabyte_passes_unchanged_and_the_launcher_keeps_none_of_it(
    name: str, tmp_path: Path
) -> None:
    """Half of it on each stream."""
    program = [sys.executable, *script(tmp_path / "r", "flood", "--megabytes", str(MEGABYTES))]
    command = capture_command(tmp_path / "run", "--no-report", program=program)
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, name: subprocess.PIPE}
    with ended(
        subprocess.Popen(
            command, env=environment(), stdout=streams["stdout"], stderr=streams["stderr"]
        )
    ) as process:
        stream = process.stdout or process.stderr
        assert stream is not None
        if name == "stderr":
            assert stream.readline().startswith(b"distprof: Recording in ")
        found = hashlib.sha256(stream.read(MEGABYTES << 19))
        launcher_kib = _most_kib(process.pid)
        for block in iter(lambda: stream.read(1 << 20), b""):
            found.update(block)
        assert process.wait(LIMIT_S) == 0
    expected = hashlib.sha256()
    for _ in range((MEGABYTES << 20) // len(BLOCK)):
        expected.update(BLOCK)
    assert found.hexdigest() == expected.hexdigest()
    assert launcher_kib < MAX_LAUNCHER_KIB


def _most_kib(pid: int) -> int:
    """The most memory that a process has had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0])
