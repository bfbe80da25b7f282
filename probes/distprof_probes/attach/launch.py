"""Runs the user's program as if called directly: same terminal, signals and exit code."""

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
from distprof_probes.attach.output_copy import OutputCopy

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
_PAUSE_S = 0.02  # delay until a signal, or the end, is noticed


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the program ended."""

    exit: Exit  # Exit code or signal.
    pid: int = 0  # Its process id.
    signals: tuple[int, ...] = ()  # Signals received while it ran, in order.

    @property
    def was_interrupted(self) -> bool:
        """Whether a signal asked it to end."""
        return bool({signal.SIGINT, signal.SIGTERM, signal.SIGHUP} & set(self.signals))


def check_program(command: Sequence[str]) -> str:
    """The path of the program.

    UsageError if it does not exist, or is a Python whose flags disable the hook.
    """
    program = shutil.which(command[0])
    if program is None:
        raise UsageError(f"program {command[0]!r} not found: write it as you would without capture")
    if Path(program).name.startswith("python"):
        for flag in _flags(command[1:]):
            raise UsageError(
                f"{command[0]} -{flag} ignores PYTHONPATH or sitecustomize, which capture needs to"
                f" reach the program: remove -{flag}"
            )
    return program


def _flags(arguments: Sequence[str]) -> list[str]:
    """Python flags before the program's name that disable the hook."""
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
    output: Path | None = None,
) -> Ending:
    """Run the program to its end and forward signals to it.

    A signal from the terminal reaches the program directly, as a member of the same group. Only
    signals sent to this process alone are forwarded, so that none arrives twice. ``meanwhile`` is
    called about ten times a second; ``output`` is a file for a copy of what it prints.
    """
    waited = {*_PASSED_ON, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    try:
        if output is None:
            return _wait(_start(program, command, environment, before), waited, meanwhile)
        with OutputCopy(str(output)) as copy:
            pid = _start(program, command, environment, before, copy.file_actions)
            copy.started()
            return _wait(pid, waited, meanwhile)
    finally:
        _drain(waited)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(
    program: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    mask: Iterable[int],
    file_actions: Sequence[tuple[int, int, int]] = (),
) -> int:
    ignored_by_python = (signal.SIGPIPE, signal.SIGXFSZ)  # other programs do not ignore these
    try:
        return os.posix_spawn(
            program,
            list(command),
            environment,
            file_actions=list(file_actions),
            setsigmask=mask,
            setsigdef=ignored_by_python,
        )
    except OSError as error:
        raise UsageError(f"{command[0]} cannot be started: {error.strerror}") from error


def _wait(pid: int, waited: set[signal.Signals], meanwhile: Callable[[], None]) -> Ending:
    received: list[int] = []
    while True:
        news = _next(waited)
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


def _next(waited: set[signal.Signals]) -> signal.struct_siginfo | None:
    """The next signal, or None if none came within the time between looks.

    CPython's ``sigtimedwait`` returns uninitialised memory if this process is stopped and continued
    after the time limit.
    """
    limit = time.monotonic() + _LOOK_EVERY_S
    while not (pending := signal.sigpending() & waited):
        if time.monotonic() >= limit:
            return None
        time.sleep(_PAUSE_S)
    return signal.sigwaitinfo(pending)


def _exit(status: int) -> Exit:
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return Exit(code=code, ended_ns=time.time_ns())
    return Exit(signal=signal.Signals(-code).name, ended_ns=time.time_ns())


def shell_code(ended: Exit) -> int:
    """The exit code that a shell reports: 128 plus the number of a signal."""
    if ended.signal:
        return 128 + int(signal.Signals[ended.signal])
    return ended.code or 0


def _drain(waited: set[signal.Signals]) -> None:
    """Discard pending signals: they were meant for the program, which has ended."""
    while pending := signal.sigpending() & waited:
        signal.sigwaitinfo(pending)
