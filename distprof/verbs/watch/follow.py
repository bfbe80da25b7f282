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

__all__ = ["ENDED", "follow", "run_directory"]

ENDED = ("completed", "failed", "interrupted")


def run_directory(source: str | os.PathLike[str]) -> Path:
    """The run directory that the user named.

    Raises:
        InputError: If it is an address, a file other than run.json, or does not exist.
    """
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
    """Watch a job until it ends.

    Args:
        source: The run directory.
        levels: Level of each kind of alert that is watched for.
        period_s: Seconds between two looks.
        sleep: Waits for this many seconds.

    Yields:
        The report at each look, and the alerts that began or ended. The last report is the first
        one after the job has ended.

    Raises:
        InputError: If there is no run directory.
    """
    path = run_directory(source)
    live, job = GrowingRun(path), JobWatch(os.fspath(source), levels)
    while True:
        began_s = time.monotonic()
        alerts = job.take(live.look(), now_s=began_s, now_ns=time.time_ns())
        report = report_on(job, now_s=began_s, now_ns=time.time_ns())
        yield report, alerts
        if report.state in ENDED:
            return
        sleep(max(period_s - (time.monotonic() - began_s), 0.05))
