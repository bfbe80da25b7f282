"""Signals while a job starts end the command by the signal's own exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from distprof_probes.job.interrupts import Interrupts

PROGRAM = """
import signal, sys
from distprof_probes.job.interrupts import Interrupts

signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
with Interrupts(print):
    exec("signal.raise_signal(signal.SIGTERM)")  # as an import that makes a dataclass
"""


def test_what_was_ignored_stays_ignored_whatever_torch_sets() -> None:
    """A shell without job control starts background jobs so that Ctrl-C does not reach them."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts(print) as interrupts:
            signal.signal(signal.SIGINT, lambda *_: pytest.fail("taken by torch's handler"))
            interrupts.install()
            signal.raise_signal(signal.SIGINT)
            assert interrupts.signal is None
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_sigterm_within_an_import_is_not_taken_for_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    done = subprocess.run(
        [sys.executable, "-m", "program"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 143, done.stderr
