"""Make the runs of a sweep, each by a ``distprof`` of its own, and go on where it stopped."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from distprof.artefacts import RUN_FILE
from distprof.artefacts.run_file import RunFile
from distprof.artefacts.sweep_file import SWEEP_FILE, SWEEP_SCHEMA, SweepFile, SweepRun
from distprof.errors import InputError, UsageError

__all__ = ["Outcome", "configuration_of", "finished_runs", "load_sweep", "make_runs", "save_sweep"]

Say = Callable[[str], None]

_FINE = (0, 1)  # 1: findings
_TOLD_LINES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a sweep ended.

    Args:
        sweep: With the state of each run.
        exit_code: 0 where every run is done, else that of the run which failed.
        why: What the failed run said, its last lines; empty without one.
    """

    sweep: SweepFile
    exit_code: int = 0
    why: str = ""

    @property
    def num_done(self) -> int:
        """Runs that are done."""
        return sum(run.state == "done" for run in self.sweep.runs)


def load_sweep(folder: Path) -> SweepFile | None:
    """The sweep in a folder; None where there is none.

    Raises:
        InputError: If its file cannot be read, or is of another version.
    """
    file = folder / SWEEP_FILE
    if not file.exists():
        return None
    try:
        found = msgspec.json.decode(file.read_bytes(), type=SweepFile)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            str(file),
            expected=f'a sweep with "schema": "{SWEEP_SCHEMA}"',
            found=str(error),
            fix="its runs are whole: distprof scale --from FOLDER, or start again in a new folder",
        ) from error
    if found.schema != SWEEP_SCHEMA:
        raise InputError(
            str(file),
            expected=f'"schema": "{SWEEP_SCHEMA}"',
            found=f'"schema": "{found.schema}"',
            fix="use the version of distprof that wrote it, or start again in a new folder",
        )
    return found


def save_sweep(folder: Path, sweep: SweepFile) -> None:
    """Write how far it has come, whole or not at all."""
    data = msgspec.json.format(msgspec.json.encode(sweep), indent=1) + b"\n"
    temporary = folder / f".{SWEEP_FILE}.new"
    try:
        temporary.write_bytes(data)
        temporary.replace(folder / SWEEP_FILE)
    except OSError as error:
        raise InputError(
            str(folder / SWEEP_FILE),
            expected="a folder that can be written",
            found=error.strerror or str(error),
            fix="choose another folder with -o",
        ) from error


def configuration_of(arguments: Sequence[str]) -> dict[str, Any]:
    """The whole configuration that arguments of ``distprof run`` mean.

    Raises:
        UsageError: With what the workload says is wrong about them.
    """
    done = subprocess.run(
        [*_DISTPROF, *arguments, "--dry-run"], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        said = done.stderr.strip().removeprefix("Error: ").partition("\nTry:")[0]
        raise UsageError(said or f"distprof {' '.join(arguments)} ends with {done.returncode}")
    return tomllib.loads(done.stdout)


def finished_runs(folder: Path, sweep: SweepFile) -> tuple[Path, ...]:
    """Run directories of the runs that are done, in the order of the sweep."""
    return tuple(folder / run.folder for run in sweep.runs if run.state == "done")


def make_runs(folder: Path, sweep: SweepFile, *, say: Say) -> Outcome:
    """Make every run that is not done yet.

    A run that was cut off is made again; a run that failed ends the sweep, and is tried again when
    the sweep is taken up. What is done stays.

    Args:
        folder: Of the sweep; it exists.
        sweep: Its plan, or how far it has come.
        say: Told a line before each run.

    Raises:
        KeyboardInterrupt: When the user stops it; what is done is kept.
    """
    save_sweep(folder, sweep)
    for number, run in enumerate(sweep.runs):
        if run.state == "done" and (folder / run.folder / RUN_FILE).is_file():
            continue
        say(f"[{number + 1}/{len(sweep.runs)}] {_named(run)}")
        code, said = _make(folder / run.folder, run)
        state = "done" if code in _FINE and _is_complete(folder / run.folder) else "failed"
        changed = replace(run, state=state, exit_code=code)
        sweep = replace(sweep, runs=(*sweep.runs[:number], changed, *sweep.runs[number + 1 :]))
        save_sweep(folder, sweep)
        if state == "failed":
            return Outcome(sweep=sweep, exit_code=code or 3, why=said)
    return Outcome(sweep=sweep)


_DISTPROF = (sys.executable, "-m", "distprof")


def _named(run: SweepRun) -> str:
    ranks = f"{run.ranks} rank{'' if run.ranks == 1 else 's'}"
    return f"{ranks}, repeat {run.repeat + 1}"


def _make(run_dir: Path, run: SweepRun) -> tuple[int, str]:
    """Exit code of one run, and the last lines of what it wrote to stderr."""
    if run_dir.exists():  # cut off, or failed
        shutil.rmtree(run_dir)
    verb, *others = run.arguments
    command = [*_DISTPROF, verb, *_into(verb, run_dir, others)]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    try:
        _, said = process.communicate()
    except KeyboardInterrupt:
        process.wait()  # the terminal has told it too
        raise
    return process.returncode, "\n".join(said.strip().splitlines()[-_TOLD_LINES:])


def _into(verb: str, run_dir: Path, others: Sequence[str]) -> list[str]:
    out = ["-o", str(run_dir), "--quiet"]
    if verb == "capture":  # its own options end at the program
        return ["-o", str(run_dir), *others]
    return [*others, *out]


def _is_complete(run_dir: Path) -> bool:
    try:
        job = msgspec.json.decode((run_dir / RUN_FILE).read_bytes(), type=RunFile)
    except (OSError, ValueError, RecursionError):
        return False
    return job.outcome == "completed"
