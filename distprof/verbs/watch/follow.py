"""Follows a run directory until the job has ended: reads, evaluates and reports."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from distprof.artefacts import RUN_FILE
from distprof.bounds import expanded
from distprof.errors import InputError
from distprof.ingest.job.growing import GrowingRun
from distprof.verbs.watch.measure import report_on
from distprof.verbs.watch.result import Alert, WatchReport
from distprof.verbs.watch.state import JobWatch

ENDED = ("completed", "failed", "interrupted")

LONGEST_START_S = 4.0
"""A job writes run.json before its ranks start: a folder without one after this time is another."""


def run_directory(source: str | os.PathLike[str]) -> Path:
    """The run directory that the user named."""
    text = os.fspath(source)
    path = Path(expanded(text))
    if "://" in text:
        found = "an address"
    elif path.name == RUN_FILE and path.is_file():
        return path.parent
    elif path.is_dir():
        return path
    else:
        found = "a file" if path.exists() else "no folder with this name"
    raise InputError(
        text,
        expected="the run directory of a job, on a file system of this machine",
        found=found,
        fix="name the folder that distprof run or distprof capture printed when the job started",
    )


def follow(
    source: str | os.PathLike[str],
    levels: Mapping[str, float],
    *,
    period_s: float,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[WatchReport, list[Alert]]]:
    """Watch a job until it ends: a report at each look, and the alerts that began or ended.

    The last report is the first one after the job has ended. InputError if there is no run
    directory, or none within a few seconds.
    """
    path = run_directory(source)
    live, job = GrowingRun(path), JobWatch(os.fspath(source), levels)
    is_run, waited_s = False, 0.0
    while True:
        began_s = time.monotonic()
        is_run = is_run or (path / RUN_FILE).exists() or any(path.glob("rank[0-9]*"))
        if not is_run and waited_s >= LONGEST_START_S:
            raise InputError(
                os.fspath(source),
                expected=f"the run directory of a job, which holds {RUN_FILE}",
                found=f"a folder without {RUN_FILE} and without folders of ranks",
                fix="name the folder that distprof run or distprof capture printed when the job "
                "started; to read logs, run distprof hang",
            )
        alerts = job.take(live.look(), now_s=began_s, now_ns=time.time_ns())
        report = report_on(job, now_s=began_s, now_ns=time.time_ns())
        yield report, alerts
        if report.state in ENDED:
            return
        pause_s = max(period_s - (time.monotonic() - began_s), 0.05)
        pause_s = pause_s if is_run else min(pause_s, LONGEST_START_S)
        sleep(pause_s)
        waited_s += pause_s
