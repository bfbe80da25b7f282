"""Facts from Linux about a process: whether it runs, how it ended, whether it handles a signal."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from distprof.artefacts.run_file import Exit

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessState:
    """The state of a process at one moment."""

    # As in ``ps``: R runs, S sleeps, D is blocked in the kernel, T is stopped, t is traced, Z has
    # ended.
    letter: str
    cpu_s: float  # CPU time so far, all threads.
    # Ticks since the machine started; identifies a process together with the pid.
    started_ticks: int


def process_state(pid: int) -> ProcessState | None:
    """The state of the process; None if it is gone or the system has no ``/proc``."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    fields = text[text.rfind(")") + 2 :].split()  # the name may contain spaces and brackets
    return ProcessState(
        letter=fields[0],
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
        started_ticks=int(fields[19]),
    )


def exit_of(pid: int) -> Exit | None:
    """How a child ended, or None while it runs. Leaves the child for its waiter to reap.

    For a process that is not a child of this one, only the fact that it ended is visible.
    """
    try:
        news = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        state = process_state(pid)
        return Exit(ended_ns=time.time_ns()) if state is None or state.letter == "Z" else None
    if news is None:
        return None
    if news.si_code == os.CLD_EXITED:
        return Exit(code=news.si_status, ended_ns=time.time_ns())
    return Exit(signal=_signal_name(news.si_status), ended_ns=time.time_ns())


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def takes_signal(pid: int, number: signal.Signals) -> bool:
    """Whether the process handles the signal; without a handler, most signals end it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text("utf-8", "replace")
    except OSError:
        return False
    for line in status.splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def send(pid: int, number: signal.Signals) -> bool:
    """Send a signal; return False if the process is gone or belongs to another user."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
