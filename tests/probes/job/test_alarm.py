"""Launchers of one job learn about trouble on other hosts."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from distprof_probes.job.alarm import Alarm
from distprof_probes.job.directory import read_run_file, write_run_file
from distprof_probes.job.supervise import Patience, Phase, Supervisor

from distprof.artefacts.run_file import RunFile

PATIENCE = Patience(suspicion_s=60, stall_s=60, drain_s=0, end_s=60)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    write_run_file(tmp_path, RunFile(distprof_version="", kind="run", command=(), started_ns=0))
    return tmp_path


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def watching(run_dir: Path, process: subprocess.Popen[bytes]) -> Supervisor:
    supervisor = Supervisor(run_dir, PATIENCE)
    supervisor.watch(0, process.pid)
    return supervisor


def until_over(supervisor: Supervisor, alarm: Alarm) -> None:
    while supervisor.look() is not Phase.OVER:
        alarm.serve(supervisor)
    alarm.serve(supervisor)


def conclude(run_dir: Path) -> None:
    run = read_run_file(run_dir)
    write_run_file(run_dir, msgspec.structs.replace(run, outcome="failed"))


def test_ranks_here_are_ended_when_one_elsewhere_failed(
    run_dir: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    supervisor = watching(run_dir, sleeper)
    Alarm(run_dir).ring()
    until_over(supervisor, Alarm(run_dir))
    end = supervisor.exits[0]
    assert (end.signal, end.by_launcher) == ("SIGTERM", True)
    assert supervisor.detected_ns is not None


def test_a_rank_that_fails_here_is_told_to_the_others(
    run_dir: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    supervisor = watching(run_dir, sleeper)
    assert supervisor.look() is Phase.RUNNING
    Alarm(run_dir).serve(supervisor)
    assert not Alarm(run_dir).is_ringing
    sleeper.kill()
    until_over(supervisor, Alarm(run_dir))
    assert Alarm(run_dir).is_ringing


def test_an_interruption_is_no_alarm(run_dir: Path, sleeper: subprocess.Popen[bytes]) -> None:
    supervisor = watching(run_dir, sleeper)
    supervisor.look()
    supervisor.interrupt()
    until_over(supervisor, Alarm(run_dir))
    assert not Alarm(run_dir).is_ringing


def test_nobody_is_alarmed_when_the_job_has_been_concluded(run_dir: Path) -> None:
    conclude(run_dir)
    alarm = Alarm(run_dir)
    alarm.ring()
    assert not alarm.is_ringing
    alarm.wait_for_the_end()


def test_who_failed_stays_until_the_first_launcher_is_done(run_dir: Path) -> None:
    alarm = Alarm(run_dir)
    alarm.ring()
    waiting = threading.Thread(target=alarm.wait_for_the_end)
    waiting.start()
    conclude(run_dir)
    waiting.join(0.3)
    assert waiting.is_alive()
    alarm.silence()
    waiting.join(10)
    assert not waiting.is_alive()


def test_a_first_launcher_that_never_concludes_holds_nobody_for_long(run_dir: Path) -> None:
    alarm = Alarm(run_dir)
    alarm.ring()
    started = time.monotonic()
    alarm.wait_for_the_end(conclude_s=0.2)
    assert 0.2 <= time.monotonic() - started < 10
