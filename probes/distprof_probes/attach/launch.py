"""Runs the user's program as if it had been typed alone: same terminal, signals, exit code."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from distprof.artefacts.run_file import Exit
from distprof.errors import UsageError

__all__ = ["Ending", "check_program", "run_program", "shell_code"]

_PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
)
_TURNED_OFF = frozenset("ISE")
_SI_KERNEL = 0x80
_LOOK_EVERY_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the program ended.

    Args:
        exit: Exit code or signal.
        pid: Of the process that it was.
        signals: Signals received meanwhile, in order.
    """

    exit: Exit
    pid: int = 0
    signals: tuple[int, ...] = ()

    @property
    def was_interrupted(self) -> bool:
        """Whether somebody asked it to end."""
        return bool({signal.SIGINT, signal.SIGTERM, signal.SIGHUP} & set(self.signals))


def check_program(command: Sequence[str]) -> str:
    """The path of the program.

    Raises:
        UsageError: If there is none, or it is a Python that is told to ignore the hook.
    """
    program = shutil.which(command[0])
    if program is None:
        raise UsageError(
            f"there is no program {command[0]!r}: write it as you would without capture"
        )
    if Path(program).name.startswith("python"):
        for flag in _flags(command[1:]):
            raise UsageError(
                f"{command[0]} -{flag} ignores PYTHONPATH or sitecustomize, through which capture"
                f" reaches the program: leave -{flag} out"
            )
    return program


def _flags(arguments: Sequence[str]) -> list[str]:
    """Those of Python's own flags that keep the hook out; they stand before the program's name."""
    found: list[str] = []
    for argument in arguments:
        if not argument.startswith("-") or argument.startswith(("--", "-c", "-m", "-X", "-W")):
            break
        found += [letter for letter in argument[1:] if letter in _TURNED_OFF]
    return found


def run_program(
    program: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    meanwhile: Callable[[], None],
) -> Ending:
    """Run the program to its end, passing signals on to it.

    A signal from the terminal reaches the program by itself, as a member of the same group: only
    those sent to this process alone are passed on, so that none arrives twice.

    Args:
        program: Its path.
        command: What was typed, from the program's name on.
        environment: All of its environment.
        meanwhile: Called about ten times a second while it runs.

    Raises:
        UsageError: If it cannot be started.
    """
    waited = {*_PASSED_ON, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    try:
        return _wait(_start(program, command, environment, before), waited, meanwhile)
    finally:
        _drain(waited)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(
    program: str, command: Sequence[str], environment: Mapping[str, str], mask: Iterable[int]
) -> int:
    ignored_by_python = (signal.SIGPIPE, signal.SIGXFSZ)  # and by no other program
    try:
        return os.posix_spawn(
            program, list(command), environment, setsigmask=mask, setsigdef=ignored_by_python
        )
    except OSError as error:
        raise UsageError(f"{command[0]} cannot be started: {error.strerror}") from error


def _wait(pid: int, waited: Iterable[int], meanwhile: Callable[[], None]) -> Ending:
    received: list[int] = []
    while True:
        news = signal.sigtimedwait(waited, _LOOK_EVERY_S)
        meanwhile()
        if news is None:
            continue
        if news.si_signo != signal.SIGCHLD:
            received.append(news.si_signo)
            if news.si_code != _SI_KERNEL:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, news.si_signo)
            continue
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended == pid:
            return Ending(exit=_exit(status), pid=pid, signals=tuple(received))


def _exit(status: int) -> Exit:
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return Exit(code=code, ended_ns=time.time_ns())
    return Exit(signal=signal.Signals(-code).name, ended_ns=time.time_ns())


def shell_code(ended: Exit) -> int:
    """The exit code as a shell gives it: 128 and more for a signal."""
    if ended.signal:
        return 128 + int(signal.Signals[ended.signal])
    return ended.code or 0


def _drain(waited: Iterable[int]) -> None:
    """Signals still pending were meant for the program, which is gone."""
    while signal.sigtimedwait(waited, 0) is not None:
        pass
