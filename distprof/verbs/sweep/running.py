"""Makes the runs of a sweep, each in a separate ``distprof`` process, and resumes where it stopped.

Each run has its own process group, so it receives Ctrl-C only once, from this process.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
from msgspec.structs import replace

from distprof.artefacts import RUN_FILE
from distprof.artefacts.files import write_atomically
from distprof.artefacts.record import grouped
from distprof.artefacts.run_file import RunFile
from distprof.artefacts.summary_file import SWEEP_FILE, SweepFile, SweepRun
from distprof.bounds import read_plain
from distprof.documents.document import Document
from distprof.errors import InputError, UsageError, explaining
from distprof.verbs.sweep.runs import MAX_RANKS, MAX_RUNS

_BEAT_S = 1.0
_PATIENCE_S = 60.0
"""Time for an orderly shutdown, in which ranks write their traces, before the process is killed."""
_MAX_ERROR_LINES = 12
_STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
"""Hidden from the runs: the summary page of a CI step shows the sweep or gate, not each run."""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a process ended."""

    exit_code: int  # Exit code of the process; 128 plus the signal number if a signal ended it.
    errors: str  # The last lines that it wrote to stderr.
    took_s: float  # Duration in seconds.


def run_child(
    command: Sequence[str], *, keep_open: Sequence[int] = (), beat: Callable[[float], None]
) -> Ended:
    """Run a command to its end without showing its output."""
    started = time.monotonic()
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if name != _STEP_SUMMARY},
        text=True,
        errors="replace",
        pass_fds=tuple(keep_open),
        process_group=0,
    ) as process:
        try:
            errors = _wait(process, started, beat)
        except BaseException:
            _shut_down(process)
            raise
    code = process.returncode
    lines = errors.strip().splitlines()[-_MAX_ERROR_LINES:]
    return Ended(
        exit_code=code if code >= 0 else 128 - code,
        errors="\n".join(lines),
        took_s=time.monotonic() - started,
    )


def _wait(process: subprocess.Popen[str], started: float, beat: Callable[[float], None]) -> str:
    while True:
        try:
            return process.communicate(timeout=_BEAT_S)[1]
        except subprocess.TimeoutExpired:
            beat(time.monotonic() - started)


def _shut_down(process: subprocess.Popen[str]) -> None:
    """Interrupt the process, again if the user insists, and finally kill it."""
    for patience_s in (_PATIENCE_S, _PATIENCE_S / 4):
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=patience_s)
        except KeyboardInterrupt:
            continue
        except subprocess.TimeoutExpired:
            break
        else:
            return
    with contextlib.suppress(ProcessLookupError):  # its group is empty unless children outlive it
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


_FILE = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[tuple[int, ...]]:
    """Hold the lock of a sweep's folder, which no other process may hold."""
    with explaining(folder, "a folder that can be written", "name another folder with --sweep"):
        handle = os.open(folder / _FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        yield (handle,) if _take(handle, folder) else ()
    finally:
        os.close(handle)


def _take(handle: int, folder: Path) -> bool:
    """Take the lock; False if locks are not supported."""
    try:
        import fcntl
    except ImportError:  # not available on this system
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InputError(
            str(folder),
            expected="a sweep without a running process",
            found="one of its runs is still in progress",
            fix="wait until it ends, or stop it, then repeat the command to resume the sweep",
        ) from error
    except OSError:  # a file system without locks
        return False
    return True


_FINE = (0, 1)  # 1: findings
_VERBS = (("run",), ("capture",))
_FOLDER = re.compile(r"[\w\-]{1,100}", re.ASCII)


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a sweep."""

    number: int  # Number of the current run, from 1.
    total: int  # Number of runs.
    run: str  # Name of the run in messages, for example ``2 ranks, repeat 1``.
    elapsed_s: float  # Duration of the current run so far; 0 before it starts.
    # Estimated time to the end of the sweep; None before the first run is done.
    left_s: float | None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a sweep ended."""

    sweep: SweepFile  # The sweep with the state of each run.
    exit_code: int = 0  # 0 if every run is done, else the exit code of the failed run.
    why: str = ""  # Last lines of the failed run's output; empty if none failed.

    @property
    def num_done(self) -> int:
        """Number of runs that are done."""
        return sum(run.state == "done" for run in self.sweep.runs)


SWEEP = Document(
    kind=SweepFile,
    noun="a sweep",
    file="a sweep as distprof scale writes it",
    fix="its runs are intact: use distprof scale --from FOLDER, or start again in a new folder",
    indent=1,
    max_bytes=1 << 24,
)


def load_sweep(folder: Path) -> SweepFile | None:
    """The sweep in a folder; None if there is none."""
    file = folder / SWEEP_FILE
    if not file.exists():
        return None
    sweep = SWEEP.load(file)
    if wrong := _impossible_value(sweep):
        raise InputError(str(file), expected=SWEEP.file, found=wrong, fix=SWEEP.fix)
    return sweep


def _impossible_value(sweep: SweepFile) -> str:
    """Why distprof cannot have written this sweep, whose folders it removes; else empty."""
    for run in sweep.runs:
        if not _FOLDER.fullmatch(run.folder):
            return f"a run in the folder {run.folder[:60]!r}"
        if run.arguments[:1] not in _VERBS:
            return f"a run with the arguments {run.arguments[:3]!r}"
        if not (1 <= run.ranks <= MAX_RANKS and 0 <= run.repeat < MAX_RUNS):
            return f"a run on {run.ranks} ranks, repeat {run.repeat}"
    return ""


def save_sweep(folder: Path, sweep: SweepFile) -> None:
    """Write the state of the sweep atomically."""
    path = folder / SWEEP_FILE
    fix = "free some space, or choose another folder with --sweep (finished runs are kept)"
    with explaining(path, "a folder that can be written", fix):
        write_atomically(path, SWEEP.encode(sweep))


def configuration_of(arguments: Sequence[str]) -> dict[str, Any]:
    """The full configuration that arguments of ``distprof run`` select; UsageError as it says."""
    done = subprocess.run(
        [*_DISTPROF, *arguments, "--dry-run"], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        text = done.stderr.strip().removeprefix("Error: ").partition("\nTry:")[0]
        raise UsageError(
            text or f"distprof {' '.join(arguments)} exits with code {done.returncode}"
        )
    return tomllib.loads(done.stdout)


def finished_runs(folder: Path, sweep: SweepFile) -> tuple[Path, ...]:
    """Run directories of the runs that are done, in the order of the sweep."""
    return tuple(folder / run.folder for run in sweep.runs if run.state == "done")


def make_runs(folder: Path, sweep: SweepFile, *, say: Callable[[Progress], None]) -> Outcome:
    """Make every run that is not done, until one fails; ``say`` is called about every second."""
    with locked(folder) as lock:
        written = load_sweep(folder)
        before = {run.folder: run for run in written.runs} if written else {}
        sweep = replace(
            sweep,
            runs=tuple(_with_state(folder, run, before.get(run.folder)) for run in sweep.runs),
        )
        save_sweep(folder, sweep)
        for number, run in enumerate(sweep.runs):
            if run.state == "done":
                continue
            run_dir = folder / run.folder
            report = _reporter(sweep, number, say)
            _clear(run_dir)
            report(0.0)
            verb, *others = run.arguments
            if verb == "capture":  # options precede the program; a run without steps must fail
                words = ["-o", str(run_dir), "--fail-on", "error", *others]
            else:
                words = [*others, "-o", str(run_dir), "--quiet"]
            ended = run_child([*_DISTPROF, verb, *words], keep_open=lock, beat=report)
            is_done = ended.exit_code in _FINE and _is_complete(folder / run.folder)
            changed = replace(
                run,
                state="done" if is_done else "failed",
                exit_code=ended.exit_code,
                took_s=round(ended.took_s, 3) if is_done else None,
            )
            sweep = replace(sweep, runs=(*sweep.runs[:number], changed, *sweep.runs[number + 1 :]))
            save_sweep(folder, sweep)
            if not is_done:
                return Outcome(sweep=sweep, exit_code=ended.exit_code or 3, why=ended.errors)
    return Outcome(sweep=sweep)


_DISTPROF = (sys.executable, "-m", "distprof")


def _with_state(folder: Path, run: SweepRun, before: SweepRun | None) -> SweepRun:
    if before is None or before.arguments != run.arguments:  # the folder holds a different run
        return replace(run, state="waiting")
    is_done = before.state != "failed" and _is_complete(folder / run.folder)
    return replace(before, state="done" if is_done else "waiting")


def _reporter(
    sweep: SweepFile, number: int, say: Callable[[Progress], None]
) -> Callable[[float], None]:
    """A callback that reports the progress of the sweep during a run."""
    run = sweep.runs[number]
    ranks = f"{run.ranks:,} rank{'' if run.ranks == 1 else 's'}"

    def report(elapsed_s: float) -> None:
        say(
            Progress(
                number=number + 1,
                total=len(sweep.runs),
                run=f"{ranks}, repeat {run.repeat + 1}",
                elapsed_s=elapsed_s,
                left_s=_left_s(sweep, number, elapsed_s),
            )
        )

    return report


def _left_s(sweep: SweepFile, number: int, elapsed_s: float) -> float | None:
    """Remaining time, from the mean of runs of the same size, or of all runs if there are none."""
    done = (run for run in sweep.runs if run.state == "done")
    took = grouped([(run.ranks, run.took_s) for run in done if run.took_s is not None])
    if not took:
        return None
    by_size = {ranks: fmean(times) for ranks, times in took.items()}
    usual = fmean(by_size.values())
    going, *others = [run for run in sweep.runs[number:] if run.state != "done"]
    left = max(by_size.get(going.ranks, usual) - elapsed_s, 0.0)
    return left + sum(by_size.get(run.ranks, usual) for run in others)


def _clear(run_dir: Path) -> None:
    """Remove the files of an interrupted or failed run."""
    expected = "a folder that can be removed: its run was interrupted, or failed"
    with explaining(run_dir, expected, "remove it, or choose another folder with --sweep"):
        if run_dir.exists():
            shutil.rmtree(run_dir)


def _is_complete(run_dir: Path) -> bool:
    try:
        job = msgspec.json.decode(read_plain(run_dir / RUN_FILE, SWEEP.max_bytes), type=RunFile)
    except (OSError, ValueError, RecursionError):
        return False
    return job.outcome == "completed"
