"""SIGTERM: what was recorded is kept, by a main thread that works and by one that hangs."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from distprof.artefacts.run_file import RunFile
from tests.probes.sessions import rank_file_of, steps_of
from tests.processes import ended

PROGRAM = """
import sys, time
from distprof_probes import ProbeOptions, session as opened
session = opened({run_dir!r}, options=ProbeOptions(mode="always-on"))
session.close_on_sigterm()
with session:
    session.step(loss=1.0)
    print("ready", flush=True)
    {body}
"""


def run_until_ready_and_terminate(run_dir: Path, body: str) -> int:
    program = PROGRAM.format(run_dir=str(run_dir), body=body)
    started = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    with ended(started) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        return process.wait(timeout=120)


def check_what_is_left(run_dir: Path) -> None:
    assert len(steps_of(run_dir)) == 1
    assert rank_file_of(run_dir).ended_ns is not None
    run = msgspec.json.decode((run_dir / "run.json").read_bytes(), type=RunFile)
    assert run.outcome == "interrupted"
    assert not (run_dir / "rank00000/error.json").exists()


def test_a_program_that_trains_leaves_in_order(tmp_path: Path) -> None:
    code = run_until_ready_and_terminate(tmp_path, "time.sleep(1000)")

    assert code == 143
    check_what_is_left(tmp_path)


def test_a_program_whose_main_thread_hangs_in_native_code_is_saved_all_the_same(
    tmp_path: Path,
) -> None:
    """A lock of C's that is never released: Python's own handler would never run."""
    body = (
        "import ctypes; libc = ctypes.CDLL(None); m = ctypes.create_string_buffer(64);"
        " libc.pthread_mutex_lock(m); libc.pthread_mutex_lock(m)"
    )
    began = time.monotonic()
    code = run_until_ready_and_terminate(tmp_path, body)

    assert code == 143
    assert time.monotonic() - began < 60
    check_what_is_left(tmp_path)


def test_a_handler_that_the_program_sets_later_decides(tmp_path: Path) -> None:
    program = PROGRAM.replace("with session:", "import signal\nwith session:").format(
        run_dir=str(tmp_path),
        body="""
    heard = []
    signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    print("set", flush=True)
    while not heard: time.sleep(0.01)
    time.sleep(2.5)  # longer than the watcher is patient
    session.step(loss=2.0)
""",
    )
    started = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    with ended(started) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["ready\n", "set\n"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 0
    assert len(steps_of(tmp_path)) == 2
