"""Run a job once and let many tests look at it.

::

    def test_counts(run_once: RunOnce) -> None:
        job = run_once("ddp", "--ranks", "2", "--steps", "8")
        assert job.exit_code == 0
        assert job.report["run"]["world_size"] == 2

Jobs with the same arguments run once per test session, also among the processes of pytest-xdist.
They stay on the CPU, make no overhead blocks and trace soon, unless the arguments say otherwise.
Their processes start warm (:mod:`tests.warm`); ``run_cold`` starts them as a shell does.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from distprof.artefacts import REPORT_FILE, RUN_FILE
from distprof.artefacts.run_file import RunFile
from tests.warm import LIMIT_S, Starter

__all__ = ["Job", "RunOnce", "run_job"]

attempt = 1
"""Of the present test: the machine may have disturbed the job of an earlier one."""

_DEFAULTS = ("--device", "cpu")
_QUICK = ("--steps", "8", "--no-measure-overhead")


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is left of a job.

    Args:
        dir: The run directory.
        report: Its report as JSON; empty when there is none.
        run: Its run.json; None when there is none.
        exit_code: Of ``distprof run``.
        stdout: Of ``distprof run``, hence the report.
        stderr: Of ``distprof run``.
    """

    dir: Path
    report: dict[str, Any]
    run: RunFile | None
    exit_code: int
    stdout: str
    stderr: str


RunOnce = Callable[..., Job]


def command_of(folder: Path, *arguments: str) -> list[str]:
    """``distprof run`` with this suite's defaults before the test's own options."""
    workload, *options = arguments
    given = set(options)
    quick = [] if "--config" in given else list(_QUICK)
    return [
        *(sys.executable, "-m", "distprof", "run", workload, *_DEFAULTS, *quick),
        *options,
        *("-o", str(folder)),
    ]


def started_cold(
    command: Sequence[str], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """As a shell starts it."""
    return subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, env=environment, check=False
    )


def run_job(folder: Path, *arguments: str, start: Starter = started_cold) -> Job:
    """Run a job now.

    Args:
        folder: The run directory to make.
        arguments: The workload and its options.
        start: Runs the command.
    """
    done = start(command_of(folder, *arguments), os.environ)
    return job_in(folder, done.returncode, done.stdout, done.stderr)


def job_in(folder: Path, exit_code: int, stdout: str, stderr: str) -> Job:
    """Contents of a run directory, and the output of the command."""
    run, report = folder / RUN_FILE, folder / REPORT_FILE
    return Job(
        dir=folder,
        report=json.loads(report.read_text()) if report.is_file() else {},
        run=msgspec.json.decode(run.read_bytes(), type=RunFile) if run.is_file() else None,
        exit_code=exit_code,
        stdout=stdout,
        stderr=stderr,
    )


def run_once_in(base: Path, *arguments: str, start: Starter) -> Job:
    """The job with these arguments, run by whichever process asks first.

    Args:
        base: Folder that all test processes share.
        arguments: The workload and its options.
        start: Runs the command.
    """
    name = f"{arguments[0]}-{hashlib.sha1(repr(arguments).encode()).hexdigest()[:12]}-{attempt}"
    base.mkdir(parents=True, exist_ok=True)
    folder, said = base / name, base / f"{name}.said.json"
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not said.is_file():
            job = run_job(folder, *arguments, start=start)
            words = {k: v for k, v in asdict(job).items() if k in ("exit_code", "stdout", "stderr")}
            said.write_text(json.dumps(words))
    return job_in(folder, **json.loads(said.read_text()))
