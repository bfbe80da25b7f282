"""What Linux says of a process: whether it runs, how it ended, whether it takes a signal."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from distprof.artefacts.run_file import Exit

__all__ = ["ProcessState", "exit_of", "process_state", "send", "takes_signal"]

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessState:
    """A moment of a process's life.

    Args:
        letter: As ``ps`` shows it: R runs, S sleeps, D waits for the kernel, T stopped,
            t traced, Z ended.
        cpu_s: Processor time so far, all threads.
        started_ticks: Since the machine started; with the pid, names a process for good.
    """

    letter: str
    cpu_s: float
    started_ticks: int


def process_state(pid: int) -> ProcessState | None:
    """The process's state, None when it is gone or this system has no ``/proc``."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    fields = text[text.rfind(")") + 2 :].split()  # the name before may hold spaces and brackets
    return ProcessState(
        letter=fields[0],
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
        started_ticks=int(fields[19]),
    )


def exit_of(pid: int) -> Exit | None:
    """How a child ended, without taking the news from whoever waits for it; None while it runs.

    Of a process that is no child of this one only its end can be seen, not how it ended.
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
    """Whether the process has a handler for it; without one, most signals would end it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text("utf-8", "replace")
    except OSError:
        return False
    for line in status.splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def send(pid: int, number: signal.Signals) -> bool:
    """Send a signal; False when the process is gone or not ours."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
