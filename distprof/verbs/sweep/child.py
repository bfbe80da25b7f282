"""One run of a sweep in a process of its own, which always gets to end in order.

It runs in a process group of its own, so that Ctrl-C reaches it once, from here, and not a second
time from the terminal: twice means "at once" to it, and then nothing is saved.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from distprof.errors import InputError

__all__ = ["Ended", "locked", "run_child"]

_BEAT_S = 1.0

_PATIENCE_S = 60.0
"""For an orderly end, in which ranks write their traces; then it is killed."""

_TOLD_LINES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a process ended.

    Args:
        exit_code: Of the process; 128 plus the signal that ended it, as shells say it.
        said: The last lines that it wrote to stderr.
        took_s: Seconds.
    """

    exit_code: int
    said: str
    took_s: float


def run_child(
    command: Sequence[str], *, keep_open: Sequence[int] = (), beat: Callable[[float], None]
) -> Ended:
    """Run a command to its end; what it writes is not shown.

    Args:
        command: Program and arguments.
        keep_open: File descriptors that it holds as long as it lives.
        beat: Told about every second for how many seconds it has been running.

    Raises:
        KeyboardInterrupt: When the user stops it, or whatever else came up here; the process has
            ended in order before.
    """
    started = time.monotonic()
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        pass_fds=tuple(keep_open),
        process_group=0,
    ) as process:
        try:
            said = _listen(process, started, beat)
        except BaseException:
            _end(process)
            raise
    code = process.returncode
    lines = said.strip().splitlines()[-_TOLD_LINES:]
    return Ended(
        exit_code=code if code >= 0 else 128 - code,
        said="\n".join(lines),
        took_s=time.monotonic() - started,
    )


def _listen(process: subprocess.Popen[str], started: float, beat: Callable[[float], None]) -> str:
    while True:
        try:
            return process.communicate(timeout=_BEAT_S)[1]
        except subprocess.TimeoutExpired:
            beat(time.monotonic() - started)


def _end(process: subprocess.Popen[str]) -> None:
    """Ask it to end in order; once more, at once, when the user insists; at last kill it."""
    for patience_s in (_PATIENCE_S, _PATIENCE_S / 4):
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=patience_s)
        except KeyboardInterrupt:
            continue
        except subprocess.TimeoutExpired:
            break
        else:
            return
    with contextlib.suppress(ProcessLookupError):  # it had children that outlived it, or none
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


# Only one program makes the runs of a sweep at a time --------------------------------------------

_FILE = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[tuple[int, ...]]:
    """Hold the lock of a sweep's folder.

    Yields:
        File descriptors that a run's process must keep open; none where the file system has no
        locks.

    Raises:
        InputError: If somebody else holds it, or the folder cannot be written.
    """
    try:
        handle = os.open(folder / _FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise InputError(
            str(folder),
            expected="a folder that can be written",
            found=error.strerror or str(error),
            fix="name another folder with --sweep",
        ) from error
    try:
        yield (handle,) if _take(handle, folder) else ()
    finally:
        os.close(handle)


def _take(handle: int, folder: Path) -> bool:
    """Whether there is a lock now."""
    try:
        import fcntl
    except ImportError:  # not on this system
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InputError(
            str(folder),
            expected="a sweep that nobody is working on",
            found="one of its runs is still going",
            fix="wait for its end, or end it; then the same command goes on where it stopped",
        ) from error
    except OSError:  # a file system without locks
        return False
    return True
